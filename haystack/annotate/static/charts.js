// Yield curves as SVG: small ones for a row of a table, and large ones with axes.

const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** "M x y L x y ..." through the points whose value is known; a gap where it is not. */
function path(xs, values, x, y) {
  let drawn = "";
  let pen = "M";
  values.forEach((value, i) => {
    if (value === null) {
      pen = "M";
      return;
    }
    drawn += `${pen}${x(xs[i]).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  });
  return drawn;
}

/** The next of 1, 2, 5, 10, 20, ... that is not below a number. */
export function niceAbove(number) {
  const decade = 10 ** Math.floor(Math.log10(Math.max(number, 1e-9)));
  return [1, 2, 5, 10].map((step) => step * decade).find((step) => step >= number * 0.999);
}

/**
 * A yield curve.
 *
 * @param {{judged: number[], per_100: number[], recent: (number|null)[]}} curve
 * @param {number|null} random needles per 100 at random.
 * @param {string} label what a screen reader says instead.
 * @param {{width?: number, height?: number, axes?: boolean}} options
 * @returns {SVGElement}
 */
export function yieldChart(curve, random, label, { width = 120, height = 26, axes = false } = {}) {
  const edge = axes ? { left: 34, right: 10, top: 8, bottom: 32 } : { left: 1, right: 1, top: 2, bottom: 2 };
  const last = curve.judged.at(-1) ?? 1;
  // The first few questions say little, and would squeeze the rest.
  const settled = curve.per_100.filter((_, i) => curve.judged[i] >= Math.min(20, last));
  const known = curve.recent.filter((value) => value !== null);
  const top = niceAbove(Math.max(1, random ?? 0, ...settled, ...known));
  const right = width - edge.right;
  const bottom = height - edge.bottom;
  const x = (judged) => edge.left + ((right - edge.left) * judged) / last;
  const y = (value) => bottom - ((bottom - edge.top) * Math.min(value, top)) / top;
  const chart = shape("svg", {
    class: "chart", role: "img", "aria-label": label, width, height, viewBox: `0 0 ${width} ${height}`,
  });
  if (axes) {
    for (const value of [0, top / 2, top]) {
      const text = shape("text", { x: edge.left - 6, y: y(value) + 4, "text-anchor": "end" });
      text.textContent = String(+value.toPrecision(3));
      chart.append(shape("path", { class: "axis", d: `M${edge.left} ${y(value)}H${right}` }), text);
    }
    for (const [judged, anchor] of [[0, "start"], [last, "end"]]) {
      const text = shape("text", { x: x(judged), y: bottom + 14, "text-anchor": anchor });
      text.textContent = String(judged);
      chart.append(text);
    }
    const title = shape("text", {
      x: (edge.left + right) / 2, y: height - 4, "text-anchor": "middle",
    });
    title.textContent = "judged questions (needles per 100)";
    chart.append(title);
  } else {
    chart.append(shape("path", { class: "axis", d: `M${edge.left} ${bottom}H${right}` }));
  }
  if (random !== null) {
    chart.append(shape("path", { class: "random", d: `M${edge.left} ${y(random)}H${right}` }));
  }
  chart.append(
    shape("path", { class: "all", d: path(curve.judged, curve.per_100, x, y) }),
    shape("path", { class: "recent", d: path(curve.judged, curve.recent, x, y) }),
  );
  return chart;
}
