// A lead sees what annotators wrote, beside the pictures, and names each predicate.

import { examples } from "./examples.js";
import { element, request, say } from "./shell.js";

const at = (id) => document.getElementById(id);
const when = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

export class Rename {
  #report;
  #rows = [];
  #current = null; // predicate number
  #drafts = new Map(); // predicate -> { name, help } that are not saved

  constructor(report) {
    this.#report = report;
    at("name-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
    at("name-form").addEventListener("input", () => this.#note());
    at("restore").addEventListener("click", () => this.#fill(this.#row().original));
    at("name-list").addEventListener("keydown", (event) => this.#walk(event));
  }

  async open() {
    await this.#load();
    at("detail").hidden = this.#rows.length === 0;
    if (this.#rows.length > 0) this.#choose(this.#current ?? this.#rows[0].predicate);
  }

  isUnsaved() {
    return this.#drafts.size > 0;
  }

  async #load() {
    try {
      const list = await request("/api/names");
      this.#rows = list.names;
      at("name").maxLength = list.longest_name;
      at("help-text").maxLength = list.longest_help;
      this.#report(null);
    } catch (error) {
      this.#report(error);
    }
    at("name-list").replaceChildren(...this.#rows.map((row) => this.#entry(row)));
  }

  #row(predicate = this.#current) {
    return this.#rows.find((row) => row.predicate === predicate);
  }

  #entry(row) {
    const people = row.words.reduce((count, { annotators }) => count + annotators.length, 0);
    const button = element("button", {
      type: "button", "data-predicate": row.predicate,
      "aria-current": String(row.predicate === this.#current),
    },
    element("span", { class: "original" }, row.original),
    element("span", { class: "count", title: `Described by ${people}` }, people || ""));
    if (row.name !== row.original) {
      button.append(element("span", { class: "given" }, element("bdi", {}, row.name)));
    }
    button.addEventListener("click", () => {
      this.#choose(row.predicate);
      at("detail-title").focus();
    });
    return element("li", {}, button);
  }

  #walk(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...at("name-list").querySelectorAll("button")];
    const from = buttons.indexOf(document.activeElement);
    if (!step || from < 0) return;
    event.preventDefault();
    const to = buttons[(from + step + buttons.length) % buttons.length];
    to.focus();
    this.#choose(Number(to.dataset.predicate));
  }

  #choose(predicate) {
    this.#current = predicate;
    for (const button of at("name-list").querySelectorAll("button")) {
      button.setAttribute("aria-current", String(Number(button.dataset.predicate) === predicate));
    }
    this.#draw();
    this.#pictures();
  }

  #draw() {
    const row = this.#row();
    const { name, help } = this.#drafts.get(row.predicate) ?? row;
    at("detail-title").textContent = row.original;
    at("name").value = name;
    at("help-text").value = help;
    at("name-saved").textContent = "";
    this.#refuse(null);
    at("no-words").hidden = row.words.length > 0;
    at("all-words").replaceChildren(...row.words.map((same) => this.#words(same)));
    at("history").hidden = row.history.length === 0;
    at("history-list").replaceChildren(...row.history.toReversed().map((was) => element("li", {},
      element("bdi", {}, was.name),
      element("span", { class: "muted" }, ` · ${was.set_by}, ${when.format(new Date(was.set_at))}`),
      element("bdi", { class: "help" }, was.help))));
  }

  #words({ words, annotators }) {
    const button = element("button", { type: "button", title: "Use these words as the name" },
      element("span", { class: "number" }, String(annotators.length)),
      element("bdi", { class: "words" }, words),
      element("span", { class: "who" }, annotators.join(", ")));
    button.addEventListener("click", () => {
      this.#fill(words);
      at("name").focus();
    });
    return element("li", {}, button);
  }

  async #pictures() {
    const row = this.#row();
    at("detail-pictures").replaceChildren();
    if (!row.has_examples) return;
    try {
      const { pictures } = await request(`/api/wordings/${row.predicate}`);
      if (this.#current === row.predicate) {
        at("detail-pictures").replaceChildren(...examples(pictures));
      }
    } catch (error) {
      if (this.#current === row.predicate) this.#report(error);
    }
  }

  #fill(name) {
    at("name").value = name;
    this.#note();
  }

  #note() {
    const row = this.#row();
    const draft = { name: at("name").value, help: at("help-text").value };
    const isSame = draft.name === row.name && draft.help === row.help;
    if (isSame) this.#drafts.delete(row.predicate);
    else this.#drafts.set(row.predicate, draft);
    at("name-saved").textContent = isSame ? "" : "Not saved yet";
    this.#refuse(null);
  }

  async #save() {
    const { predicate, edition } = this.#row();
    const body = { predicate, edition, name: at("name").value, help: at("help-text").value };
    if (!body.name.trim()) {
      this.#refuse("A name must not be empty.");
      return;
    }
    try {
      const saved = await request("/api/names", { body });
      this.#rows = this.#rows.map((row) => (row.predicate === predicate ? saved : row));
      this.#drafts.delete(predicate);
    } catch (error) {
      if (error.status === 409) {
        this.#drafts.set(predicate, { name: body.name, help: body.help }); // theirs is shown below
        await this.#load();
      }
      if (this.#current === predicate) {
        if (error.status === 409) this.#draw();
        this.#refuse(error.message);
      }
      return;
    }
    at("name-list").replaceChildren(...this.#rows.map((row) => this.#entry(row)));
    if (this.#current !== predicate) return;
    this.#draw();
    at("name-saved").textContent = "Saved";
    say("Saved.");
  }

  #refuse(sentence) {
    const error = at("name-error");
    error.hidden = sentence === null;
    error.textContent = sentence ?? "";
    at("name").setAttribute("aria-invalid", String(sentence !== null));
  }
}
