// Which questions the tabs of this browser hold, so that a tab that is closed gives back only what
// no other one shows. In localStorage, since a page that goes cannot wait for an answer.

const PREFIX = "haystack.tab.";
const LONGEST_MS = 10 * 60_000; // leases have ended by then, also of tabs that crashed
const own = PREFIX + crypto.randomUUID();

/** Note the questions that this tab holds. */
export function hold(ids) {
  try {
    localStorage.setItem(own, JSON.stringify({ ids, at: Date.now() }));
  } catch {
    // Storage is switched off: each tab speaks for itself.
  }
}

/**
 * Let go of all that this tab holds.
 *
 * @param {string[]} ids what it holds.
 * @returns {string[]} those that no other tab holds.
 */
export function letGo(ids) {
  const elsewhere = new Set();
  try {
    localStorage.removeItem(own);
    for (const name of Object.keys(localStorage)) {
      if (!name.startsWith(PREFIX)) continue;
      const other = JSON.parse(localStorage.getItem(name));
      if (Date.now() - other.at > LONGEST_MS) localStorage.removeItem(name);
      else for (const id of other.ids) elsewhere.add(id);
    }
  } catch {
    // Likewise.
  }
  return ids.filter((id) => !elsewhere.has(id));
}
