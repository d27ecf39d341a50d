// The keyboard: which key does what, and when keys belong to something else.

const KEYS = {
  a: "correct", 1: "correct",
  x: "incorrect", 2: "incorrect",
  n: "no_relation", 3: "no_relation",
  " ": "skip",
  s: "subject_faulty",
  o: "object_faulty",
  backspace: "undo", z: "undo",
  h: "hide",
  m: "mode",
  "[": "previous", "]": "next",
  p: "predicates",
  "?": "help",
};

// press(action) on a key, release(action) when it is let go. Held keys do not repeat.
export function listen(press, release) {
  addEventListener("keydown", (event) => {
    const action = KEYS[event.key.toLowerCase()];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open], #predicates.open")) return;
    // Somebody who walks through the buttons with Tab presses them with Space.
    if (event.key === " " && document.activeElement?.matches("button:focus-visible")) return;
    event.preventDefault();
    if (!event.repeat) press(action);
  });
  addEventListener("keyup", (event) => {
    const action = KEYS[event.key.toLowerCase()];
    if (action) release(action);
  });
  addEventListener("blur", () => release("hide"));
}
