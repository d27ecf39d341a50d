// The progress page: asks now and then how the campaign goes, and changes only what has changed, so
// that nothing moves under a reader's eyes, pointer or focus.

import { yieldChart } from "/static/charts.js";
import { element, openShell, request } from "/static/shell.js";

const EVERY_MS = 5_000;

const banner = document.getElementById("banner");
const apart = document.getElementById("apart");
const opened = new Set(); // predicates whose row is unfolded
let summary = null;
let me = null;

// ------------------------------------------------------------------ words

const DASH = "\u2013";
const count = (number) => number.toLocaleString("en");
const percent = (share) => (share === null ? DASH : `${(100 * share).toFixed(0)} %`);
const fixed = (value, digits) => (value === null ? DASH : value.toFixed(digits));

function duration(hours) {
  if (hours === null) return DASH;
  if (hours === 0) return "0";
  const minutes = hours * 60;
  if (minutes < 1) return "< 1 min";
  return minutes < 90 ? `${minutes.toFixed(0)} min` : `${hours.toFixed(1)} h`;
}

function between(interval, scale, digits) {
  if (interval === null) return "";
  return interval.map((end) => (end * scale).toFixed(digits)).join(" to ");
}

const classes = () => (apart.checked ? "three" : "two");

// ------------------------------------------------------------------ keeping what stands

/** Rows of a table body by key: made once, filled each time, in the given order. */
function keep(body, items, keyOf, make, fill) {
  const known = new Map([...body.children].map((row) => [row.dataset.key, row]));
  let place = body.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    const row = known.get(key) ?? make(item);
    row.dataset.key = key;
    known.delete(key);
    fill(row, item);
    if (row === place) place = place.nextElementSibling;
    else body.insertBefore(row, place);
  }
  for (const row of known.values()) row.remove();
}

/** Set what an element holds, unless it holds it already. */
function put(where, ...content) {
  const now = where.cloneNode(false);
  now.append(...content);
  if (!where.isEqualNode(now)) where.replaceChildren(...now.childNodes);
}

const small = (text) => element("small", {}, text);
const column = (row, place) => row.children[place];

function cells(number) {
  return Array.from({ length: number }, () => element("td", { class: "number" }));
}

// ------------------------------------------------------------------ predicates

function predicateRow(item) {
  const button = element("button", { type: "button", "aria-expanded": "false" }, item.name);
  const row = element("tr", {}, element("th", { scope: "row" }, button), ...cells(10));
  row.children[4].className = row.children[10].className = "";
  button.addEventListener("click", () => {
    const open = !opened.delete(item.predicate);
    if (open) opened.add(item.predicate);
    draw();
  });
  return row;
}

function fillPredicate(row, item) {
  const yielded = item.share.value;
  const agreement = item.agreement[classes()];
  row.querySelector("button").setAttribute("aria-expanded", String(opened.has(item.predicate)));
  put(column(row, 1), count(item.judged));
  put(column(row, 2), count(item.needles));
  put(column(row, 3), yielded === null ? DASH : (100 * yielded).toFixed(1));
  put(column(row, 4), item.judged ? chart(item, {}) : "");
  put(column(row, 5), item.baseline === null ? DASH : (100 * item.baseline).toFixed(2));
  put(column(row, 6), item.pace === null ? DASH : count(Math.round(item.pace)));
  put(column(row, 7), count(item.to_ask));
  put(column(row, 8), duration(item.hours_to_go));
  put(column(row, 9), fixed(agreement.alpha, 2));
  put(column(row, 10), ...advice(item));
}

function advice({ advice: said, judged }) {
  if (said.stop) return [element("span", { class: "stop" }, "worth stopping")];
  if (!judged) return [DASH];
  return ["go on"];
}

function chart(item, options) {
  const latest = item.curve.recent.at(-1) ?? null;
  const label =
    `Yield of ${item.name}: ${fixed(100 * item.share.value, 1)} needles per 100 in ` +
    `${count(item.judged)} questions` +
    (latest === null ? "" : `, ${fixed(latest, 1)} in the latest ${item.curve.window}`) +
    (item.baseline === null ? "" : `, ${fixed(100 * item.baseline, 2)} at random`);
  const random = item.baseline === null ? null : 100 * item.baseline;
  return yieldChart(item.curve, random, label, options);
}

function moreRow() {
  return element("tr", { class: "more" }, element("td", { colspan: 11 }));
}

function fillMore(row, { item }) {
  const verdicts = [
    ["correct", "Correct"], ["incorrect", "Incorrect"], ["no_relation", "No relation"],
    ["skip", "Skipped"], ["subject_faulty", "Subject mask faulty"],
    ["object_faulty", "Object mask faulty"],
  ];
  const answers = simpleTable(
    ["Answer", "Answers"], verdicts.map(([key, name]) => [name, count(item.verdicts[key] ?? 0)]),
  );
  const rounds = simpleTable(
    ["Round", "Judged", "Needles", "Per 100"],
    item.rounds.map((one) => [
      String(one.round), count(one.judged), count(one.needles),
      one.judged ? ((100 * one.needles) / one.judged).toFixed(1) : DASH,
    ]),
  );
  const said = item.advice;
  const reason = said.stop
    ? `${said.needles} needles in a block of ${count(said.judged)} questions: the yield is below ` +
      `${(100 * said.upper).toFixed(2)} per 100, and ${(100 * said.target).toFixed(2)} would be ` +
      "worth asking for. Stop, or load a new round of proposals."
    : `${said.needles} needles in the ${count(said.judged)} latest of the ${count(said.needed)} ` +
      "questions that it takes to tell whether the yield is below " +
      `${(100 * said.target).toFixed(2)} per 100.`;
  const share = item.share.interval === null ? "" :
    `95 % interval of the yield: ${between(item.share.interval, 100, 1)} per 100. `;
  put(
    row.firstElementChild,
    element("div", { class: "parts" },
      item.judged ? chart(item, { width: 420, height: 190, axes: true }) : "", answers, rounds),
    element("p", {}, `${share}${reason} ${agreed(item.agreement[classes()])}`),
  );
}

function agreed(found) {
  if (!found.items) return "No question was answered by two.";
  const ends = found.alpha_interval === null ? "" :
    ` (95 % interval ${between(found.alpha_interval, 1, 2)})`;
  return `${count(found.items)} questions were answered by two or more: ` +
    `${percent(found.observed)} of pairs the same, Krippendorff's alpha ` +
    `${fixed(found.alpha, 2)}${ends}.`;
}

function simpleTable(header, rows) {
  return element("table", {},
    element("thead", {}, element("tr", {},
      ...header.map((name, i) => element("th", { scope: "col", class: i ? "number" : null }, name)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {},
      ...row.map((text, i) => i === 0
        ? element("th", { scope: "row" }, text) : element("td", { class: "number" }, text))))),
  );
}

// ------------------------------------------------------------------ the rest

function total(name, value, note = "") {
  return element("div", {},
    element("dt", {}, name), element("dd", {}, value, ...(note ? [small(note)] : [])));
}

function fillTotals() {
  const { judged, needles, active } = summary;
  const perHundred = judged ? `${((100 * needles) / judged).toFixed(1)} per 100` : "";
  const people = active === 1 ? "the one person" : `the ${count(active)} people`;
  const clock = summary.clock_hours_to_go === null
    ? "nobody is at work now"
    : `${duration(summary.clock_hours_to_go)} with ${people} at work now`;
  put(document.getElementById("totals"),
    total("Needles", count(needles), perHundred),
    total("Judged questions", count(judged)),
    total("Answers", count(summary.answers), `in ${duration(summary.hours)} of work`),
    total("Answers still needed", count(summary.to_ask)),
    total("Time needed", duration(summary.hours_to_go),
      summary.to_ask ? `for one person; ${clock}` : ""));
  const stopped = summary.predicates.filter((item) => item.advice.stop).map((item) => item.name);
  const box = document.getElementById("advice");
  box.hidden = !stopped.length;
  put(box, element("b", {}, "Worth stopping: "), `${stopped.join(", ")}. Their latest questions ` +
    "yielded fewer needles than are worth asking for, or than pairs at random would.");
}

function fillAgreement() {
  const found = summary.agreement[classes()];
  document.getElementById("no-agreement").hidden = found.items > 0;
  const list = document.getElementById("agreement");
  list.hidden = !found.items;
  const interval = (ends) => (ends === null ? "" : `95 % interval: ${between(ends, 1, 2)}`);
  put(list,
    total("Questions answered by two or more", count(found.items)),
    total("Same answer, of pairs", percent(found.observed)),
    total("Krippendorff's alpha", fixed(found.alpha, 2), interval(found.alpha_interval)),
    total("Fleiss' kappa", fixed(found.fleiss, 2), found.fleiss_items
      ? [interval(found.fleiss_interval),
        `${count(found.fleiss_items)} questions with ${found.fleiss_raters} answers`]
        .filter(Boolean).join("; ")
      : ""));
  document.getElementById("pairs-box").hidden = !summary.pairs.length;
  put(document.getElementById("pairs-count"), `(${count(summary.pairs.length)})`);
  keep(document.querySelector("#pairs tbody"), summary.pairs,
    (pair) => JSON.stringify([pair.first, pair.second]),
    (pair) => element("tr", {},
      element("th", { scope: "row" }, `${pair.first} and ${pair.second}`), ...cells(3)),
    (row, pair) => {
      put(column(row, 1), count(pair.items));
      put(column(row, 2), percent(pair.observed[classes()]));
      put(column(row, 3), fixed(pair.kappa[classes()], 2));
    });
}

function shareOf(found) {
  if (!found.trials) return [DASH];
  const interval = `${found.hits} of ${found.trials}, ${between(found.interval, 100, 0)} %`;
  return [`${percent(found.value)} `, small(interval)];
}

function fillPeople() {
  document.getElementById("no-people").hidden = summary.people.length > 0;
  document.getElementById("own-hint").hidden = me.role === "lead";
  keep(document.querySelector("#people tbody"), summary.people, (person) => person.name,
    (person) => element("tr", {}, element("th", { scope: "row" }, person.name), ...cells(8)),
    (row, person) => {
      const said = (verdict) => person.verdicts[verdict] ?? 0;
      put(row.firstElementChild, person.name, ...(person.active ? [small(" at work")] : []));
      put(column(row, 1), count(person.answers));
      put(column(row, 2), count(said("correct")));
      put(column(row, 3), count(said("skip")));
      put(column(row, 4), count(said("subject_faulty") + said("object_faulty")));
      put(column(row, 5), duration(person.hours));
      put(column(row, 6), person.pace === null ? DASH : count(Math.round(person.pace)));
      put(column(row, 7), ...shareOf(person.gold[classes()]));
      put(column(row, 8), ...shareOf(person.repeats[classes()]));
    });
}

function fillFigures(figures) {
  document.getElementById("figures-box").hidden = !Object.keys(figures).length;
  put(document.getElementById("figures"), ...Object.entries(figures).map(([name, title]) =>
    element("li", {}, element("a", { href: `/api/figures/${name}.svg`, download: "" }, title))));
}

function draw() {
  const rows = summary.predicates.flatMap((item) =>
    opened.has(item.predicate) ? [{ item }, { item, more: true }] : [{ item }]);
  keep(document.querySelector("#predicates tbody"), rows,
    ({ item, more }) => (more ? `more ${item.predicate}` : item.predicate),
    ({ item, more }) => (more ? moreRow() : predicateRow(item)),
    (row, { item, more }) => (more ? fillMore(row, { item }) : fillPredicate(row, item)));
  document.getElementById("no-predicates").hidden = rows.length > 0;
  fillTotals();
  fillAgreement();
  fillPeople();
}

// ------------------------------------------------------------------ asking

async function look() {
  try {
    const message = await request("/api/summary");
    summary = message.summary;
    draw();
    fillFigures(message.figures);
    document.getElementById("main").setAttribute("aria-busy", "false");
    banner.hidden = true;
  } catch (error) {
    if (error.status === undefined) throw error;
    refuse(error);
  }
}

function refuse({ status, message }) {
  banner.textContent = status === 0
    ? "No connection. What you see is not new; it is asked for again." : message;
  banner.hidden = false;
}

async function follow() {
  for (;;) {
    if (document.visibilityState === "visible") await look();
    await new Promise((resolve) => {
      const wake = () => {
        clearTimeout(timer);
        document.removeEventListener("visibilitychange", wake);
        resolve();
      };
      const timer = setTimeout(wake, EVERY_MS);
      document.addEventListener("visibilitychange", wake);
    });
  }
}

apart.addEventListener("change", draw);
try {
  me = await openShell();
} catch (error) {
  refuse(error);
  throw error;
}
await follow();
