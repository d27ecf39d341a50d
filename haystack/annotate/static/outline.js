// From a map of pixels to outlines that stay sharp at any zoom. Pure functions, no page.

export const SUBJECT = 1;
export const OBJECT = 2;

/**
 * Which segment each pixel of a decoded overlay belongs to.
 *
 * @param {Uint8ClampedArray} pixels RGBA; subject and object are told apart by which of red and
 *   blue is larger (`OVERLAY_PALETTE` of the service), background by its alpha.
 * @returns {Uint8Array} 0, SUBJECT or OBJECT.
 */
export function labels(pixels) {
  const map = new Uint8Array(pixels.length / 4);
  for (let index = 0, at = 0; index < map.length; index++, at += 4) {
    if (pixels[at + 3] >= 128) map[index] = pixels[at] > pixels[at + 2] ? OBJECT : SUBJECT;
  }
  return map;
}

/**
 * The outline of one segment.
 *
 * @param {Uint8Array} map from `labels`.
 * @param {number} width of the map in pixels.
 * @param {number} label SUBJECT or OBJECT.
 * @returns {{rings: Float32Array[], box: {left, top, right, bottom}}|null} closed rings (x0, y0,
 *   x1, y1, ...) in pixels, holes among them, inside to the right; null where no pixel is labelled.
 */
export function outline(map, width, label) {
  const height = map.length / width;
  const box = { left: width, top: height, right: 0, bottom: 0 };
  const inside = (x, y) =>
    x >= 0 && y >= 0 && x < width && y < height && map[y * width + x] === label;
  const seen = new Uint8Array(map.length); // pixels whose upper edge is in a ring already
  const rings = [];
  for (let y = 0, at = 0; y < height; y++) {
    for (let x = 0; x < width; x++, at++) {
      if (map[at] !== label) continue;
      if (x < box.left) box.left = x;
      if (x >= box.right) box.right = x + 1;
      if (y < box.top) box.top = y;
      box.bottom = y + 1;
      // Every ring, a hole's too, has an edge with the segment below it.
      if (!seen[at] && (y === 0 || map[at - width] !== label)) {
        rings.push(follow(inside, seen, width, x, y));
      }
    }
  }
  return rings.length ? { rings, box } : null;
}

// Walk along pixel edges with the segment to the right, from the upper edge of pixel (x, y). A ring
// goes through the middles of those edges, so that slopes are slopes and not stairs; points on a
// straight line are left out. A single pixel becomes a diamond: nothing vanishes.
function follow(inside, seen, width, startX, startY) {
  const points = [];
  let [x, y, dx, dy] = [startX, startY, 1, 0];
  let [stepX, stepY] = [0, 0];
  do {
    if (dx === 1) seen[y * width + x] = 1;
    const [midX, midY] = [x + dx / 2, y + dy / 2];
    const last = points.length - 2;
    if (last >= 0) {
      const [nextX, nextY] = [midX - points[last], midY - points[last + 1]];
      // The same direction as the step before: the point before is on the line.
      if (last >= 2 && nextX * stepY === nextY * stepX && nextX * stepX + nextY * stepY > 0) {
        points.length = last;
      } else {
        [stepX, stepY] = [nextX, nextY];
      }
    }
    points.push(midX, midY);
    x += dx;
    y += dy;
    // The two pixels ahead, seen from the corner that was reached.
    const aheadRight = inside(x + (dx - dy - 1) / 2, y + (dy + dx - 1) / 2);
    const aheadLeft = inside(x + (dx + dy - 1) / 2, y + (dy - dx - 1) / 2);
    if (!aheadRight) [dx, dy] = [-dy, dx];
    else if (aheadLeft) [dx, dy] = [dy, -dx];
  } while (x !== startX || y !== startY || dx !== 1 || dy !== 0);
  return Float32Array.from(points);
}
