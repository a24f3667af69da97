// The live document of a run or a member: what the server sent so far, put together.

import { $, el, notice } from "./common.js";

const NEWS = 300;
const AGAIN_MS = 3000;

export class Live {
  /** member: key of a member, or null for the whole run. changed: called after each message. */
  constructor(run, member, changed) {
    this.run = run;
    this.member = member;
    this.changed = changed;
    this.clear();
  }

  clear() {
    this.head = null;
    this.series = new Map();
    this.members = new Map();
    this.news = [];
    this.epochs = [];
    this.stages = [];
    this.entries = [];
    this.scores = [];
    this.answers = [];
    this.one = null;
    this.ready = true;
  }

  open() {
    const asked = new URLSearchParams({ run: this.run });
    if (this.member !== null) asked.set("member", this.member);
    this.source = new EventSource(`api/events?${asked}`);
    this.source.onopen = () => this.tell("on", "live");
    this.source.onmessage = (message) => {
      this.take(JSON.parse(message.data));
      this.changed(this);
    };
    this.source.onerror = async () => {
      if (this.source.readyState === EventSource.CONNECTING) {
        this.tell("off", "connection lost, trying again …");
        return;
      }
      this.tell("off", "not connected");
      const answer = await fetch(`api/run?${asked}`).catch(() => null);
      if (answer?.status === 404) {
        notice("There is no such run here yet, or it is private. ", el("a", { href: "./", text: "All runs" }), " · ", el("a", { href: "login", text: "I have a token" }));
      }
      setTimeout(() => this.open(), AGAIN_MS); // a run may be about to begin
    };
  }

  tell(kind, text) {
    const place = $("live");
    if (place.textContent === text) return;
    place.className = `live ${kind}`;
    place.textContent = text;
  }

  take(document) {
    if (document.since === 0) this.clear();
    this.head = document.head;
    this.ready = document.ready;
    this.one = document.member ?? this.one;
    for (const [name, sent] of Object.entries(document.series)) {
      const rows = sent.reset ? [] : (this.series.get(name)?.rows ?? []);
      for (const row of sent.rows) put(rows, row);
      this.series.set(name, { width: sent.width, rows });
    }
    for (const member of document.members ?? []) this.members.set(member.key, member);
    if (document.keys) {
      const keys = new Set(document.keys);
      for (const key of this.members.keys()) if (!keys.has(key)) this.members.delete(key);
    }
    this.news = [...this.news, ...document.news].slice(-NEWS);
    for (const list of ["epochs", "stages", "entries", "scores", "answers"]) this[list] = document[list] ?? this[list];
  }

  rows(name) {
    return this.series.get(name)?.rows ?? [];
  }
}

/** Put a row where its key belongs. Nearly always that is the end. */
function put(rows, row) {
  let at = rows.length;
  while (at > 0 && rows[at - 1][0] > row[0]) at--;
  if (at > 0 && rows[at - 1][0] === row[0]) rows[at - 1] = row;
  else rows.splice(at, 0, row);
}
