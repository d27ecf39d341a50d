// Operations on their way to the service. Each is written to the browser's storage before the
// page goes on, sent in order, and removed only when the service has said that it is saved; its
// key makes sending it twice harmless. Reloading the page, or losing the network, loses nothing.

import { request } from "./shell.js";

const PREFIX = "haystack.outbox.";
const LONGEST_WAIT_MS = 15_000;
// What a reply has if it is the service's.
const REPLIES = { "/api/answer": "questions", "/api/undo": "undone" };

export class Outbox {
  #waiting = [];
  #sending = null;
  #retry = null;
  #delay = 500;
  #serial = 0;
  #campaign = null;
  #annotator = null;
  #prefix = null;

  // handlers: saved(operation, reply), refused(operation, sentence), changed()
  constructor(handlers) {
    this.handlers = handlers;
    this.offline = false;
    this.durable = true;
    addEventListener("online", () => this.flush());
  }

  // Only what belongs to the campaign that is served and to who is logged in is sent; the rest
  // stays where it is.
  open(campaign, annotator) {
    this.#campaign = campaign;
    this.#annotator = annotator;
    this.#prefix = `${PREFIX}${campaign}.${encodeURIComponent(annotator).replaceAll(".", "%2E")}.`;
    return this.flush();
  }

  get size() {
    return this.#waiting.length;
  }

  // Proposals with an answer that is not saved yet.
  get pending() {
    return new Set(this.#waiting.map((entry) => entry.body.proposal_id).filter(Boolean));
  }

  add(path, body) {
    const entry = {
      path,
      body: {
        ...body,
        key: crypto.randomUUID(),
        campaign: this.#campaign,
        annotator: this.#annotator,
      },
    };
    const order = `${pad(Date.now(), 15)}.${pad(this.#serial++, 6)}`;
    entry.name = `${this.#prefix}${order}.${entry.body.key}`;
    this.#waiting.push(entry);
    try {
      localStorage.setItem(entry.name, JSON.stringify(entry));
    } catch {
      this.durable = false;
    }
    this.#changed();
    this.#start();
  }

  // Send everything that waits; resolves when all is saved or the service cannot be reached.
  flush() {
    this.#adopt();
    return this.#start();
  }

  #start() {
    clearTimeout(this.#retry);
    this.#sending ??= this.#send().finally(() => {
      this.#sending = null;
    });
    return this.#sending;
  }

  async #send() {
    while (this.#waiting.length > 0) {
      const entry = this.#waiting[0];
      let reply;
      try {
        reply = await request(entry.path, { body: entry.body });
        if (!(REPLIES[entry.path] in reply)) throw new Error("Something else answers here.");
      } catch (error) {
        if (!error.refused) {
          this.#later(error);
          return;
        }
        this.#sent(entry);
        this.handlers.refused(entry, error.message);
        continue;
      }
      this.#sent(entry);
      this.handlers.saved(entry, reply);
    }
  }

  #sent(entry) {
    this.#delay = 500;
    this.offline = false;
    this.#waiting.shift();
    forget(entry.name);
    this.#changed();
  }

  #later({ message }) {
    this.offline = true;
    this.reason = message;
    this.#changed();
    this.#retry = setTimeout(() => this.flush(), this.#delay);
    this.#delay = Math.min(2 * this.#delay, LONGEST_WAIT_MS);
  }

  #changed() {
    this.handlers.changed();
  }

  // What an earlier visit or a tab that was closed left. Two tabs may send the same: harmless.
  #adopt() {
    const known = new Set(this.#waiting.map((entry) => entry.name));
    try {
      for (const name of Object.keys(localStorage)) {
        if (!name.startsWith(this.#prefix) || known.has(name)) continue;
        const entry = JSON.parse(localStorage.getItem(name));
        if (entry === null) continue; // another tab has sent it just now
        this.#waiting.push({ ...entry, name, adopted: true });
      }
    } catch {
      this.durable = false;
    }
    if (this.#waiting.length === known.size) return;
    // In the order in which they were given. The first may be on its way already: it stays first.
    const first = this.#sending ? this.#waiting.splice(0, 1) : [];
    this.#waiting.sort((one, other) => (one.name < other.name ? -1 : 1));
    this.#waiting.unshift(...first);
    this.#changed();
  }
}

function pad(number, digits) {
  return String(number).padStart(digits, "0");
}

function forget(name) {
  try {
    localStorage.removeItem(name);
  } catch {
    // Storage is switched off: there was nothing to remove.
  }
}
