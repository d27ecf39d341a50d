// The list of predicates with their counts.

const JUDGED = ["correct", "incorrect", "no_relation", "skip"];

export class Sidebar {
  #rows = new Map();
  #selected = null;
  #opener = null;

  constructor(panel, list, choose) {
    this.panel = panel;
    this.list = list;
    this.choose = choose;
    panel.addEventListener("keydown", (event) => this.#walk(event));
    panel.addEventListener("focusout", (event) => {
      if (!panel.contains(event.relatedTarget)) this.#shut();
    });
  }

  update(rows) {
    for (const row of rows) this.#rows.set(row.predicate, { ...this.#rows.get(row.predicate), ...row });
    this.#draw();
  }

  row(predicate) {
    return this.#rows.get(predicate);
  }

  name(predicate) {
    return this.#rows.get(predicate)?.name ?? "";
  }

  // What an answer changes, until the service counts again.
  count(predicate, verdict, by) {
    const row = this.#rows.get(predicate);
    if (!row || !verdict) return;
    row[JUDGED.includes(verdict) ? verdict : "faulty"] += by;
    row.open = Math.max(0, Math.min(row.total, row.open - by));
    this.#draw();
  }

  select(predicate) {
    this.#selected = predicate;
    this.#draw();
    this.#button(predicate)?.scrollIntoView({ block: "nearest" });
  }

  // The next predicate after this one that has something to ask; null when none has.
  nextOpen(predicate) {
    const order = [...this.#rows.keys()];
    const from = order.indexOf(predicate) + 1;
    const round = [...order.slice(from), ...order.slice(0, from)];
    return round.find((index) => this.#rows.get(index).open > 0) ?? null;
  }

  neighbour(predicate, step) {
    const order = [...this.#rows.keys()];
    return order[(order.indexOf(predicate) + step + order.length) % order.length] ?? null;
  }

  open() {
    this.#opener = document.activeElement;
    this.panel.classList.add("open");
    document.getElementById("open-predicates").setAttribute("aria-expanded", "true");
    this.#button(this.#selected)?.focus({ focusVisible: true });
  }

  close() {
    if (!this.panel.contains(document.activeElement)) return;
    if (this.#opener?.isConnected && this.#opener !== document.body) this.#opener.focus();
    else document.getElementById("question").focus();
    this.#shut();
  }

  #shut() {
    this.#opener = null;
    this.panel.classList.remove("open");
    document.getElementById("open-predicates").setAttribute("aria-expanded", "false");
  }

  #button(predicate) {
    return this.list.querySelector(`[data-predicate="${predicate}"]`);
  }

  #walk(event) {
    if (event.key === "Escape") {
      this.close();
      return;
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...this.list.querySelectorAll("button")];
    const from = buttons.indexOf(document.activeElement);
    if (!step || from < 0) return;
    event.preventDefault();
    buttons[(from + step + buttons.length) % buttons.length].focus();
  }

  #draw() {
    for (const [predicate, row] of this.#rows) {
      const button = this.#button(predicate) ?? this.#create(predicate);
      const done = row.total - row.open;
      button.querySelector(".name").textContent = row.name;
      button.querySelector(".count").textContent = `${done}/${row.total}`;
      button.querySelector("i").style.width = `${(100 * done) / Math.max(1, row.total)}%`;
      button.setAttribute("aria-label", `${row.name}, ${done} of ${row.total} done`);
      button.setAttribute("aria-current", String(predicate === this.#selected));
      button.classList.toggle("done", row.open === 0);
    }
  }

  #create(predicate) {
    const part = (name, parent) => {
      const element = document.createElement("span");
      element.className = name;
      parent.append(element);
      return element;
    };
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.predicate = predicate;
    part("name", button);
    part("count", button);
    part("track", button).append(document.createElement("i"));
    button.addEventListener("click", () => this.choose(predicate));
    const item = document.createElement("li");
    item.append(button);
    this.list.append(item);
    return button;
  }
}
