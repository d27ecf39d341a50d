// Pictures with two highlighted segments. What is slow (fetching, decoding, tracing and drawing
// masks) is done ahead, for the next questions, and off the page's thread.

import { drawMasks, margin, segmentsOf } from "./ink.js";

const GROUND = "#0e0f11";
const KEPT = 12; // more than are ever fetched ahead, so that the one on screen stays

// Loads pictures once, keeps the latest few.
export class Gallery {
  #loading = new Map();

  get(question) {
    let picture = this.#loading.get(question.id);
    if (!picture) {
      picture = load(question);
      picture.catch(() => this.#loading.delete(question.id));
    }
    this.#loading.delete(question.id);
    this.#loading.set(question.id, picture); // the newest last
    for (const [id, old] of this.#loading) {
      if (this.#loading.size <= KEPT) break;
      this.#loading.delete(id);
      old.then(close, () => {});
    }
    return picture;
  }
}

async function load(question) {
  const names = { subject: question.subject_name, object: question.object_name };
  const [image, overlay] = await Promise.all([
    fetched(question.image_url).then(decode),
    fetched(question.overlay_url).then((blob) => ask({ id: question.id, blob, names })),
  ]);
  return {
    id: question.id,
    image,
    overlay,
    segments: segmentsOf(overlay, names),
    ready: { name: null, image: null, masks: null }, // for one place, mode and ratio
  };
}

// Memory of the graphics card, now and not some time.
function close({ image, ready }) {
  for (const bitmap of [image, ready.image, ready.masks]) bitmap?.close();
}

async function fetched(url) {
  const response = await fetch(url);
  if (response.status === 401) throw new Error("the login has ended");
  if (!response.ok) {
    const content = await response.json().catch(() => ({}));
    throw unshowable(content.detail ?? `error ${response.status}`);
  }
  return response.blob();
}

function unshowable(sentence) {
  return Object.assign(new Error(sentence), { final: true });
}

function decode(blob) {
  return createImageBitmap(blob).catch(() => {
    throw unshowable("the file is not a picture");
  });
}

const asked = new Map();
let tracer = null;
startTracer(); // its script is on its way before the first picture is

function startTracer() {
  tracer = new Worker("/static/tracer.js", { type: "module" });
  tracer.addEventListener("message", ({ data }) => {
    const { resolve, reject } = asked.get(data.ask);
    asked.delete(data.ask);
    if (data.error) reject(unshowable(data.error));
    else resolve(data.reply);
  });
  tracer.addEventListener("error", () => {
    // Its script did not arrive: with the next picture it is tried again.
    for (const { reject } of asked.values()) reject(new Error("the masks were not traced"));
    asked.clear();
    tracer = null;
  });
}

let asks = 0;

function ask(message) {
  if (!tracer) startTracer();
  asks++;
  return new Promise((resolve, reject) => {
    asked.set(asks, { resolve, reject });
    tracer.postMessage({ ask: asks, ...message });
  });
}

/**
 * Scale the picture and draw its masks ahead, so that `draw` only copies.
 *
 * @param {object} picture from `Gallery`.
 * @param {{w, h}} place how large it will be, in device pixels.
 * @param {string} mode of MODES.
 * @param {number} ratio device pixels a CSS pixel.
 */
export async function prepare(picture, { w, h }, mode, ratio) {
  const name = nameOf({ w, h }, mode, ratio);
  if (picture.ready.name === name) return;
  const same = picture.ready.image?.width === w && picture.ready.image.height === h;
  const [image, masks] = await Promise.all([
    same
      ? picture.ready.image
      : createImageBitmap(picture.image, {
          resizeWidth: w, resizeHeight: h, resizeQuality: "high",
        }),
    ask({ id: picture.id, size: { w, h }, mode, ratio }),
  ]);
  if (masks) picture.ready = { name, image, masks };
}

function nameOf({ w, h }, mode, ratio) {
  return `${w}x${h} ${mode} ${ratio}`;
}

/**
 * Draw a picture and its masks.
 *
 * @param {HTMLCanvasElement} canvas its size is in device pixels.
 * @param {object} picture from `Gallery`.
 * @param {{x, y, w, h}} place where the picture lies on the canvas, in device pixels.
 * @param {string|null} mode of MODES; null: without masks.
 * @param {number} ratio device pixels a CSS pixel.
 */
export function draw(canvas, picture, place, mode, ratio) {
  const context = canvas.getContext("2d", { alpha: false });
  const { ready } = picture;
  context.fillStyle = GROUND;
  context.fillRect(0, 0, canvas.width, canvas.height);
  if (ready.image?.width === place.w && ready.image.height === place.h) {
    context.drawImage(ready.image, place.x, place.y);
  } else {
    context.imageSmoothingQuality = "high";
    context.drawImage(picture.image, place.x, place.y, place.w, place.h);
  }
  if (mode === null) return;
  if (ready.name === nameOf(place, mode, ratio)) {
    context.drawImage(ready.masks, place.x - margin(ratio), place.y - margin(ratio));
  } else {
    drawMasks(context, picture, place, mode, ratio);
  }
}
