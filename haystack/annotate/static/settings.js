// The dialog of keys and settings: what each key does, another key for it, and how a new question
// is shown.

import { ACTIONS, written } from "./keys.js";
import { element } from "./shell.js";

export class Settings {
  #dialog;
  #keys;
  #waiting = null; // the button whose action gets the next key
  #changed;

  // changed(): keys are other ones now.
  constructor(dialog, keys, changed) {
    this.#dialog = dialog;
    this.#keys = keys;
    this.#changed = changed;
    this.#part("#reset-keys").addEventListener("click", () => {
      keys.reset();
      this.#stop();
      this.#say("Keys are as they were at first.");
      this.#update();
    });
    dialog.addEventListener("keydown", (event) => this.#take(event));
    dialog.addEventListener("cancel", (event) => this.#waiting && event.preventDefault());
    dialog.addEventListener("close", () => this.#stop());
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    this.#create();
    this.#update();
  }

  open() {
    this.#say("");
    this.#dialog.showModal();
    this.#part("h2").focus();
  }

  #part(selector) {
    return this.#dialog.querySelector(selector);
  }

  #create() {
    for (const [action, { name, meaning }] of Object.entries(ACTIONS)) {
      const button = element("button", { type: "button", "data-action": action });
      button.addEventListener("click", () => this.#wait(button));
      this.#part("#key-list").append(
        element("li", {}, button,
          element("span", {}, element("b", {}, name), meaning && `: ${meaning}`)),
      );
    }
  }

  #update() {
    for (const button of this.#dialog.querySelectorAll("[data-action]")) {
      const { action } = button.dataset;
      const keys = this.#keys.of(action).map(written);
      button.replaceChildren(...keys.map((key) => element("kbd", {}, key)));
      button.setAttribute(
        "aria-label", `${ACTIONS[action].name}: ${keys.join(" or ")}. Change the key`);
    }
    this.#part("#reset-keys").disabled = !this.#keys.areChanged;
    this.#changed();
  }

  #wait(button) {
    this.#stop();
    this.#waiting = button;
    button.setAttribute("aria-pressed", "true");
    button.replaceChildren("Press a key");
    this.#say(`Press the new key for “${ACTIONS[button.dataset.action].name}”, or Escape.`);
  }

  #stop() {
    this.#waiting?.removeAttribute("aria-pressed");
    if (this.#waiting) {
      this.#waiting = null;
      this.#update();
    }
  }

  #take(event) {
    if (!this.#waiting || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.toLowerCase();
    if (key === "shift") return; // half of a key
    if (key === "tab") {
      this.#stop();
      return;
    }
    event.preventDefault();
    const { action } = this.#waiting.dataset;
    if (key === "escape") {
      this.#stop();
      this.#say("");
      return;
    }
    const refusal = this.#keys.change(action, key);
    this.#say(refusal ?? `“${ACTIONS[action].name}” is ${written(key)} now.`);
    if (!refusal) this.#stop();
  }

  #say(text) {
    this.#part("#keys-say").textContent = text;
  }
}
