// A worker: fetches overlays and traces them, so that keys never wait for it.

import { OBJECT, SUBJECT, labels, outline } from "./outline.js";

const ROLES = [["object", OBJECT], ["subject", SUBJECT]]; // drawn in this order

addEventListener("message", async ({ data: { id, blob } }) => {
  try {
    const overlay = await createImageBitmap(blob, { colorSpaceConversion: "none" });
    const { width, height } = overlay;
    const context = new OffscreenCanvas(width, height).getContext("2d", {
      willReadFrequently: true,
    });
    context.drawImage(overlay, 0, 0);
    overlay.close();
    const map = labels(context.getImageData(0, 0, width, height).data);
    const segments = [];
    for (const [role, label] of ROLES) {
      const traced = outline(map, width, label);
      if (traced) segments.push({ role, ...traced });
    }
    postMessage({ id, width, height, segments });
  } catch {
    postMessage({ id, error: "the masks are not a picture" });
  }
});
