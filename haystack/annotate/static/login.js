// Exchanges a token for a cookie. The token comes after the # of a link, which browsers send to
// nobody and write into no log, or is pasted; it is taken out of the address at once.

import { request } from "./shell.js";

const field = document.getElementById("token");
const refusal = document.getElementById("refusal");
const fragment = new URLSearchParams(location.hash.slice(1));
history.replaceState(null, "", location.pathname);

async function logIn(text) {
  refusal.hidden = true;
  const token = text.trim().split("token=").at(-1);
  try {
    await request("/api/login", { body: { token } });
  } catch (error) {
    refusal.textContent = error.message;
    refusal.hidden = false;
    field.focus();
    return;
  }
  location.replace(destination());
}

// Back to where the login ended, if that is a page of this service.
function destination() {
  try {
    const wanted = new URL(fragment.get("next") ?? "/", location.origin);
    return wanted.origin === location.origin ? wanted.href : "/";
  } catch {
    return "/";
  }
}

document.getElementById("login").addEventListener("submit", (event) => {
  event.preventDefault();
  logIn(field.value);
});
// A link that is opened where this page is already loads nothing anew by itself.
addEventListener("hashchange", () => location.reload());
if (fragment.has("token")) logIn(fragment.get("token"));
else field.focus();
