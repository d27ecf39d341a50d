// One predicate at a time, one question at a time. The page moves on as soon as an answer is in
// the outbox; what the service replies refills the queue behind the question on screen.

import { listen } from "./keys.js";
import { Outbox, get } from "./outbox.js";
import { Gallery, MODES, show, trace } from "./picture.js";
import { openShell } from "./shell.js";
import { Sidebar } from "./sidebar.js";

const SETTLE_MS = 150; // keys pressed sooner were meant for the picture before
const PROGRESS_MS = 800;
const NAMES = {
  correct: "Correct",
  incorrect: "Incorrect",
  no_relation: "No relation",
  skip: "Skipped",
  subject_faulty: "Subject mask faulty",
  object_faulty: "Object mask faulty",
};

const at = (id) => document.getElementById(id);
const gallery = new Gallery();
const outbox = new Outbox({ saved, refused, changed: showState });
const sidebar = new Sidebar(at("predicates"), at("predicate-list"), choose);

let predicate = null;
let queue = []; // the question on screen first
let given = []; // [question, verdict] of this visit, for an undo without waiting
let shown = null; // { question, picture, since } once the picture is on screen
let earlier = null; // what the question on screen was answered before it was undone
let hidden = false;
let mode = remembered("mode", MODES) ?? MODES[0];
let progressTimer = null;
let reload = null; // tries again to reach the service

// ---------------------------------------------------------------- the question on screen

function current() {
  return queue[0] ?? null;
}

async function present(spoken = "") {
  const question = current();
  shown = null;
  at("earlier").hidden = true;
  if (!question) {
    presentEnd(spoken);
    return;
  }
  writeSentence(question);
  setAnswering(true);
  at("stage").classList.add("waiting");
  at("stage").setAttribute("aria-label", describe(question));
  const slow = setTimeout(() => notice("Loading the picture…"), 400);
  let picture;
  try {
    picture = await gallery.get(question);
  } catch (error) {
    if (current() === question) cannotShow(question, error);
    return;
  } finally {
    clearTimeout(slow);
  }
  if (current() !== question) return;
  notice(null);
  at("stage").classList.remove("waiting");
  shown = { question, picture, since: performance.now() };
  draw();
  if (earlier) {
    at("earlier").textContent = `Undone: ${NAMES[earlier]}`;
    at("earlier").hidden = false;
  }
  say(`${spoken} ${sentence(question)}`);
  prefetch();
}

function presentEnd(spoken) {
  at("question").textContent = "";
  setAnswering(false);
  at("stage").classList.add("waiting");
  if (outbox.size > 0) {
    notice("Fetching the next questions…");
    return;
  }
  const next = sidebar.nextOpen(predicate);
  const name = sidebar.name(predicate);
  const text = next === null
    ? "Everything is answered. Thank you!"
    : `Nothing is left to ask about “${name}”.`;
  notice(text, next === null ? null : {
    text: `Go on with “${sidebar.name(next)}”`,
    run: () => choose(next),
  });
  say(`${spoken} ${text}`);
}

function cannotShow(question, error) {
  if (error.final) {
    // Only skipping makes sense: nobody can judge a picture that cannot be seen.
    shown = { question, picture: null, since: performance.now() };
    notice(`The picture cannot be shown: ${error.message}. Skip it to go on.`);
    say(at("notice-text").textContent);
    return;
  }
  notice("Waiting for the connection, for the next picture…");
  setTimeout(() => {
    if (current() === question && !shown) present();
  }, 1500);
}

function prefetch() {
  const { width, height } = at("canvas");
  for (const question of queue.slice(1)) {
    gallery
      .get(question)
      .then((picture) => trace(picture, width, height, mode, devicePixelRatio))
      .catch(() => {}); // shown, and tried again, when its turn comes
  }
}

function draw() {
  if (shown?.picture) show(at("canvas"), shown.picture, mode, hidden);
}

function writeSentence(question) {
  const part = (tag, text, name = "") => {
    const element = document.createElement(tag);
    element.textContent = text;
    element.className = name;
    return element;
  };
  at("question").replaceChildren(
    part("span", question.subject_name, "subject"), " ",
    part("b", question.predicate_name), " ",
    part("span", question.object_name, "object"),
    part("span", " ?", "mark"),
  );
  at("question").title = question.origin; // who proposed it; out of the way of the answer
}

function sentence(question) {
  return `${question.subject_name} ${question.predicate_name} ${question.object_name}?`;
}

function describe(question) {
  return `Picture with two segments: subject ${question.subject_name} in blue, object ${question.object_name} in orange`;
}

// ---------------------------------------------------------------- answering and undoing

function answer(verdict) {
  if (!shown || shown.question !== current()) return;
  const dwell = performance.now() - shown.since;
  if (dwell < SETTLE_MS || (!shown.picture && verdict !== "skip")) return;
  const { question } = shown;
  flash(`[data-verdict="${verdict}"]`);
  queue.shift();
  if (verdict.endsWith("_faulty")) {
    const segment = verdict === "subject_faulty" ? question.subject : question.object;
    const uses = (other) => other.subject === segment || other.object === segment;
    queue = queue.filter((other) => other.image_id !== question.image_id || !uses(other));
  }
  given.push([question, verdict]);
  earlier = null;
  outbox.add("/api/answer", {
    proposal_id: question.id,
    verdict,
    dwell_ms: Math.min(Math.round(dwell), 2 ** 31 - 1),
  });
  sidebar.count(question.predicate, verdict, 1);
  showCounts();
  present(`${NAMES[verdict]}.`);
}

function undo() {
  flash("#undo");
  const last = given.pop();
  outbox.add("/api/undo", {});
  if (!last) return; // of an earlier visit: the reply says which
  const [question, verdict] = last;
  sidebar.count(question.predicate, verdict, -1);
  earlier = verdict;
  reopen(question);
}

function reopen(question) {
  if (question.predicate !== predicate) {
    setPredicate(question.predicate);
    queue = [];
  }
  queue = [question, ...queue.filter((other) => other.id !== question.id)];
  showCounts();
  present("Undone.");
}

function saved(operation, reply) {
  clearTimeout(progressTimer);
  progressTimer = setTimeout(refreshProgress, PROGRESS_MS);
  if (operation.path === "/api/answer") {
    refill(reply);
    return;
  }
  if (!reply.undone) {
    notify("There is nothing left to undo.");
    return;
  }
  if (outbox.size === 0 && current()?.id !== reply.undone.id) reopen(reply.undone);
  refill(reply.queue);
}

function refused(operation, sentenceOfService) {
  notify(`An answer was refused: ${sentenceOfService}`, true);
  given = given.filter(([question]) => question.id !== operation.body.proposal_id);
  refreshProgress();
  fetchQueue();
}

// Take the service's list, but keep the question on screen, and leave out what was answered here:
// the list may have been made before those answers arrived.
function refill(list) {
  if (!list || list.predicate !== predicate) return;
  const answered = new Set(given.map(([question]) => question.id));
  const first = current();
  const rest = list.questions.filter(
    ({ id }) => id !== first?.id && !answered.has(id) && !outbox.pending.has(id),
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
  earlier = null;
  fetchQueue();
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
  if (!current()) notice("Loading…");
  try {
    const list = await get(`/api/next?predicate=${wanted}`);
    if (predicate === wanted) refill(list);
  } catch (error) {
    if (predicate !== wanted) return;
    if (!current()) notice(`${error.sentence ?? "No connection."} Trying again…`);
    reload = setTimeout(fetchQueue, 1500);
  }
}

async function refreshProgress() {
  try {
    const progress = await get("/api/progress");
    if (outbox.size === 0) sidebar.update(progress.predicates);
    showCounts();
  } catch {
    // The counts on screen stay; the next answer asks again.
  }
}

function showCounts() {
  const row = sidebar.row(predicate);
  if (!row) return;
  const done = row.total - row.open;
  const bar = at("bar");
  bar.setAttribute("aria-valuemax", row.total);
  bar.setAttribute("aria-valuenow", done);
  bar.setAttribute("aria-valuetext", `${done} of ${row.total}`);
  bar.firstElementChild.style.width = `${(100 * done) / Math.max(1, row.total)}%`;
  const judged = row.correct + row.incorrect + row.no_relation;
  const share = judged ? ` (${Math.round((100 * row.correct) / judged)} %)` : "";
  at("counts").textContent =
    `${done} of ${row.total} done · ${row.correct} correct${share} · ${row.skip} skipped`;
}

// ---------------------------------------------------------------- what the page says

let notification = null;
let notificationTimer = null;

function notify(text, isRefusal = false) {
  notification = { text, isRefusal };
  clearTimeout(notificationTimer);
  notificationTimer = setTimeout(() => {
    notification = null;
    showState();
  }, isRefusal ? 10_000 : 3_000);
  showState();
}

function showState() {
  const count = outbox.size;
  const answers = count === 1 ? "1 answer is" : `${count} answers are`;
  let text = "";
  if (outbox.offline) {
    const kept = outbox.durable ? "kept on this computer" : "kept while this page stays open";
    text = `${outbox.reason} ${answers} ${kept} and will be saved as soon as possible.`;
  }
  const banner = at("banner");
  banner.hidden = !text && !notification;
  banner.classList.toggle("refused", !text && Boolean(notification?.isRefusal));
  banner.textContent = text || notification?.text || "";
  at("saved").textContent = count === 0 ? "All answers saved" : `Saving ${count}…`;
}

function notice(text, action = null) {
  at("notice").hidden = text === null;
  at("notice-text").textContent = text ?? "";
  const button = at("notice-action");
  button.hidden = !action;
  button.textContent = action?.text ?? "";
  button.onclick = action?.run ?? null;
}

function say(text) {
  at("live").textContent = text.trim();
}

function flash(selector) {
  const button = document.querySelector(selector);
  button.classList.add("pressed");
  setTimeout(() => button.classList.remove("pressed"), 120);
}

function setAnswering(enabled) {
  for (const button of document.querySelectorAll("[data-verdict]")) button.disabled = !enabled;
}

// ---------------------------------------------------------------- masks

function setHidden(value) {
  if (hidden === value) return;
  hidden = value;
  at("hide").setAttribute("aria-pressed", String(value));
  draw();
}

function setMode(value) {
  mode = value;
  at("mode-name").textContent = mode[0].toUpperCase() + mode.slice(1);
  try {
    localStorage.setItem("haystack.mode", mode);
  } catch {
    // Storage is switched off: the choice lasts as long as the page.
  }
  draw();
  if (shown) prefetch();
}

function remembered(name, allowed) {
  try {
    const value = localStorage.getItem(`haystack.${name}`);
    return allowed.includes(value) ? value : null;
  } catch {
    return null;
  }
}

function resize() {
  const canvas = at("canvas");
  const box = at("stage").getBoundingClientRect();
  canvas.width = Math.max(1, Math.round(box.width * devicePixelRatio));
  canvas.height = Math.max(1, Math.round(box.height * devicePixelRatio));
  draw();
  if (shown) prefetch();
}

// ---------------------------------------------------------------- wiring

const ACTIONS = {
  undo,
  hide: () => setHidden(true),
  mode: () => setMode(MODES[(MODES.indexOf(mode) + 1) % MODES.length]),
  previous: () => choose(sidebar.neighbour(predicate, -1)),
  next: () => choose(sidebar.neighbour(predicate, 1)),
  predicates: () => sidebar.open(),
  help: () => at("help").showModal(),
};

function act(action) {
  if (action in ACTIONS) ACTIONS[action]();
  else answer(action);
}

// After a click the focus leaves the button, or Space would press it again instead of skipping.
function onClick(element, run) {
  element.addEventListener("click", (event) => {
    if (event.detail > 0) element.blur();
    run(event);
  });
}

async function start() {
  // Without a connection the header is short; answering does not wait for it.
  openShell({ target: "question", skip: "Skip to the question" }).catch(() => {});
  listen(act, (action) => action === "hide" && setHidden(false));
  for (const button of document.querySelectorAll("[data-verdict]")) {
    onClick(button, () => answer(button.dataset.verdict));
  }
  for (const [id, action] of [["undo", "undo"], ["mode", "mode"], ["help-button", "help"]]) {
    onClick(at(id), () => act(action));
  }
  at("hide").addEventListener("pointerdown", () => setHidden(true));
  for (const end of ["pointerup", "pointerleave", "pointercancel"]) {
    at("hide").addEventListener(end, () => setHidden(false));
  }
  onClick(at("hide"), (event) => event.detail === 0 && setHidden(!hidden));
  onClick(at("open-predicates"), () => sidebar.open());
  onClick(at("close-predicates"), () => sidebar.close());
  addEventListener("beforeunload", (event) => {
    if (outbox.size > 0 && !outbox.durable) event.preventDefault();
  });
  new ResizeObserver(resize).observe(at("stage"));
  resize();
  setMode(mode);
  setAnswering(false);
  showState();
  await connect();
}

async function connect() {
  try {
    const progress = await get("/api/progress");
    await outbox.open(progress.campaign, progress.annotator); // what an earlier visit left, before what comes next
    sidebar.update(progress.predicates);
  } catch (error) {
    notice(`${error.sentence ?? "No connection."} Trying again…`);
    setTimeout(connect, 1500);
    return;
  }
  const asked = Number(new URLSearchParams(location.hash.slice(1)).get("predicate") ?? NaN);
  const first = sidebar.row(asked) ? asked : sidebar.nextOpen(null);
  if (first === null) {
    notice("There are no proposals yet.");
    return;
  }
  setPredicate(first);
  fetchQueue();
  refreshProgress();
}

start();
