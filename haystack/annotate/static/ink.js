// How masks and names are drawn, by the page and by the worker that draws ahead.

export const MODES = ["outline and fill", "outline", "fill", "box"];
const COLOURS = { subject: "#56b4e9", object: "#e69f00" };
const DARK = "#000000b8";
const MARGIN = 4; // CSS pixels around a picture, so that lines at its border are seen
const TINY = 20; // CSS pixels: what is smaller gets a ring around it

// In device pixels.
export function margin(ratio) {
  return Math.round(MARGIN * ratio);
}

/**
 * What is drawn of an overlay.
 *
 * @param {{width, height, segments}} overlay as it was traced.
 * @param {{subject: string, object: string}} names
 */
export function segmentsOf({ width, height, segments }, names) {
  return segments.map(({ role, rings, box }) => ({
    role,
    name: names[role],
    path: pathOf(rings), // in pixels of the overlay
    // Fractions of the picture.
    x: box.left / width,
    y: box.top / height,
    w: (box.right - box.left) / width,
    h: (box.bottom - box.top) / height,
  }));
}

function pathOf(rings) {
  const path = new Path2D();
  for (const ring of rings) {
    path.moveTo(ring[0], ring[1]);
    for (let at = 2; at < ring.length; at += 2) path.lineTo(ring[at], ring[at + 1]);
    path.closePath();
  }
  return path;
}

/**
 * @param {CanvasRenderingContext2D|OffscreenCanvasRenderingContext2D} context
 * @param {{overlay: {width, height}, segments: object[]}} picture
 * @param {{x, y, w, h}} place where the picture lies on the canvas, in device pixels.
 * @param {string} mode of MODES.
 * @param {number} ratio device pixels a CSS pixel.
 */
export function drawMasks(context, picture, place, mode, ratio) {
  const boxes = picture.segments.map((segment) => onCanvas(segment, place));
  if (mode !== "box") paint(context, picture, place, mode, ratio);
  picture.segments.forEach(({ role }, at) => {
    if (mode === "box") frame(context, boxes[at], role, ratio);
    if (Math.max(boxes[at].w, boxes[at].h) < TINY * ratio) ring(context, boxes[at], role, ratio);
  });
  label(context, picture.segments, boxes, place, ratio);
}

function onCanvas({ x, y, w, h }, place) {
  return { x: place.x + x * place.w, y: place.y + y * place.h, w: w * place.w, h: h * place.h };
}

// Dark beneath colour, so that a line is seen on bright and on dark ground. Most of the coloured line
// lies inside its own segment: where two touch, both are seen, and each on its side. A part of it
// is on the edge itself, for segments that are thinner than the line.
function paint(context, { overlay, segments }, place, mode, ratio) {
  const scale = place.w / overlay.width;
  context.setTransform(scale, 0, 0, place.h / overlay.height, place.x, place.y);
  context.lineJoin = "round";
  const line = (2.25 * ratio) / scale;
  const rim = (1.75 * ratio) / scale;
  if (mode !== "outline") {
    context.globalAlpha = mode === "fill" ? 0.55 : 0.2;
    for (const { path, role } of segments) {
      context.fillStyle = COLOURS[role];
      context.fill(path, "evenodd");
    }
    context.globalAlpha = 1;
  }
  if (mode === "fill") {
    context.lineWidth = rim; // what is thinner than a pixel would be lost without a line
    for (const { path, role } of segments) {
      context.strokeStyle = COLOURS[role];
      context.stroke(path);
    }
  } else {
    context.lineWidth = 2.4 * rim;
    context.strokeStyle = DARK;
    for (const { path } of segments) context.stroke(path);
    for (const { path, role } of segments) {
      context.strokeStyle = COLOURS[role];
      context.lineWidth = 0.8 * rim;
      context.stroke(path);
      context.save();
      context.clip(path, "evenodd");
      context.lineWidth = 2 * line;
      context.stroke(path);
      context.restore();
    }
  }
  context.setTransform(1, 0, 0, 1, 0, 0);
}

function frame(context, { x, y, w, h }, role, ratio) {
  for (const [style, wide] of [[DARK, 5 * ratio], [COLOURS[role], 2.5 * ratio]]) {
    context.strokeStyle = style;
    context.lineWidth = wide;
    context.strokeRect(x, y, w, h);
  }
}

function ring(context, { x, y, w, h }, role, ratio) {
  for (const [style, wide] of [[DARK, 4.5 * ratio], [COLOURS[role], 2 * ratio]]) {
    context.strokeStyle = style;
    context.lineWidth = wide;
    context.beginPath();
    context.arc(x + w / 2, y + h / 2, TINY * ratio, 0, 2 * Math.PI);
    context.stroke();
  }
}

// Names beside the segments: colour is never the only sign. Of the places around a segment, a name
// takes the one where it covers least of what must be seen.
function label(context, segments, boxes, place, ratio) {
  const { canvas } = context;
  const size = Math.round(13 * ratio);
  const gap = 6 * ratio;
  const area = cut(place, { x: 0, y: 0, w: canvas.width, h: canvas.height });
  context.font = `600 ${size}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  const taken = [];
  segments.forEach((segment, index) => {
    const box = cut(boxes[index], area);
    if (box.w <= 0 || box.h <= 0) return; // moved out of sight
    const text = segment.name.length > 40 ? `${segment.name.slice(0, 39)}…` : segment.name;
    const w = Math.min(context.measureText(text).width + size * 1.1, canvas.width);
    const h = size * 1.6;
    const small = Math.max(box.w, box.h) < TINY * ratio ? TINY * ratio - box.h / 2 : 0;
    const around = [
      [box.x, box.y - h - gap - small],
      [box.x, box.y + box.h + gap + small],
      [box.x + box.w + gap + small, box.y],
      [box.x - w - gap - small, box.y],
      [box.x + gap, box.y + gap],
      [box.x + box.w - w - gap, box.y + box.h - h - gap],
    ].map(([x, y]) => ({
      x: clamp(x, area.x, area.x + area.w - w),
      y: clamp(y, area.y, area.y + area.h - h),
      w,
      h,
    }));
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

function cut(a, b) {
  const [x, y] = [Math.max(a.x, b.x), Math.max(a.y, b.y)];
  return { x, y, w: Math.min(a.x + a.w, b.x + b.w) - x, h: Math.min(a.y + a.h, b.y + b.h) - y };
}

function overlap(a, b) {
  const { w, h } = cut(a, b);
  return Math.max(0, w) * Math.max(0, h);
}

export function clamp(value, low, high) {
  return Math.max(low, Math.min(value, Math.max(low, high)));
}
