// The keyboard: which key does what, and who may change it.

import { isElsewhere } from "./shell.js";
import { remember, remembered } from "./stored.js";

// In the order of the help. Keys that were changed replace all of these.
export const ACTIONS = {
  correct: { keys: ["a", "1"], name: "Correct", meaning: "the sentence is true." },
  incorrect: {
    keys: ["x", "2"],
    name: "Incorrect",
    meaning: "not this, though another predicate may fit.",
  },
  no_relation: {
    keys: ["n", "3"],
    name: "No relation",
    meaning: "no predicate fits these two.",
  },
  skip: { keys: [" "], name: "Skip", meaning: "you are not sure." },
  subject_faulty: {
    keys: ["s"],
    name: "Subject mask faulty",
    meaning: "the blue segment has a wrong outline or name. It is not asked about again.",
  },
  object_faulty: {
    keys: ["o"],
    name: "Object mask faulty",
    meaning: "the same for the orange segment.",
  },
  undo: {
    keys: ["z", "backspace"],
    name: "Undo",
    meaning: "your latest answer, as often as you like.",
  },
  hide: { keys: ["h"], name: "Hold to hide", meaning: "the picture without masks." },
  mode: {
    keys: ["m"],
    name: "Masks",
    meaning: "as outline and fill, outline, fill, or box.",
  },
  closer: { keys: ["+", "="], name: "Zoom in", meaning: "arrows then move the picture." },
  farther: { keys: ["-", "_"], name: "Zoom out", meaning: "wheel, pinch and drag do as well." },
  whole: { keys: ["0"], name: "Whole picture", meaning: "a double click does as well." },
  pair: { keys: ["f"], name: "Fit", meaning: "the two segments as large as they fit." },
  previous: { keys: ["["], name: "Previous predicate", meaning: "" },
  next: { keys: ["]"], name: "Next predicate", meaning: "" },
  predicates: { keys: ["p"], name: "Choose a predicate", meaning: "" },
  help: { keys: ["?"], name: "This list", meaning: "" },
};

const ARROWS = {
  arrowleft: [-1, 0],
  arrowright: [1, 0],
  arrowup: [0, -1],
  arrowdown: [0, 1],
};
const NAMED = ["backspace", "delete", "insert", "home", "end", "pageup", "pagedown"];
const WRITTEN = { " ": "Space", pageup: "Page Up", pagedown: "Page Down" };

export function written(key) {
  return WRITTEN[key] ?? key[0].toUpperCase() + key.slice(1);
}

export class Keys {
  #changed = {}; // action -> key

  constructor() {
    // One after the other, so that what was stored by another version gives no key two meanings.
    for (const [action, key] of Object.entries(remembered("keys") ?? {})) {
      if (action in ACTIONS && typeof key === "string") this.#take(action, key);
    }
  }

  of(action) {
    return this.#changed[action] ? [this.#changed[action]] : ACTIONS[action].keys;
  }

  action(key) {
    return Object.keys(ACTIONS).find((action) => this.of(action).includes(key));
  }

  get areChanged() {
    return Object.keys(this.#changed).length > 0;
  }

  /** Give an action another key. Returns a sentence where that cannot be, else null. */
  change(action, key) {
    const refusal = this.#take(action, key);
    if (!refusal) remember("keys", this.#changed);
    return refusal;
  }

  #take(action, key) {
    if ([...key].length !== 1 && !NAMED.includes(key)) {
      return `${written(key)} has a meaning of its own; choose another key.`;
    }
    const owner = this.action(key);
    if (owner && owner !== action) {
      return `${written(key)} is the key of “${ACTIONS[owner].name}”; change that one first.`;
    }
    this.#changed[action] = key;
    return null;
  }

  reset() {
    this.#changed = {};
    remember("keys", null);
  }

  /**
   * @param {object} on press(action), release(action), pan(x, y), which says whether it did, and
   *   leave(), for Escape. Held keys do not repeat, except those that move the picture.
   */
  listen(on) {
    addEventListener("keydown", (event) => {
      if (isElsewhere(event) || document.querySelector("#predicates.open")) return;
      const key = event.key.toLowerCase();
      if (key in ARROWS) {
        if (on.pan(...ARROWS[key])) event.preventDefault();
        return;
      }
      if (key === "escape") on.leave();
      const action = this.action(key);
      if (!action) return;
      // Somebody who walks through the buttons with Tab presses them with Space.
      if (key === " " && document.activeElement?.matches(":is(button, a, summary):focus-visible")) {
        return;
      }
      event.preventDefault();
      if (!event.repeat || action === "closer" || action === "farther") on.press(action, event);
    });
    addEventListener("keyup", (event) => {
      const action = this.action(event.key.toLowerCase());
      if (action) on.release(action);
    });
    addEventListener("blur", () => on.release("hide"));
  }
}
