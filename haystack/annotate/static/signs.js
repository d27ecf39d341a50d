// What the page says beside the question: banner, notice over the picture, counts, saved or not.

const at = (id) => document.getElementById(id);

export class Signs {
  #outbox;
  #notification = null;
  #timer = null;

  constructor(outbox) {
    this.#outbox = outbox;
  }

  // For some seconds, in the banner.
  notify(text, isRefusal = false) {
    this.#notification = { text, isRefusal };
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#notification = null;
      this.showState();
    }, isRefusal ? 10_000 : 3_000);
    this.showState();
  }

  showState() {
    const { size, offline, durable, reason } = this.#outbox;
    const banner = at("banner");
    let text = this.#notification?.text ?? "";
    if (offline) {
      const answers = size === 1 ? "1 answer is" : `${size} answers are`;
      const kept = durable ? "kept on this computer" : "kept while this page stays open";
      text = `${reason} ${answers} ${kept} and will be saved as soon as possible.`;
    }
    banner.hidden = !text;
    banner.classList.toggle("refused", !offline && Boolean(this.#notification?.isRefusal));
    if (banner.textContent !== text) banner.textContent = text;
    at("saved").textContent = size === 0 ? "All answers saved" : `Saving ${size}…`;
  }

  // Over the picture; null takes it away. action: { text, run } of a button.
  notice(text, action = null) {
    at("notice").hidden = text === null;
    at("notice-text").textContent = text ?? "";
    const button = at("notice-action");
    button.hidden = !action;
    button.textContent = action?.text ?? "";
    button.onclick = action?.run ?? null;
  }

  // What the question on screen was answered before; leave: what a button to go on does.
  earlier(text, leave = null) {
    at("earlier").hidden = text === null;
    at("earlier-text").textContent = text ?? "";
    at("earlier-leave").hidden = !leave;
    at("earlier-leave").onclick = leave || null;
  }

  counts(row) {
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

  flash(selector) {
    const button = document.querySelector(selector);
    button.classList.add("pressed");
    setTimeout(() => button.classList.remove("pressed"), 120);
  }
}
