// Pictures with two highlighted segments. Everything that is slow (fetching, decoding, tracing
// outlines) is done ahead, so that showing the next picture is two drawImage calls.

export const MODES = ["outline and fill", "outline", "fill", "box"];
const COLOURS = { subject: "#56b4e9", object: "#e69f00" };
const KEPT = 16;
const AROUND = [...Array(12).keys()].map((step) => (step * Math.PI) / 6);

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
    for (const id of this.#loading.keys()) {
      if (this.#loading.size <= KEPT) break;
      this.#loading.delete(id);
    }
    return picture;
  }
}

async function load(question) {
  const [image, overlay] = await Promise.all([
    bitmap(question.image_url),
    bitmap(question.overlay_url),
  ]);
  return {
    image,
    segments: separate(overlay, { subject: question.subject_name, object: question.object_name }),
    layers: new Map(),
  };
}

async function bitmap(url) {
  const response = await fetch(url);
  if (!response.ok) {
    const content = await response.json().catch(() => ({}));
    throw Object.assign(new Error(content.detail ?? `error ${response.status}`), { final: true });
  }
  const blob = await response.blob();
  try {
    return await createImageBitmap(blob);
  } catch {
    throw Object.assign(new Error("the file is not a picture"), { final: true });
  }
}

function surface(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, width);
  canvas.height = Math.max(1, height);
  return canvas;
}

// The overlay's two segments as two masks, each cut to its box; boxes are fractions of the picture.
function separate(overlay, names) {
  const { width, height } = overlay;
  const context = surface(width, height).getContext("2d", { willReadFrequently: true });
  context.drawImage(overlay, 0, 0);
  const pixels = context.getImageData(0, 0, width, height).data;
  const boxes = {
    subject: { left: width, top: height, right: 0, bottom: 0 },
    object: { left: width, top: height, right: 0, bottom: 0 },
  };
  const kind = (at) => (pixels[at] > pixels[at + 2] ? "object" : "subject");
  for (let y = 0, at = 0; y < height; y++) {
    for (let x = 0; x < width; x++, at += 4) {
      if (pixels[at + 3] < 128) continue;
      const box = boxes[kind(at)];
      if (x < box.left) box.left = x;
      if (x >= box.right) box.right = x + 1;
      if (y < box.top) box.top = y;
      if (y >= box.bottom) box.bottom = y + 1;
    }
  }
  return Object.entries(boxes)
    .filter(([, box]) => box.right > box.left)
    .map(([role, box]) => {
      const [w, h] = [box.right - box.left, box.bottom - box.top];
      const mask = surface(w, h);
      const target = mask.getContext("2d");
      const cut = target.createImageData(w, h);
      for (let y = 0, to = 3; y < h; y++) {
        for (let x = 0; x < w; x++, to += 4) {
          const at = ((y + box.top) * width + x + box.left) * 4;
          if (pixels[at + 3] >= 128 && kind(at) === role) cut.data[to] = 255;
        }
      }
      target.putImageData(cut, 0, 0);
      return {
        role,
        name: names[role],
        mask,
        x: box.left / width,
        y: box.top / height,
        w: w / width,
        h: h / height,
      };
    });
}

// Where the picture lies on a canvas of this size.
function fit(image, width, height) {
  const scale = Math.min(width / image.width, height / image.height);
  const [w, h] = [Math.round(image.width * scale), Math.round(image.height * scale)];
  return { x: Math.round((width - w) / 2), y: Math.round((height - h) / 2), w, h };
}

// Trace the masks for a canvas of this size, so that `show` has nothing left to do.
export function trace(picture, width, height, mode, ratio) {
  const name = `${width}x${height} ${mode}`;
  let layer = picture.layers.get(name);
  if (!layer) {
    const place = fit(picture.image, width, height);
    layer = surface(place.w, place.h);
    const context = layer.getContext("2d");
    for (const segment of picture.segments) paint(context, segment, place, mode, ratio);
    label(context, picture.segments, place, ratio);
    picture.layers.clear(); // sizes and modes that were left behind
    picture.layers.set(name, layer);
  }
  return layer;
}

export function show(canvas, picture, mode, hidden) {
  const context = canvas.getContext("2d", { alpha: false });
  const { width, height } = canvas;
  context.fillStyle = "#0e0f11";
  context.fillRect(0, 0, width, height);
  const place = fit(picture.image, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(picture.image, place.x, place.y, place.w, place.h);
  if (!hidden) {
    context.drawImage(trace(picture, width, height, mode, devicePixelRatio), place.x, place.y);
  }
}

function paint(context, segment, place, mode, ratio) {
  const [x, y] = [segment.x * place.w, segment.y * place.h];
  const [w, h] = [segment.w * place.w, segment.h * place.h];
  const colour = COLOURS[segment.role];
  const line = 2.5 * ratio;
  if (mode === "box") {
    for (const [style, wide] of [["#000000b0", line + 2 * ratio], [colour, line]]) {
      context.strokeStyle = style;
      context.lineWidth = wide;
      context.strokeRect(x, y, w, h);
    }
    return;
  }
  // Room for the outline around the mask's box.
  const margin = Math.ceil(line + 2 * ratio);
  const pad = surface(Math.ceil(w) + 2 * margin, Math.ceil(h) + 2 * margin);
  const draft = pad.getContext("2d");
  const stamp = (dx, dy) => draft.drawImage(segment.mask, margin + dx, margin + dy, w, h);
  const tint = (style) => {
    draft.globalCompositeOperation = "source-in";
    draft.fillStyle = style;
    draft.fillRect(0, 0, pad.width, pad.height);
  };
  const commit = (alpha) => {
    context.globalAlpha = alpha;
    context.drawImage(pad, x - margin, y - margin);
    context.globalAlpha = 1;
    draft.globalCompositeOperation = "source-over";
    draft.clearRect(0, 0, pad.width, pad.height);
  };
  if (mode !== "outline") {
    stamp(0, 0);
    tint(colour);
    commit(mode === "fill" ? 0.55 : 0.22);
  }
  if (mode !== "fill") {
    // A ring is the mask moved all around, less the mask: a dark one first, to stand out anywhere.
    for (const [style, reach, alpha] of [["#000", line + 1.5 * ratio, 0.6], [colour, line, 1]]) {
      for (const angle of AROUND) stamp(reach * Math.cos(angle), reach * Math.sin(angle));
      tint(style);
      draft.globalCompositeOperation = "destination-out";
      stamp(0, 0);
      commit(alpha);
    }
  }
}

// Names beside the segments: colour is never the only sign. Of the places around a segment, a name
// takes the one where it covers least of what must be seen.
function label(context, segments, place, ratio) {
  const size = Math.round(13 * ratio);
  const gap = 6 * ratio;
  context.font = `600 ${size}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  const boxes = segments.map(({ x, y, w, h }) => ({
    x: x * place.w, y: y * place.h, w: w * place.w, h: h * place.h,
  }));
  const taken = [];
  segments.forEach((segment, index) => {
    const text = segment.name.length > 40 ? `${segment.name.slice(0, 39)}…` : segment.name;
    const w = Math.min(context.measureText(text).width + size * 1.1, place.w);
    const h = size * 1.6;
    const box = boxes[index];
    const around = [
      [box.x, box.y - h - gap],
      [box.x, box.y + box.h + gap],
      [box.x + box.w + gap, box.y],
      [box.x - w - gap, box.y],
      [box.x + gap, box.y + gap],
      [box.x + box.w - w - gap, box.y + box.h - h - gap],
    ].map(([x, y]) => ({ x: clamp(x, 0, place.w - w), y: clamp(y, 0, place.h - h), w, h }));
    const cost = (spot) =>
      boxes.reduce((sum, other) => sum + overlap(spot, other), 0) +
      taken.reduce((sum, other) => sum + 20 * overlap(spot, other), 0);
    const spot = around.reduce((best, next) => (cost(next) < cost(best) ? next : best));
    taken.push(spot);
    context.fillStyle = COLOURS[segment.role];
    context.beginPath();
    context.roundRect(spot.x, spot.y, w, h, h / 3.5);
    context.fill();
    context.fillStyle = "#101114";
    context.fillText(text, spot.x + size * 0.55, spot.y + h / 2 + ratio / 2, w - size * 1.1);
  });
}

function overlap(a, b) {
  const w = Math.min(a.x + a.w, b.x + b.w) - Math.max(a.x, b.x);
  const h = Math.min(a.y + a.h, b.y + b.h) - Math.max(a.y, b.y);
  return Math.max(0, w) * Math.max(0, h);
}

function clamp(value, low, high) {
  return Math.max(low, Math.min(value, Math.max(low, high)));
}
