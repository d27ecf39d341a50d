// What annotators dispute, one question at a time; a lead decides by keystroke.

import { SAID } from "./history.js";
import { Gallery, draw } from "./picture.js";
import { element, isElsewhere, openShell, request, say } from "./shell.js";

const at = (id) => document.getElementById(id);
const gallery = new Gallery();
const MARGIN = 4; // CSS pixels around a picture

let disputes = []; // the one on screen first
let more = false;
let picture = null;
let asGold = false;
let busy = false; // one decision at a time: each is saved before the next question comes

async function load() {
  const list = await request("/api/disagreements");
  ({ disputes, more } = list);
  await present();
}

async function present() {
  const dispute = disputes[0] ?? null;
  picture = null;
  setGold(Boolean(dispute?.gold));
  for (const id of ["dispute", "gold", "later"]) at(id).hidden = !dispute;
  const ties = disputes.filter(({ is_tied }) => is_tied).length;
  at("summary").textContent = dispute
    ? `${disputes.length}${more ? " or more" : ""} to settle, ${ties} of them tied.`
    : "Nothing to settle: nobody contradicts anybody.";
  if (!dispute) return;
  const { question, votes } = dispute;
  at("question").replaceChildren(
    element("span", { class: "subject" }, question.subject_name), " ",
    element("b", {}, question.predicate_name), " ",
    element("span", { class: "object" }, question.object_name), " ?",
  );
  at("canvas").setAttribute("aria-label",
    `Picture with two segments: subject ${question.subject_name} in blue, object ` +
    `${question.object_name} in orange`);
  at("votes").tBodies[0].replaceChildren(...votes.map(({ annotator, verdict }) =>
    element("tr", {}, element("td", {}, annotator), element("td", {}, SAID[verdict]))));
  say(at("question").textContent);
  show();
  try {
    const loaded = await gallery.get(question);
    if (disputes[0] !== dispute) return;
    picture = loaded;
    show();
  } catch (error) {
    refuse(error);
  }
  if (disputes[1]) gallery.get(disputes[1].question).catch(() => {}); // told when its turn comes
}

function show() {
  const canvas = at("canvas");
  const ratio = devicePixelRatio;
  canvas.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
  canvas.height = Math.max(1, Math.round(canvas.clientHeight * ratio));
  if (!picture) return;
  const { width, height } = picture.image;
  const scale = Math.min(
    (canvas.width - 2 * MARGIN * ratio) / width, (canvas.height - 2 * MARGIN * ratio) / height,
  );
  const [w, h] = [width * scale, height * scale];
  const place = { x: (canvas.width - w) / 2, y: (canvas.height - h) / 2, w, h };
  draw(canvas, picture, place, "outline and fill", ratio);
}

// Runs one change after the other is saved; what fails is said, and nothing on screen moves on.
async function change(run) {
  if (busy) return;
  busy = true;
  try {
    await run();
    at("banner").hidden = true;
  } catch (error) {
    refuse(error);
  } finally {
    busy = false;
  }
}

function decide(verdict) {
  const dispute = disputes[0];
  if (!dispute || !picture) return;
  change(async () => {
    const { id } = dispute.question;
    await request(`/api/disagreements/${id}/decision`, {
      body: { verdict, key: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}` },
    });
    const gold = asGold ? verdict : null;
    if (gold !== dispute.gold) await request(`/api/gold/${id}`, { method: "PUT", body: { verdict: gold } });
    disputes.shift();
    if (disputes.length === 0 && more) await load();
    else await present();
  });
}

function undo() {
  change(async () => {
    const key = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
    const id = await request("/api/disagreements/undo", { body: { key } });
    if (id === null) {
      say("There is nothing left to undo.");
      return;
    }
    await load();
    const where = disputes.findIndex(({ question }) => question.id === id);
    if (where > 0) disputes.unshift(...disputes.splice(where, 1));
    await present();
  });
}

function later() {
  if (disputes.length < 2) return;
  disputes.push(disputes.shift());
  present();
}

function setGold(value) {
  asGold = value;
  at("gold").setAttribute("aria-pressed", String(value));
}

function refuse(error) {
  at("banner").textContent = error.message;
  at("banner").hidden = false;
}

const KEYS = {
  a: () => decide("correct"), 1: () => decide("correct"),
  x: () => decide("incorrect"), 2: () => decide("incorrect"),
  n: () => decide("no_relation"), 3: () => decide("no_relation"),
  s: () => decide("subject_faulty"),
  o: () => decide("object_faulty"),
  g: () => setGold(!asGold),
  " ": later,
  z: undo, backspace: undo,
  "?": () => at("help").showModal(),
};

addEventListener("keydown", (event) => {
  const run = KEYS[event.key.toLowerCase()];
  if (!run || isElsewhere(event)) return;
  // Space presses the button that has the focus, as everywhere.
  if (event.key === " " && event.target.closest("button, a")) return;
  event.preventDefault();
  if (!event.repeat) run();
});
for (const button of document.querySelectorAll("[data-verdict]")) {
  button.addEventListener("click", () => decide(button.dataset.verdict));
}
at("gold").addEventListener("click", () => setGold(!asGold));
at("later").addEventListener("click", later);
at("undo").addEventListener("click", undo);
at("help-button").addEventListener("click", () => at("help").showModal());
addEventListener("resize", show);
openShell().catch(refuse);
load().catch((error) => {
  at("summary").textContent = "";
  refuse(error);
});
