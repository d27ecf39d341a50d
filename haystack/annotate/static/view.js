// Zoom and pan: which part of the picture is on the canvas.

import { clamp, margin } from "./ink.js";

export const NEXT_VIEWS = ["whole", "pair", "same"]; // what a new question shows
const STEP = 1.5;
const PAN = 0.2; // of the canvas, a key press
const CLOSEST = 8; // CSS pixels a pixel of the picture
const DOUBLE = 2.5;

export class View {
  #canvas;
  #picture = null;
  #zoom = 1; // 1: the whole picture fits
  #centre = [0.5, 0.5]; // of what is on the canvas, in fractions of the picture
  #pointers = new Map();
  #changed;

  // changed(): the place of the picture has changed.
  constructor(canvas, changed) {
    this.#canvas = canvas;
    this.#changed = changed;
    this.next = NEXT_VIEWS[0];
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
      canvas.addEventListener(end, (event) => this.#pointers.delete(event.pointerId));
    }
    canvas.addEventListener("dblclick", (event) => this.#double(event));
  }

  get zoomed() {
    return this.#zoom > 1;
  }

  get zoom() {
    return this.#zoom;
  }

  // Another picture comes on the canvas.
  show(picture) {
    const isNew = this.#picture !== picture;
    this.#picture = picture;
    if (!isNew || this.next === "same") return;
    this.#set(1, [0.5, 0.5]);
    if (this.next === "pair") this.#fit();
  }

  // Where the picture lies, in device pixels.
  place() {
    const { width, height } = this.#canvas;
    const { w, h } = this.#size();
    const [x, y] = [width / 2 - this.#centre[0] * w, height / 2 - this.#centre[1] * h];
    return { x: Math.round(x), y: Math.round(y), w, h };
  }

  // The canvas has another size.
  resized() {
    if (this.#picture) this.#set(this.#zoom, this.#centre);
  }

  whole() {
    this.#set(1, [0.5, 0.5]);
  }

  // The two segments as large as they fit; the whole picture if they are already.
  pair() {
    const before = [this.#zoom, ...this.#centre];
    this.#fit();
    if ([this.#zoom, ...this.#centre].every((value, at) => Math.abs(value - before[at]) < 1e-6)) {
      this.whole();
    }
  }

  closer() {
    this.#by(STEP);
  }

  farther() {
    this.#by(1 / STEP);
  }

  // Steps of a fifth of the canvas; false when there is nothing to move.
  pan(stepsX, stepsY) {
    if (!this.zoomed) return false;
    const { w, h } = this.#size();
    const { width, height } = this.#canvas;
    const [x, y] = this.#centre;
    this.#set(this.#zoom, [x + (stepsX * PAN * width) / w, y + (stepsY * PAN * height) / h]);
    return true;
  }

  // How large a picture is when all of it is shown.
  fitted(picture) {
    return this.#size(1, picture);
  }

  #size(zoom = this.#zoom, { image } = this.#picture) {
    const { width, height } = this.#canvas;
    const free = 2 * margin(devicePixelRatio);
    const fit = Math.min((width - free) / image.width, (height - free) / image.height);
    const scale = Math.max(fit, 1e-3) * zoom;
    return { w: Math.round(image.width * scale), h: Math.round(image.height * scale) };
  }

  get #most() {
    const { image } = this.#picture;
    return Math.max(4, (CLOSEST * devicePixelRatio * image.width) / this.#size(1).w);
  }

  #fit() {
    const segments = this.#picture.segments;
    if (segments.length === 0) return;
    const left = Math.min(...segments.map(({ x }) => x));
    const top = Math.min(...segments.map(({ y }) => y));
    const right = Math.max(...segments.map(({ x, w }) => x + w));
    const bottom = Math.max(...segments.map(({ y, h }) => y + h));
    const { w, h } = this.#size(1);
    const { width, height } = this.#canvas;
    const room = 0.8; // a rim of what is around them, and for their names
    const zoom = Math.min(
      (room * width) / ((right - left) * w),
      (room * height) / ((bottom - top) * h),
    );
    this.#set(zoom, [(left + right) / 2, (top + bottom) / 2]);
  }

  // Around a point of the canvas (device pixels), its middle if none is given.
  #by(factor, x = this.#canvas.width / 2, y = this.#canvas.height / 2) {
    if (!this.#picture) return;
    const place = this.place();
    const [u, v] = [(x - place.x) / place.w, (y - place.y) / place.h];
    const zoom = clamp(this.#zoom * factor, 1, this.#most);
    const { w, h } = this.#size(zoom);
    const { width, height } = this.#canvas;
    this.#set(zoom, [u + (width / 2 - x) / w, v + (height / 2 - y) / h]);
  }

  #set(zoom, [x, y]) {
    if (!this.#picture) return;
    this.#zoom = clamp(zoom, 1, this.#most);
    const { w, h } = this.#size();
    const { width, height } = this.#canvas;
    const free = margin(devicePixelRatio);
    // No emptier than need be: a side that fits is in the middle.
    const within = (centre, size, room) => {
      const half = Math.max(0, 0.5 - (room / 2 - free) / size);
      return clamp(centre, 0.5 - half, 0.5 + half);
    };
    this.#centre = [within(x, w, width), within(y, h, height)];
    this.#changed();
  }

  #point(event) {
    const box = this.#canvas.getBoundingClientRect();
    return [
      (event.clientX - box.left) * devicePixelRatio,
      (event.clientY - box.top) * devicePixelRatio,
    ];
  }

  #wheel(event) {
    event.preventDefault();
    // Lines and pages of some mice, and the pinch of a touchpad, in pixels of a wheel.
    const pixels = event.deltaY * [1, 16, 400][event.deltaMode] * (event.ctrlKey ? 6 : 1);
    this.#by(Math.exp(-pixels / 500), ...this.#point(event));
  }

  #down(event) {
    if (event.button > 1) return;
    this.#canvas.setPointerCapture(event.pointerId);
    this.#pointers.set(event.pointerId, this.#point(event));
  }

  #move(event) {
    const before = this.#pointers.get(event.pointerId);
    if (!before || !this.#picture) return;
    const now = this.#point(event);
    const others = [...this.#pointers].filter(([id]) => id !== event.pointerId);
    this.#pointers.set(event.pointerId, now);
    if (others.length === 1) {
      const [, fixed] = others[0];
      const distance = ([x, y]) => Math.hypot(x - fixed[0], y - fixed[1]);
      if (distance(before) < 1) return;
      this.#by(distance(now) / distance(before), (fixed[0] + now[0]) / 2, (fixed[1] + now[1]) / 2);
    }
    const share = 1 / (others.length + 1); // two fingers move a picture together
    const { w, h } = this.#size();
    this.#set(this.#zoom, [
      this.#centre[0] - (share * (now[0] - before[0])) / w,
      this.#centre[1] - (share * (now[1] - before[1])) / h,
    ]);
  }

  #double(event) {
    if (this.zoomed) this.whole();
    else this.#by(DOUBLE, ...this.#point(event));
  }
}
