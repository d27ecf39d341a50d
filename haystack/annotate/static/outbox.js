// Operations on their way to the service. Each is written to the browser's storage before the
// page goes on, sent in order, and removed only when the service has said that it is saved; its
// key makes sending it twice harmless. Reloading the page, or losing the network, loses nothing.

import { noteLogin } from "./shell.js";

const PREFIX = "haystack.outbox.";
const LONGEST_WAIT_MS = 15_000;
const PATIENCE_MS = 10_000;

export class Outbox {
  #waiting = [];
  #sending = null;
  #retry = null;
  #delay = 500;
  #serial = 0;
  #campaign = null;
  #annotator = null;
  #prefix = null;

  // handlers: saved(operation, reply), refused(operation, sentence), changed(state)
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
    this.#waiting = this.#stored();
    this.#changed();
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
      localStorage.setItem(entry.name, JSON.stringify({ path, body: entry.body }));
    } catch {
      this.durable = false;
    }
    this.#changed();
    this.flush();
  }

  // Send everything that waits; resolves when all is saved or the service cannot be reached.
  flush() {
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
        reply = await post(entry.path, entry.body);
      } catch (error) {
        this.#later(error.sentence);
        return;
      }
      this.#delay = 500;
      this.offline = false;
      this.#waiting.shift();
      forget(entry.name);
      this.#changed();
      if (reply.ok) this.handlers.saved(entry, reply.content);
      else this.handlers.refused(entry, reply.content.detail);
    }
  }

  #later(sentence) {
    this.offline = true;
    this.reason = sentence ?? "No connection.";
    this.#changed();
    this.#retry = setTimeout(() => this.flush(), this.#delay);
    this.#delay = Math.min(2 * this.#delay, LONGEST_WAIT_MS);
  }

  #changed() {
    this.handlers.changed();
  }

  #stored() {
    const entries = [];
    try {
      for (const name of Object.keys(localStorage).filter((key) => key.startsWith(this.#prefix)).sort()) {
        entries.push({ name, ...JSON.parse(localStorage.getItem(name)) });
      }
    } catch {
      this.durable = false;
    }
    return entries;
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

// Throws where sending again later may help; otherwise the reply, whether accepted or refused.
async function post(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  const content = await response.json();
  noteLogin(response.status, content.detail);
  // 401: the login has ended. 421: another campaign is served here for now, or somebody else is
  // logged in. 5xx: the database is busy or the disk is full.
  if (response.status >= 500 || [401, 421].includes(response.status)) {
    throw Object.assign(new Error(), { sentence: content.detail });
  }
  return { ok: response.ok, content };
}

export async function get(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS) });
  const content = await response.json();
  noteLogin(response.status, content.detail);
  if (!response.ok) throw Object.assign(new Error(content.detail), { sentence: content.detail });
  return content;
}
