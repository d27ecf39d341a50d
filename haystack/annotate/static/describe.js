// An annotator describes sets of pictures, one after the other, in words of his or her own.

import { examples, randomKey } from "./examples.js";
import { element, request, say } from "./shell.js";

const at = (id) => document.getElementById(id);

export class Describe {
  #report;
  #tasks = null;
  #from = null; // { campaign, annotator } that this page was opened for
  #current = -1; // position among the tasks
  #keys = new Map(); // "predicate words" -> key, so that sending again saves nothing twice
  #sending = false;

  constructor(report) {
    this.#report = report;
    at("words-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#save();
    });
    at("skip").addEventListener("click", () => this.#go(this.#current + 1));
    at("previous").addEventListener("click", () => this.#go(this.#current - 1));
  }

  async open() {
    try {
      const list = await request("/api/wordings");
      this.#tasks = list.tasks;
      this.#from = { campaign: list.campaign, annotator: list.annotator };
      at("words").maxLength = list.longest;
    } catch (error) {
      this.#report(error);
      return;
    }
    if (this.#tasks.length === 0) {
      at("instruction").textContent =
        "There are no pictures to describe: no relation is known of which the pictures can be shown.";
      return;
    }
    at("words-form").hidden = false;
    const first = this.#tasks.findIndex(({ words }) => words === null);
    this.#go(first < 0 ? 0 : first);
  }

  isUnsaved() {
    const task = this.#tasks?.[this.#current];
    return Boolean(task) && at("words").value.trim() !== (task.words ?? "");
  }

  async #go(position) {
    const count = this.#tasks.length;
    this.#current = (position + count) % count;
    const task = this.#tasks[this.#current];
    this.#refuse(null);
    at("words").value = task.words ?? "";
    this.#progress();
    this.#focus();
    at("describe-pictures").replaceChildren(element("p", { class: "muted" }, "Loading…"));
    try {
      const pictures = await this.#load(task);
      if (this.#tasks[this.#current] !== task) return;
      this.#report(null);
      at("describe-pictures").replaceChildren(...pictures);
      say(`Set ${this.#current + 1} of ${count}, ${pictures.length} pictures.`);
      this.#load(this.#tasks[(this.#current + 1) % count]).catch(() => {}); // ahead
    } catch (error) {
      if (this.#tasks[this.#current] !== task) return;
      at("describe-pictures").replaceChildren();
      this.#report(error);
    }
  }

  // The task's pictures, which the browser begins to fetch as soon as they are made.
  #load(task) {
    task.loading ??= request(`/api/wordings/${task.predicate}`).then(
      ({ pictures }) => examples(pictures),
      (error) => {
        task.loading = null; // tried again the next time
        throw error;
      },
    );
    return task.loading;
  }

  #progress() {
    const done = this.#tasks.filter(({ words }) => words !== null).length;
    const all = done === this.#tasks.length ? " Thank you! You can still change your words." : "";
    at("done").replaceChildren(
      element("span", {}, `Set ${this.#current + 1} of ${this.#tasks.length} · ${done} described.${all}`),
    );
  }

  async #save() {
    const task = this.#tasks[this.#current];
    const words = at("words").value;
    if (this.#sending) return;
    if (!words.trim()) {
      this.#refuse("Write what you see, or skip these pictures.");
      return;
    }
    const entry = `${task.predicate} ${words}`;
    if (!this.#keys.has(entry)) this.#keys.set(entry, randomKey());
    this.#sending = true;
    try {
      const saved = await request("/api/wordings", { body: {
        predicate: task.predicate, words, key: this.#keys.get(entry), ...this.#from,
      } });
      this.#keys.delete(entry);
      task.words = saved.words;
    } catch (error) {
      this.#refuse(error.status === 0 ? "No connection; your words are still here. Save again."
        : error.message);
      return;
    } finally {
      this.#sending = false;
    }
    if (this.#tasks[this.#current] !== task) return;
    say("Saved.");
    const count = this.#tasks.length;
    const order = [...Array(count).keys()].map((step) => (this.#current + 1 + step) % count);
    const next = order.find((position) => this.#tasks[position].words === null);
    if (next === undefined) {
      at("words").value = task.words;
      this.#progress();
      say(at("done").textContent);
    } else {
      this.#go(next);
    }
  }

  #refuse(sentence) {
    const error = at("words-error");
    error.hidden = sentence === null;
    error.textContent = sentence ?? "";
    at("words").setAttribute("aria-invalid", String(sentence !== null));
    if (sentence !== null) this.#focus();
  }

  #focus() {
    // On a touch screen the keyboard would cover the pictures before they are seen.
    if (matchMedia("(pointer: fine)").matches) at("words").focus();
  }
}
