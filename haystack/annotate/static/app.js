// One predicate at a time, one question at a time. The page moves on as soon as an answer is in
// the outbox; what the service replies refills the queue behind the question on screen.

import { History, SAID, sentence } from "./history.js";
import { MODES } from "./ink.js";
import { ACTIONS, Keys, written } from "./keys.js";
import { Outbox } from "./outbox.js";
import { Gallery, draw, prepare } from "./picture.js";
import { Settings } from "./settings.js";
import { element, openShell, request, say } from "./shell.js";
import { Sidebar } from "./sidebar.js";
import { Signs } from "./signs.js";
import { remember, remembered } from "./stored.js";
import { hold, letGo } from "./tabs.js";
import { NEXT_VIEWS, View } from "./view.js";

const SETTLE_MS = 150; // keys pressed sooner were meant for the picture before
const PATIENCE_MS = 40; // for a picture whose masks are still being drawn
const PROGRESS_MS = 800;
const AHEAD = 7; // pictures that are fetched and traced before their turn

const at = (id) => document.getElementById(id);
const gallery = new Gallery();
const outbox = new Outbox({ saved, refused, changed: () => signs.showState() });
const signs = new Signs(outbox);
const sidebar = new Sidebar(at("predicates"), at("predicate-list"), choose);
const answers = new History(at("recent-list"), revisit);
const view = new View(at("canvas"), redraw);
const keys = new Keys();

let predicate = null;
let queue = []; // the question on screen first
let shown = null; // { question, picture, since } once the picture is on screen
let earlier = null; // { word, verdict } of a question that was answered before
let pressed = null; // when the key or button went down that led to the next picture
let hidden = false;
let mode = one(MODES, remembered("mode"));
let frame = null;
let given = 0; // answers of this visit
let progressTimer = null;
let reload = null; // tries again to reach the service
let handed = []; // ids of the questions that this tab holds
let free = {}; // of the service's last reply: what others hold

// ---------------------------------------------------------------- the question on screen

function current() {
  return queue[0] ?? null;
}

async function present(spoken = "") {
  const question = current();
  shown = null;
  signs.earlier(null);
  if (!question) {
    presentEnd(spoken);
    return;
  }
  writeSentence(question);
  setAnswering(true);
  at("stage").classList.add("waiting");
  const slow = setTimeout(() => signs.notice("Loading the picture…"), 400);
  let picture;
  try {
    picture = await gallery.get(question);
    // Drawn ahead, it only needs copying; on a slow machine it is drawn here and now.
    await Promise.race([prepared(picture), new Promise((done) => setTimeout(done, PATIENCE_MS))]);
  } catch (error) {
    if (current() === question) cannotShow(question, error);
    return;
  } finally {
    clearTimeout(slow);
  }
  if (current() !== question) return;
  signs.notice(null);
  at("stage").classList.remove("waiting");
  shown = { question, picture, since: performance.now() };
  view.show(picture);
  drawNow();
  measure();
  if (earlier) {
    signs.earlier(`${earlier.word}: ${SAID[earlier.verdict]}`, earlier.word === "Answered" && leave);
  }
  say(`${spoken} ${sentence(question)}?`);
  prefetch();
}

// From the key to the frame with the next picture; read by benchmarks, and by who is curious.
function measure() {
  if (pressed === null) return;
  const start = pressed;
  pressed = null;
  requestAnimationFrame(() => {
    const painted = new MessageChannel();
    painted.port1.onmessage = () => {
      performance.clearMeasures("haystack.next");
      performance.measure("haystack.next", { start, end: performance.now() });
    };
    painted.port2.postMessage(null); // after the frame
  });
}

function presentEnd(spoken) {
  at("question").replaceChildren(element("b", {}, sidebar.name(predicate)));
  at("hint").hidden = true;
  at("canvas").setAttribute("aria-label", "No picture");
  setAnswering(false);
  at("stage").classList.add("waiting");
  if (outbox.size > 0) {
    signs.notice("Fetching the next questions…");
    return;
  }
  const open = sidebar.nextOpen(predicate);
  const next = open === predicate ? null : open; // what others hold is open, too
  const name = sidebar.name(predicate);
  const go = next === null ? null : {
    text: `Go on with “${sidebar.name(next)}”`,
    run: () => choose(next),
  };
  let text = next === null
    ? "Everything is answered. Thank you!"
    : `Nothing is left to ask about “${name}”.`;
  if (free.held > 0) {
    const count = free.held === 1 ? "the last question" : `the last ${free.held} questions`;
    text = `Others have ${count} about “${name}” before them. What they leave comes here.`;
    clearTimeout(reload);
    reload = setTimeout(fetchQueue, 1000 * Math.min(30, Math.max(2, free.free_in ?? 10)));
  }
  signs.notice(text, go);
  say(`${spoken} ${text}`);
}

function cannotShow(question, error) {
  if (error.final) {
    // Only skipping makes sense: nobody can judge a picture that cannot be seen.
    shown = { question, picture: null, since: performance.now() };
    signs.notice(`The picture cannot be shown: ${error.message}. Skip it to go on.`);
    say(at("notice-text").textContent);
    prefetch();
    return;
  }
  signs.notice("Waiting for the connection, for the next picture…");
  setTimeout(() => {
    if (current() === question && !shown) present();
  }, 1500);
}

// Scaled, and its masks drawn, as the whole of it will be shown.
async function prepared(picture) {
  await prepare(picture, view.fitted(picture), mode, devicePixelRatio).catch(() => {});
  if (shown?.picture === picture) redraw();
}

function prefetch() {
  for (const question of queue.slice(1, AHEAD)) {
    // Shown, and tried again, when its turn comes.
    gallery.get(question).then(prepared, () => {});
  }
}

function writeSentence(question) {
  const part = (tag, text, name = "") => element(tag, name ? { class: name } : {}, text);
  at("question").replaceChildren(
    part("span", question.subject_name, "subject"), " ",
    part("b", question.predicate_name), " ",
    part("span", question.object_name, "object"),
    part("span", " ?", "mark"),
  );
  at("question").title = question.origin; // who proposed it; out of the way of the answer
  at("hint").textContent = question.help ?? "";
  at("hint").hidden = !question.help;
  at("canvas").setAttribute(
    "aria-label",
    `Picture with two segments: subject ${question.subject_name} in blue, ` +
      `object ${question.object_name} in orange`,
  );
}

// ---------------------------------------------------------------- answering and undoing

function answer(verdict, event) {
  if (!shown || shown.question !== current()) return;
  const dwell = performance.now() - shown.since;
  if (dwell < SETTLE_MS || (!shown.picture && verdict !== "skip")) return;
  pressed = event?.timeStamp ?? performance.now();
  const { question } = shown;
  signs.flash(`[data-verdict="${verdict}"]`);
  queue.shift();
  if (verdict.endsWith("_faulty")) {
    const segment = verdict === "subject_faulty" ? question.subject : question.object;
    const uses = (other) => other.subject === segment || other.object === segment;
    queue = queue.filter((other) => other.image_id !== question.image_id || !uses(other));
  }
  // An answer to a question that was answered replaces the one before.
  sidebar.count(question.predicate, answers.verdict(question.id), -1);
  sidebar.count(question.predicate, verdict, 1);
  answers.add(question, verdict);
  given++;
  earlier = null;
  outbox.add("/api/answer", {
    proposal_id: question.id,
    verdict,
    dwell_ms: Math.min(Math.round(dwell), 2 ** 31 - 1),
  });
  showCounts();
  present(`${SAID[verdict]}.`);
}

function undo() {
  if (predicate === null) return; // nothing is known of this campaign yet
  signs.flash("#undo");
  const last = answers.pop();
  outbox.add("/api/undo", {});
  if (!last) {
    // Of an earlier visit: the reply says which.
    if (outbox.offline) signs.notify("The answer is undone when the connection is back.");
    return;
  }
  const { question, verdict } = last;
  sidebar.count(question.predicate, verdict, -1);
  sidebar.count(question.predicate, answers.verdict(question.id), 1);
  earlier = { word: "Undone", verdict };
  reopen(question, "Undone.");
}

// Answer one of the latest questions again.
function revisit(question, verdict) {
  sidebar.close();
  earlier = { word: "Answered", verdict };
  reopen(question, `Answered ${SAID[verdict]}.`);
}

// Leave a question that was only looked at again.
function leave() {
  if (earlier?.word !== "Answered") return;
  earlier = null;
  queue.shift();
  present();
  if (!current()) fetchQueue();
}

function reopen(question, spoken) {
  if (question.predicate !== predicate) {
    setPredicate(question.predicate);
    queue = [];
  }
  queue = [question, ...queue.filter((other) => other.id !== question.id)];
  showCounts();
  present(spoken);
}

function saved(operation, reply) {
  clearTimeout(progressTimer);
  progressTimer = setTimeout(refreshProgress, PROGRESS_MS);
  if (operation.adopted) return; // of another visit: its question is not on this screen
  if (operation.path === "/api/answer") {
    refill(reply);
    return;
  }
  if (!reply.undone) {
    signs.notify("There is nothing left to undo.");
    return;
  }
  if (outbox.size === 0 && current()?.id !== reply.undone.id) {
    earlier = null;
    reopen(reply.undone, "Undone.");
  }
  refill(reply.queue);
}

function refused(operation, sentenceOfService) {
  signs.notify(`An answer was refused: ${sentenceOfService}`, true);
  answers.drop(operation.body.proposal_id);
  refreshProgress();
  fetchQueue();
}

// Take the service's list, but keep the question on screen, and leave out what was answered here
// after the list was made: what waits in the outbox now, or did when the list was asked for.
function refill(list, unsent = new Set()) {
  if (!list || list.predicate !== predicate) {
    if (!current()) fetchQueue();
    return;
  }
  free = list;
  handed = list.questions.map(({ id }) => id);
  hold(handed);
  const first = current();
  const rest = list.questions.filter(
    ({ id }) => id !== first?.id && !unsent.has(id) && !outbox.pending.has(id),
  );
  queue = first ? [first, ...rest] : rest;
  if (!first) present();
  else if (shown) prefetch();
}

// ---------------------------------------------------------------- predicates and progress

function choose(index) {
  sidebar.close();
  if (index === predicate || index === null) return;
  setPredicate(index);
  queue = [];
  earlier = shown = null;
  at("stage").classList.add("waiting");
  // What was handed out here and was not answered is for others; then this claims anew.
  request("/api/release", { body: { proposals: letGo(handed) } }).catch(() => {}).finally(fetchQueue);
}

function setPredicate(index) {
  predicate = index;
  history.replaceState(null, "", `#predicate=${index}`);
  sidebar.select(index);
  showCounts();
}

async function fetchQueue() {
  clearTimeout(reload);
  const wanted = predicate;
  const [then, unsent] = [given, outbox.pending];
  if (!current()) signs.notice("Loading…");
  try {
    const list = await request(`/api/next?predicate=${wanted}`);
    if (predicate !== wanted) return;
    if (given === then) refill(list, unsent);
    else if (!current()) fetchQueue();
  } catch (error) {
    if (predicate !== wanted) return;
    if (!current()) signs.notice(`${error.message} Trying again…`);
    reload = setTimeout(fetchQueue, 1500);
  }
}

// Others need not wait for the questions of a page that is closed. Answers that are still on their
// way keep theirs: nobody should be asked the same meanwhile.
function giveBack() {
  const proposals = letGo(handed.filter((id) => !outbox.pending.has(id)));
  if (proposals.length === 0) return;
  const body = new Blob([JSON.stringify({ proposals })], { type: "application/json" });
  navigator.sendBeacon("/api/release", body);
}

async function refreshProgress() {
  try {
    const progress = await request("/api/progress");
    if (outbox.size === 0) sidebar.update(progress.predicates);
    showCounts();
  } catch {
    // The counts on screen stay; the next answer asks again.
  }
}

function showCounts() {
  const row = sidebar.row(predicate);
  if (row) signs.counts(row);
}

function setAnswering(enabled) {
  for (const button of document.querySelectorAll("[data-verdict]")) button.disabled = !enabled;
}

// ---------------------------------------------------------------- what is drawn

function drawNow() {
  cancelAnimationFrame(frame);
  frame = null;
  if (!shown?.picture) return;
  draw(at("canvas"), shown.picture, view.place(), hidden ? null : mode, devicePixelRatio);
  at("zoom-level").textContent = `${Math.round(100 * view.zoom)} %`;
  at("canvas").classList.toggle("zoomed", view.zoomed);
}

function redraw() {
  frame ??= requestAnimationFrame(drawNow);
}

function setHidden(value) {
  if (hidden === value) return;
  hidden = value;
  at("hide").setAttribute("aria-pressed", String(value));
  drawNow();
}

function setMode(value) {
  mode = value;
  at("mode-name").textContent = mode[0].toUpperCase() + mode.slice(1);
  remember("mode", mode);
  drawNow();
  prepareAnew();
}

function one(allowed, value) {
  return allowed.includes(value) ? value : allowed[0];
}

function resize() {
  const canvas = at("canvas");
  const box = at("stage").getBoundingClientRect();
  canvas.width = Math.max(1, Math.round(box.width * devicePixelRatio));
  canvas.height = Math.max(1, Math.round(box.height * devicePixelRatio));
  view.resized();
  drawNow();
  prepareAnew();
}

// Masks that were drawn ahead are of another size or mode now.
function prepareAnew() {
  if (!shown?.picture) return;
  prepared(shown.picture);
  prefetch();
}

// ---------------------------------------------------------------- wiring

const RUN = {
  undo,
  hide: () => setHidden(true),
  mode: () => setMode(MODES[(MODES.indexOf(mode) + 1) % MODES.length]),
  closer: () => shown?.picture && view.closer(),
  farther: () => shown?.picture && view.farther(),
  whole: () => view.whole(),
  pair: () => shown?.picture && view.pair(),
  previous: () => choose(sidebar.neighbour(predicate, -1)),
  next: () => choose(sidebar.neighbour(predicate, 1)),
  predicates: () => sidebar.open(),
  help: () => settings.open(),
};

function act(action, event) {
  if (action in RUN) RUN[action]();
  else answer(action, event);
}

// After a click the focus leaves the button, or Space would press it again instead of skipping.
function onClick(button, run) {
  button.addEventListener("click", (event) => {
    if (event.detail > 0) button.blur();
    run(event);
  });
}

function showKeys() {
  for (const button of document.querySelectorAll("[data-key]")) {
    const names = keys.of(button.dataset.key).map(written);
    button.setAttribute("aria-keyshortcuts", names.join(" "));
    const key = button.querySelector("kbd");
    if (key) key.textContent = names[0];
    else button.title = `${ACTIONS[button.dataset.key].name} (${names[0]})`;
  }
}

const settings = new Settings(at("help"), keys, showKeys);

function wire() {
  keys.listen({
    press: act,
    release: (action) => action === "hide" && setHidden(false),
    pan: (x, y) => view.pan(x, y),
    leave,
  });
  for (const button of document.querySelectorAll("[data-key]:not(#hide)")) {
    onClick(button, (event) => act(button.dataset.key, event));
  }
  at("hide").addEventListener("pointerdown", () => setHidden(true));
  for (const end of ["pointerup", "pointerleave", "pointercancel"]) {
    at("hide").addEventListener(end, () => setHidden(false));
  }
  onClick(at("hide"), (event) => event.detail === 0 && setHidden(!hidden));
  onClick(at("close-predicates"), () => sidebar.close());
  at("next-view").value = view.next = one(NEXT_VIEWS, remembered("next-view"));
  at("next-view").addEventListener("change", () => {
    view.next = at("next-view").value;
    remember("next-view", view.next);
  });
  addEventListener("pagehide", giveBack);
  addEventListener("beforeunload", (event) => {
    if (outbox.size > 0 && !outbox.durable) event.preventDefault();
  });
  addEventListener("pageshow", (event) => event.persisted && predicate !== null && fetchQueue());
  new ResizeObserver(resize).observe(at("stage"));
}

async function start() {
  // Without a connection the header is short; answering does not wait for it.
  openShell({ target: "question", skip: "Skip to the question" }).catch(() => {});
  wire();
  resize();
  setMode(mode);
  setAnswering(false);
  signs.showState();
  await connect();
}

async function connect() {
  try {
    const progress = await request("/api/progress");
    answers.open(`${progress.campaign}.${progress.annotator}`);
    // What an earlier visit left, before what comes next.
    await outbox.open(progress.campaign, progress.annotator);
    sidebar.update(progress.predicates);
  } catch (error) {
    signs.notice(`${error.message} Trying again…`);
    setTimeout(connect, 1500);
    return;
  }
  const wanted = Number(new URLSearchParams(location.hash.slice(1)).get("predicate") ?? NaN);
  const first = sidebar.row(wanted) ? wanted : sidebar.nextOpen(null);
  if (first === null) {
    signs.notice("There are no proposals yet.");
    return;
  }
  setPredicate(first);
  fetchQueue();
  refreshProgress();
}

start();
