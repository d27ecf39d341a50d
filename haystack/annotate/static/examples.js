// Pictures of a relation, each with its pair outlined: A in blue, B in orange.

import { element } from "./shell.js";

export function examples(pictures) {
  return pictures.map(({ image_url, subject_name, object_name }, position) => {
    const pair = subject_name === null ? "A and B" : `A ${subject_name}, B ${object_name}`;
    const image = element("img", {
      src: image_url, alt: `Picture ${position + 1}: ${pair}`, decoding: "async",
    });
    const caption = subject_name === null ? [] : [element("figcaption", {},
      named("a", "A", subject_name), named("b", "B", object_name))];
    return element("figure", {}, image, ...caption);
  });
}

function named(kind, letter, name) {
  return element("span", {}, element("i", { class: `mark ${kind}`, "aria-hidden": "true" }, letter),
    name);
}

// For an idempotency key; crypto.randomUUID is missing where the page is not served securely.
export function randomKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
