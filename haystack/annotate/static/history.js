// What was answered in this tab, latest last: for undoing without waiting for the service, for
// answering again, and for the list of recent answers. A reload keeps it.

import { element } from "./shell.js";
import { remember, remembered } from "./stored.js";

const KEPT = 100;
const LISTED = 10;
const SIGNS = {
  correct: "✓",
  incorrect: "✗",
  no_relation: "∅",
  skip: "…",
  subject_faulty: "!",
  object_faulty: "!",
};

export const SAID = {
  correct: "Correct",
  incorrect: "Incorrect",
  no_relation: "No relation",
  skip: "Skipped",
  subject_faulty: "Subject mask faulty",
  object_faulty: "Object mask faulty",
};

export function sentence(question) {
  return `${question.subject_name} ${question.predicate_name} ${question.object_name}`;
}

export class History {
  #given = []; // { question, verdict }; a question that was answered again is there again
  #scope = null;
  #list;
  #revisit;

  // list: shows the latest; revisit(question, verdict): one of them was chosen.
  constructor(list, revisit) {
    this.#list = list;
    this.#revisit = revisit;
  }

  // Of a campaign and an annotator: nobody undoes what another one answered.
  open(scope) {
    this.#scope = `given.${scope}`;
    this.#given = remembered(this.#scope, sessionStorage) ?? [];
    this.#changed();
  }

  add(question, verdict) {
    this.#given.push({ question, verdict });
    this.#given.splice(0, this.#given.length - KEPT);
    this.#changed();
  }

  // The latest answer, which is taken back; undefined if none is known here.
  pop() {
    const last = this.#given.pop();
    this.#changed();
    return last;
  }

  // What the question was answered last; undefined if it was not.
  verdict(id) {
    return this.#given.findLast(({ question }) => question.id === id)?.verdict;
  }

  // The service refused it.
  drop(id) {
    this.#given = this.#given.filter(({ question }) => question.id !== id);
    this.#changed();
  }

  #changed() {
    remember(this.#scope, this.#given, sessionStorage);
    const shown = new Map();
    for (const { question, verdict } of this.#given.toReversed()) {
      if (!shown.has(question.id)) shown.set(question.id, { question, verdict });
      if (shown.size === LISTED) break;
    }
    this.#list.replaceChildren(...[...shown.values()].map((entry) => this.#row(entry)));
    this.#list.parentElement.hidden = shown.size === 0;
  }

  #row({ question, verdict }) {
    const role = verdict.endsWith("_faulty") ? verdict.split("_")[0] : "";
    const button = element(
      "button",
      { type: "button", "aria-label": `${SAID[verdict]}: ${sentence(question)}. Answer again` },
      element("span", { class: `sign ${role}`, title: SAID[verdict] }, SIGNS[verdict]),
      element("span", { class: "name" }, sentence(question)),
    );
    button.addEventListener("click", (event) => {
      if (event.detail > 0) button.blur();
      this.#revisit(question, verdict);
    });
    return element("li", {}, button);
  }
}
