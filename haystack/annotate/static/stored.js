// The browser's storage, which may be switched off or full: then choices last as long as the page.

export function remember(name, value, storage = localStorage) {
  try {
    if (value === null) storage.removeItem(`haystack.${name}`);
    else storage.setItem(`haystack.${name}`, JSON.stringify(value));
  } catch {
    // See above.
  }
}

export function remembered(name, storage = localStorage) {
  try {
    return JSON.parse(storage.getItem(`haystack.${name}`));
  } catch {
    return null;
  }
}
