// Looking at clusters and choosing which are proposed. A switch moves at once; the service's reply
// says how everything is then, so that what others choose meanwhile is seen as well.

import { element, isElsewhere, openShell, request, say } from "./shell.js";

const at = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");

let list = null; // { clustering, clusters, to_run } as the service said last
let current = 0; // position of the cluster that keys are for
let sending = Promise.resolve(); // changes are sent one after the other
let waiting = 0; // of them
const done = []; // [cluster, included] to go back to

// ---------------------------------------------------------------- the list

async function load() {
  try {
    show(await request("/api/clusters"));
  } catch (error) {
    refuse(error);
    if (list === null) at("summary").textContent = "";
  }
}

function show(next) {
  const isOther = list?.clustering !== next.clustering;
  list = next;
  if (isOther) {
    done.length = 0;
    current = 0;
    at("clusters").replaceChildren(...list.clusters.map(row));
    for (const item of at("clusters").children) visible.observe(item);
  }
  list.clusters.forEach(draw);
  summarise();
  showToRun();
  at("undo").disabled = done.length === 0;
}

function row(cluster) {
  const title = element("h2", { id: `title-${cluster.id}` });
  const button = element("button", {
    type: "button", role: "switch", "aria-describedby": `counts-${cluster.id}`,
  }, element("span", { class: "box" }), element("span", { class: "word" }));
  button.addEventListener("click", () => {
    select(cluster.id);
    toggle(cluster.id);
  });
  button.addEventListener("focus", () => select(cluster.id));
  return element("li", { "data-cluster": cluster.id, "aria-labelledby": `title-${cluster.id}` },
    element("div", { class: "about" }, title,
      element("dl", { id: `counts-${cluster.id}` }), button),
    element("div", { class: "pictures waiting" }));
}

function draw(cluster) {
  const item = rowOf(cluster.id);
  item.querySelector("h2").textContent = nameOf(cluster);
  const counts = [["Images", cluster.size]];
  if (cluster.candidates !== null) counts.push(["Candidates", cluster.candidates]);
  if (cluster.proposals !== null) counts.push(["In the queue", cluster.proposals]);
  item.querySelector("dl").replaceChildren(...counts.flatMap(([word, count]) => [
    element("dt", {}, word), element("dd", {}, number.format(count)),
  ]));
  drawSwitch(cluster);
}

function drawSwitch({ id, included, ...cluster }) {
  const item = rowOf(id);
  item.classList.toggle("excluded", !included);
  const button = item.querySelector("[role=switch]");
  button.setAttribute("aria-checked", String(included));
  button.setAttribute("aria-label", `Include ${nameOf({ id, ...cluster })}`);
  button.querySelector(".word").textContent = included ? "Included" : "Excluded";
}

function nameOf({ id, name }) {
  // The name that the stage gives says the number once more.
  return /^cluster-\d+$/.test(name) ? `Cluster ${id}` : `${id} · ${name}`;
}

function rowOf(id) {
  return at("clusters").children[id];
}

function summarise() {
  const included = list.clusters.filter((cluster) => cluster.included);
  const sum = (clusters) => clusters.reduce((total, { size }) => total + size, 0);
  const [images, all] = [sum(included), sum(list.clusters)];
  const share = all === 0 ? "" : ` (${Math.round((100 * images) / all)} %)`;
  at("summary").replaceChildren(
    element("b", {}, `${included.length} of ${list.clusters.length}`), " clusters included · ",
    element("b", {}, number.format(images)), ` of ${number.format(all)} images${share}`,
  );
}

function showToRun() {
  const commands = list.to_run.flatMap((command, at) => [
    at === 0 ? "" : ", then ", element("code", {}, command),
  ]);
  at("to-run").hidden = commands.length === 0;
  at("to-run").replaceChildren("Saved. For it to take effect, run ", ...commands,
    ", then start the annotation page again.");
}

// ---------------------------------------------------------------- choosing

function toggle(id) {
  const cluster = list.clusters[id];
  done.push([id, cluster.included]);
  set(id, !cluster.included);
}

function undo() {
  const last = done.pop();
  if (!last) {
    say("There is nothing left to undo.");
    return;
  }
  const [id, included] = last;
  go(id);
  set(id, included);
}

function set(id, included) {
  const { clustering } = list;
  const cluster = list.clusters[id];
  cluster.included = included;
  drawSwitch(cluster);
  summarise();
  at("undo").disabled = done.length === 0;
  at("banner").hidden = true;
  waiting += 1;
  sending = sending.then(() => send(id, { included, clustering }));
  const images = list.clusters.filter((each) => each.included)
    .reduce((total, { size }) => total + size, 0);
  say(`${nameOf(cluster)} ${included ? "included" : "excluded"}. ${number.format(images)} images included.`);
}

async function send(id, body) {
  try {
    const next = await request(`/api/clusters/${id}`, { body });
    waiting -= 1;
    if (waiting === 0) show(next); // else a later change is on screen already
  } catch (error) {
    waiting -= 1;
    const own = done.findLastIndex(([other]) => other === id);
    if (own >= 0) done.splice(own, 1);
    list.clusters[id].included = !body.included;
    drawSwitch(list.clusters[id]);
    summarise();
    at("undo").disabled = done.length === 0;
    await load(); // others may have changed more
    refuse(error);
  }
}

function refuse(error) {
  const banner = at("banner");
  banner.hidden = false;
  banner.classList.toggle("refused", error.status !== 0);
  const lost = error.status === 0 && list !== null ? " The latest change was not saved." : "";
  banner.textContent = `${error.message}${lost}`;
}

// ---------------------------------------------------------------- pictures

const FEW = 24; // in a strip, of which as many are seen as fit

const visible = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    visible.unobserve(entry.target);
    loadPictures(entry.target);
  }
}, { rootMargin: "600px" });

async function loadPictures(item) {
  const place = item.querySelector(".pictures");
  const { cluster } = item.dataset;
  if (list.clusters[cluster].size === 0) {
    place.replaceChildren(element("h3", {}, "No image belongs to this cluster."));
    place.classList.remove("waiting");
    return;
  }
  place.replaceChildren(element("h3", {}, "Looking for pictures…"));
  try {
    const asked = new URLSearchParams({ clustering: list.clustering });
    const pictures = await request(`/api/clusters/${cluster}/pictures?${asked}`);
    const seen = new Set(pictures.nearest.slice(0, FEW));
    const drawn = pictures.drawn.filter((address) => !seen.has(address));
    place.replaceChildren(
      ...strip("Nearest to the centre", pictures.nearest),
      ...(drawn.length > 0 ? strip("Drawn at random", drawn) : []),
      more(item),
    );
    place.classList.remove("waiting");
  } catch (error) {
    place.replaceChildren(element("h3", {}, error.message));
    if (error.status === 409) load();
  }
}

function strip(title, addresses) {
  const images = addresses.map((address, position) => {
    const image = element("img", {
      class: "waiting", alt: "", loading: "lazy", decoding: "async", draggable: "false",
      [position < FEW ? "src" : "data-src"]: address,
    });
    image.hidden = position >= FEW;
    image.addEventListener("load", () => image.classList.remove("waiting"));
    image.addEventListener("error", () => {
      image.classList.replace("waiting", "broken");
      image.alt = "This picture cannot be shown";
    });
    return image;
  });
  return [element("h3", {}, title),
    element("div", { class: "strip", role: "img", "aria-label": title }, ...images)];
}

function more(item) {
  const button = element("button", { type: "button", class: "quiet", "aria-expanded": "false" });
  const word = element("span", {}, "More pictures");
  button.append(word, element("kbd", {}, "M"));
  button.addEventListener("click", () => {
    const all = item.classList.toggle("all");
    button.setAttribute("aria-expanded", String(all));
    word.textContent = all ? "Fewer pictures" : "More pictures";
    for (const image of item.querySelectorAll("img[data-src]")) {
      image.hidden = !all;
      if (all && !image.src) image.src = image.dataset.src;
    }
  });
  return button;
}

// ---------------------------------------------------------------- keys

function select(id) {
  rowOf(current)?.classList.remove("current");
  current = id;
  rowOf(current).classList.add("current");
}

function go(id) {
  const item = rowOf(Math.max(0, Math.min(id, list.clusters.length - 1)));
  item.querySelector("[role=switch]").focus({ preventScroll: true });
  item.scrollIntoView({ block: "nearest" });
}

const KEYS = {
  ArrowDown: () => go(current + 1), j: () => go(current + 1),
  ArrowUp: () => go(current - 1), k: () => go(current - 1),
  Home: () => go(0), End: () => go(list.clusters.length - 1),
  " ": () => toggle(current),
  m: () => rowOf(current).querySelector(".pictures button")?.click(),
  z: undo, Backspace: undo,
  "?": () => at("help").showModal(),
};

addEventListener("keydown", (event) => {
  const run = KEYS[event.key] ?? KEYS[event.key.toLowerCase()];
  if (!run || !list?.clusters.length || isElsewhere(event)) return;
  // Space presses the button that has the focus, as everywhere.
  if (event.key === " " && event.target.closest("button, a")) return;
  event.preventDefault();
  if (!event.repeat || event.key.startsWith("Arrow")) run();
});

// ---------------------------------------------------------------- start

at("undo").addEventListener("click", undo);
at("help-button").addEventListener("click", () => at("help").showModal());
addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && waiting === 0) load();
});
openShell().catch(refuse);
await load();
if (list?.clusters.length) go(0);
