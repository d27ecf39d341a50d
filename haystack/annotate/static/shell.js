// What all pages share: the header with its navigation, requests, and building elements.
//
// A page has <header id="shell"></header> as the first child of its body, a <main id="main"
// tabindex="-1">, links shell.css, and calls `await openShell()`. What already stands in the header
// (a page's own tools) stays there.

const PATIENCE_MS = 10_000;
// Sending the same again later may help: the login has ended, the service is busy, does not know
// the address of this page, serves another campaign, or somebody else is logged in for now.
const LATER = new Set([401, 403, 408, 421, 425, 429]);
// What a web server says of a path that it does not know: another program has this address now.
const STRANGERS = new Set(["Not Found", "Method Not Allowed"]);

// Lead: only who leads the campaign sees the entry. Pages that this service does not serve are
// left out. The service itself refuses who may not; this only keeps the header calm.
const PAGES = [
  { path: "/", name: "Annotate" },
  { path: "/clusters", name: "Clusters", lead: true },
  { path: "/names", name: "Names" },
  { path: "/progress", name: "Progress" },
  { path: "/disagreements", name: "Disagreements", lead: true },
];

/**
 * Fill the header and say who is here.
 *
 * @param {object} options
 * @param {string} options.target id of what the skip link leads to.
 * @param {string} options.skip its words.
 * @returns {Promise<{name: string, role: "lead"|"annotator", login: boolean, pages: string[]}>}
 *   The header is there before this resolves; it rejects as `request` does.
 */
export async function openShell({ target = "main", skip = "Skip to the content" } = {}) {
  const header = document.getElementById("shell");
  const list = element("ul");
  const account = element("div", { class: "account" });
  header.prepend(
    element("a", { class: "jump", href: `#${target}` }, skip),
    element("a", { class: "brand", href: "/", "aria-label": "Haystack" },
      element("img", { src: "/static/icon.svg", alt: "", width: 24, height: 24 }),
      element("span", {}, "Haystack")),
    element("nav", { "aria-label": "Pages" }, list),
  );
  const skipLink = header.firstElementChild;
  skipLink.addEventListener("click", (event) => {
    event.preventDefault(); // the address may hold something of the page's own
    document.getElementById(target).focus();
  });
  account.append(...header.querySelectorAll(":scope > .tools"));
  header.append(account);

  const me = await request("/api/me").catch((error) => {
    if (error.status === 401) location.replace(loginPage());
    throw error;
  });
  for (const { path, name, lead } of PAGES) {
    if (!me.pages.includes(path) || (lead && me.role !== "lead")) continue;
    const link = element("a", { href: path }, name);
    if (path === location.pathname) link.setAttribute("aria-current", "page");
    list.append(element("li", {}, link));
  }
  if (me.login) {
    const out = element("button", { type: "button", class: "quiet" }, "Log out");
    out.addEventListener("click", async () => {
      await request("/api/logout", { method: "POST", body: {} });
      location.assign("/login");
    });
    account.prepend(element("span", { class: "who", title: `${me.name}, ${me.role}` }, me.name));
    account.append(out);
  }
  return me;
}

/**
 * A JSON request to the service.
 *
 * @param {string} path
 * @param {{method?: string, body?: object, keepalive?: boolean}} options a body makes it a POST;
 *   keepalive: it is sent also if the page is closed meanwhile.
 * @returns {Promise<any>} the reply's content; null where it has none.
 * @throws {Error} with `message`, a sentence for people; `status`, 0 without a connection, 401 when
 *   the login has ended; and `refused`: the service itself said no, and would say so again.
 */
export async function request(path, options = {}) {
  const { body, method = body ? "POST" : "GET", keepalive = false } = options;
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: body ? { "Content-Type": "application/json" } : {},
      body: body && JSON.stringify(body),
      keepalive,
      signal: AbortSignal.timeout(PATIENCE_MS),
    });
  } catch {
    throw Object.assign(new Error("No connection."), { status: 0, refused: false });
  }
  const { status } = response;
  if (status === 204) return null;
  let content;
  try {
    content = await response.json();
  } catch {
    // The page of a proxy or of a hotel's network, or a connection that broke.
    const message = response.ok ? "No connection." : `The service answered with error ${status}.`;
    throw Object.assign(new Error(message), { status: response.ok ? 0 : status, refused: false });
  }
  noteLogin(status, content?.detail);
  if (response.ok) return content;
  const said = typeof content?.detail === "string" ? content.detail : null;
  throw Object.assign(new Error(said ?? `The service answered with error ${status}.`), {
    status,
    refused: said !== null && status < 500 && !LATER.has(status) && !STRANGERS.has(said),
  });
}

/**
 * Show the way back in while the login has ended; what the page holds stays. To be called with
 * the status of every reply.
 */
export function noteLogin(status, sentence) {
  if (location.pathname === "/login") return;
  const shown = document.getElementById("login-ended");
  if (status !== 401) {
    shown?.remove();
  } else if (!shown) {
    document.body.prepend(
      element("div", { id: "login-ended", class: "banner refused", role: "alert" },
        `${sentence} `, element("a", { href: loginPage() }, "Log in")),
    );
  }
}

function loginPage() {
  return `/login#${new URLSearchParams({ next: location.pathname + location.hash })}`;
}

/**
 * An element. Text is text, never HTML, so that names from files cannot be anything else.
 *
 * @param {string} tag
 * @param {Object<string, string|number>} attributes null and undefined ones are left out.
 * @param {...(Node|string)} children
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Whether a key belongs to something else than the page: a shortcut of the browser, a field, a
 *  dialog. */
export function isElsewhere(event) {
  const typing = "input, textarea, select, [contenteditable]";
  return (
    event.ctrlKey || event.metaKey || event.altKey || event.isComposing ||
    (event.target instanceof Element && event.target.closest(typing) !== null) ||
    document.querySelector("dialog[open]") !== null
  );
}

/** Say something to screen readers, without moving the focus. */
export function say(text) {
  let live = document.getElementById("live");
  if (!live) {
    live = element("p", { id: "live", class: "unseen", "aria-live": "polite" });
    document.body.append(live);
  }
  live.textContent = text.trim();
}
