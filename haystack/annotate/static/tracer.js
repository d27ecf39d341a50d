// A worker: traces overlays and draws their masks ahead, so that keys never wait for it.

import { drawMasks, margin, segmentsOf } from "./ink.js";
import { OBJECT, SUBJECT, labels, outline } from "./outline.js";

const ROLES = [["object", OBJECT], ["subject", SUBJECT]]; // drawn in this order
const KEPT = 24; // twice as many as the page keeps

const pictures = new Map(); // id -> what `drawMasks` needs

addEventListener("message", async ({ data: { ask, ...wanted } }) => {
  try {
    const reply = wanted.blob ? await trace(wanted) : drawn(wanted);
    postMessage({ ask, reply }, reply instanceof ImageBitmap ? [reply] : []);
  } catch {
    postMessage({ ask, error: "the masks are not a picture" });
  }
});

async function trace({ id, blob, names }) {
  const overlay = await createImageBitmap(blob, { colorSpaceConversion: "none" });
  const { width, height } = overlay;
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.drawImage(overlay, 0, 0);
  overlay.close();
  const map = labels(context.getImageData(0, 0, width, height).data);
  const segments = [];
  for (const [role, label] of ROLES) {
    const traced = outline(map, width, label);
    if (traced) segments.push({ role, ...traced });
  }
  const traced = { width, height, segments };
  pictures.delete(id);
  pictures.set(id, { overlay: { width, height }, segments: segmentsOf(traced, names) });
  if (pictures.size > KEPT) pictures.delete(pictures.keys().next().value);
  return traced;
}

// The masks and names alone, with the margin around them; null where the picture is forgotten.
function drawn({ id, size: { w, h }, mode, ratio }) {
  const picture = pictures.get(id);
  if (!picture) return null;
  const free = margin(ratio);
  const canvas = new OffscreenCanvas(w + 2 * free, h + 2 * free);
  drawMasks(canvas.getContext("2d"), picture, { x: free, y: free, w, h }, mode, ratio);
  return canvas.transferToImageBitmap();
}
