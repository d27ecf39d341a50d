// The names page: everybody describes pictures; a lead also names predicates.

import { Describe } from "./describe.js";
import { Rename } from "./rename.js";
import { openShell } from "./shell.js";

const at = (id) => document.getElementById(id);
const views = { describe: new Describe(report), names: new Rename(report) };
let shown = null;

// Says what went wrong in one sentence; null: nothing did.
function report(error) {
  const banner = at("banner");
  banner.hidden = error === null;
  banner.classList.toggle("refused", Boolean(error?.status));
  banner.textContent = error?.message ?? "";
}

function show(name) {
  if (shown === name) return;
  shown = name;
  report(null);
  for (const view of Object.keys(views)) at(view).hidden = view !== name;
  for (const button of document.querySelectorAll("[data-view]")) {
    button.setAttribute("aria-pressed", String(button.dataset.view === name));
  }
  views[name].open();
}

addEventListener("beforeunload", (event) => {
  if (Object.values(views).some((view) => view.isUnsaved())) event.preventDefault();
});

const asked = () => (location.hash === "#describe" ? "describe" : "names");
let isLead = false;
try {
  isLead = (await openShell()).role === "lead";
} catch (error) {
  report(error); // describing may still work; the service decides who may name
}
at("views").hidden = !isLead;
for (const button of document.querySelectorAll("[data-view]")) {
  button.addEventListener("click", () => {
    history.replaceState(null, "", `#${button.dataset.view}`);
    show(button.dataset.view);
  });
}
addEventListener("hashchange", () => show(isLead ? asked() : "describe"));
show(isLead ? asked() : "describe");
