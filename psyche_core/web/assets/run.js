// A run's page.

import { $, bytes, clock, count, duration, el, figure, fill, link, loss, notice, parameter, phaseOf, table, traffic, when } from "./common.js";
import { Chart, colour, hue } from "./chart.js";
import { growth, join, placer, rates, smooth, widthFor } from "./axis.js";
import { legend, range, stateLabel, track } from "./timeline.js";
import { Live } from "./stream.js";

const run = parameter("run");
const DRAW_MS = 250;
const SPOKEN_MS = 20000;
const LOSSES_MS = 5000;
const wide = (series) => Object.assign(series, { width: 4 });
const choice = { axis: "step", smoothing: 31, each: false, log: false };
let losses = null;
let spokenAt = 0;
let due = false;

const live = new Live(run, null, () => {
  if (!due) {
    due = true;
    setTimeout(() => requestAnimationFrame(draw), DRAW_MS);
  }
});

/** step: distance of an axis's ticks, which then all have as many digits. */
const figureOf = (value, step) => (step ? value.toFixed(Math.min(4, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)))) : loss(value));
const charts = {
  loss: new Chart($("loss"), { name: "loss", height: 380, series: [], value: figureOf, sync: "run", empty: "No losses yet. They appear here by themselves." }),
};
for (const [name, title, series, value] of [
  ["rate", "Tokens a second, all members", [{ label: "tokens/s", stroke: colour(0), width: 1.5 }], (v) => count(v)],
  ["healthy", "Healthy members", [{ label: "members", stroke: colour(2), width: 1.5 }], (v) => (Math.round(v * 10) / 10).toString()],
  ["accepted", "Results that witnesses accepted", [{ label: "accepted", stroke: colour(0), width: 1.5 }], (v) => `${Math.round(v * 1000) / 10} %`],
  ["traffic", "Bytes a second, all members", [{ label: "sent", stroke: colour(0), width: 1.5 }, { label: "received", stroke: colour(1), width: 1.5 }], (v) => bytes(v)],
]) {
  const place = el("div");
  const id = `${name}-title`;
  $("small").append(el("section", { class: "card", "aria-labelledby": id }, el("div", { class: "head" }, el("h2", { id, text: title })), place));
  charts[name] = new Chart(place, { name: title.toLowerCase(), height: 170, series, value, tools: false, sync: name === "traffic" ? null : "run", axis: name === "traffic" ? "time" : "step", low: 0 });
}

function controls() {
  const radio = (value, words) =>
    el("label", {}, el("input", { type: "radio", name: "axis", value, checked: choice.axis === value, onchange: () => set({ axis: value }) }), words);
  const smoothing = el("select", { onchange: (event) => set({ smoothing: Number(event.target.value) }) });
  for (const [value, words] of [[0, "none"], [9, "light"], [31, "medium"], [101, "strong"]]) smoothing.append(el("option", { value, selected: value === choice.smoothing, text: words }));
  const box = (name, words) => el("label", { class: "check" }, el("input", { type: "checkbox", onchange: (event) => set({ [name]: event.target.checked }) }), words);
  $("controls").replaceChildren(
    el("fieldset", {}, el("legend", { class: "hidden", text: "Horizontal axis" }), radio("step", "Steps"), radio("tokens", "Tokens"), radio("time", "Time")),
    el("label", { class: "check" }, "Smoothing ", smoothing),
    box("each", "Each member"),
    box("log", "Logarithmic"),
  );
}

function set(change) {
  Object.assign(choice, change);
  if ("log" in change) charts.loss.setLog(choice.log);
  if ("each" in change) fetchLosses();
  if (live.head) curves();
}

async function fetchLosses() {
  if (!choice.each) {
    losses = null;
    return;
  }
  try {
    losses = await (await fetch(`api/losses?${new URLSearchParams({ run })}`)).json();
    curves();
  } catch {
    // shown at the next try
  }
  setTimeout(() => choice.each && fetchLosses(), LOSSES_MS);
}

/** Which lines the loss chart has; made anew only when that changes. */
let lines = "";
function describeLoss(members) {
  const wanted = JSON.stringify([choice.smoothing > 0, members.map((member) => member.key), live.head.reported]);
  if (wanted === lines) return;
  lines = wanted;
  const series = [
    { label: "loss", stroke: colour(0), width: choice.smoothing ? 0.7 : 1.6, alpha: choice.smoothing ? 0.45 : 1 },
    { label: "lowest", stroke: "transparent", width: 0 },
    { label: "highest", stroke: "transparent", width: 0 },
    { label: choice.smoothing ? "smoothed" : "", show: choice.smoothing > 0, stroke: colour(0), width: 2.2 },
    { label: "validation", stroke: colour(1), width: 1.6, points: { show: true, size: 6 } },
    ...members.map((member, index) => ({ label: "", stroke: hue(index, members.length), width: 0.8 })),
  ];
  const band = () => getComputedStyle(document.documentElement).getPropertyValue("--band").trim();
  charts.loss.describe(series, [{ series: [3, 2], fill: band }]);
}

function curves() {
  const rows = live.rows("loss");
  const axis = choice.axis;
  const place = placer(rows, axis);
  const members = losses?.members ?? [];
  const smoothed = smooth(rows.map((row) => row[1]), widthFor(rows.length, choice.smoothing));
  const main = wide(rows.map((row, index) => [place(row[0]), row[1], row[2], row[3], smoothed[index]]));
  const validation = live.rows("validation").map((row) => [place(row[0]), row[1]]);
  describeLoss(members);
  charts.loss.set(join([main, validation, ...members.map((member) => member.rows.map(([step, value]) => [place(step), value]))]), axis);
  const at = (found) => join([found.map(([step, value]) => [place(step), value])]);
  charts.rate.set(at(live.head.reported ? [] : rates(rows)), axis);
  charts.healthy.set(at(live.rows("healthy").map((row) => [row[0], row[1]])), axis);
  charts.accepted.set(at(live.rows("accepted").map((row) => [row[0], row[1]])), axis);
  charts.traffic.set(join([growth(live.rows("sent")), growth(live.rows("received"))]), "time");
}

function draw() {
  due = false;
  const head = live.head;
  if (!head) return;
  $("content").hidden = false;
  notice(live.ready ? "" : "The event files are still being read; what is here so far is shown.");
  const name = head.run_id || run;
  const [phase, kind] = phaseOf(head);
  $("name").textContent = name;
  $("phase").textContent = phase;
  $("phase").className = `chip ${kind}`;
  document.title = `${head.loss === null ? "" : `${loss(head.loss)} · `}${name} · psyche`;
  progress(head);
  figures(head);
  $("controls").querySelector("[value=tokens]").disabled = head.reported;
  curves();
  members(head);
  lists();
  speak(head, phase);
}

function secondsPerStep() {
  const rows = live.rows("loss");
  const last = rows[rows.length - 1];
  const before = rows[Math.max(0, rows.length - 1 - Math.max(1, Math.ceil(40 / live.series.get("loss").width)))];
  return rows.length < 2 || last[0] <= before[0] ? null : (last[5] - before[5]) / (last[0] - before[0]);
}

function progress(head) {
  const each = secondsPerStep();
  const words = [];
  if (head.total_steps) words.push(`step ${head.step.toLocaleString("en")} of ${head.total_steps.toLocaleString("en")}`);
  if (each) words.push(`${duration(each) === "0 s" || each < 10 ? `${each.toFixed(1)} s` : duration(each)} a step`);
  if (head.total_steps && each && !head.ended && !head.silent) words.push(`about ${duration(each * Math.max(0, head.total_steps - head.step))} left`);
  if (head.ended) words.push(head.ended.reason);
  else if (head.needed && head.clients < head.needed) words.push(`${head.clients} of ${head.needed} members that are needed to start`);
  const parts = [];
  if (head.total_steps) {
    const done = el("div", { class: "done" });
    done.style.width = `${Math.min(100, (100 * head.step) / head.total_steps)}%`;
    parts.push(el("div", { class: "rail", role: "progressbar", "aria-label": "Steps", "aria-valuemin": 0, "aria-valuemax": head.total_steps, "aria-valuenow": Math.min(head.step, head.total_steps) }, done));
  }
  if (words.length) parts.push(el("p", { text: words.join(" · ") }));
  fill($("progress"), parts);
}

function figures(head) {
  fill($("figures"), [
    figure("Loss", loss(head.loss), head.reported ? "as witnesses report, unverified" : "nats per token, all members"),
    figure("Validation loss", head.validation ? loss(head.validation[1]) : "–", head.validation ? `after step ${head.validation[0]}` : ""),
    figure("Step", head.step.toLocaleString("en"), head.epoch === null ? "" : `epoch ${head.epoch}`),
    figure("Members", head.members ? `${head.healthy} of ${head.members}` : "–", head.silent ? "trained when last heard" : "train now"),
    figure("Tokens", head.reported ? "–" : count(head.tokens), head.tokens_per_second && !head.silent ? `${count(head.tokens_per_second)} a second` : ""),
    figure("Sent", head.sent ? bytes(head.sent) : "–", head.received ? `${bytes(head.received)} received` : ""),
    figure("Time", head.first === null ? "–" : duration(head.newest - head.first), `last heard ${clock(head.newest || null)}`),
    ...(head.differ ? [figure("Replicas differ", String(head.differ), "see the news")] : []),
    ...(head.parameters ? [figure("Parameters", count(head.parameters))] : []),
  ]);
}

const ALIKE = "How much its newest result is like another of this step or of the last 20. Above 30 % it is worth a look; it proves nothing.";
const CHECKED = "How many of its shares others recomputed and found trained, and its strikes. The second strike of an epoch ejects.";
const checked = ({ checks, strikes }) => (strikes ? `${checks} · ${strikes} strike${strikes > 1 ? "s" : ""}` : checks ? count(checks) : "–");
const share = (value) => (typeof value === "number" ? `${Math.round(100 * value)} %` : "–");
// What the list is sorted by (null: it cannot be), heading, class, and the cell's text or element.
const COLUMNS = [
  ["label", "Member", "", (member) => el("th", { scope: "row" }, el("a", { href: link("member", { run, member: member.key }), text: member.label || "?" }))],
  ["state", "State", "", (member) => el("td", {}, stateLabel(member.state))],
  [null, "When it took part", "wide", (member, shown) => el("td", { class: "wide" }, track(member, shown))],
  ["step", "Step", "n rare", (member) => member.step ?? "–"],
  ["loss", "Loss", "n", (member) => loss(member.loss)],
  ["tokens_per_second", "Tokens/s", "n rare", (member) => count(member.tokens_per_second)],
  ["sent", "Sent", "n rare", (member) => traffic(member, member.sent)],
  ["received", "Received", "n rare", (member) => traffic(member, member.received)],
  ["overlap", "Alike", "n rare", (member) => el("td", { class: "n rare", title: ALIKE, text: share(member.overlap) })],
  ["checks", "Checked", "n rare", (member) => el("td", { class: "n rare", title: CHECKED, text: checked(member) })],
  ["earned", "Points", "n rare", (member) => member.earned ?? "–"],
];
const order = { by: "label", down: false };
const drawn = new Map();

function members(head) {
  const shown = range(head);
  const list = [...live.members.values()].sort((a, b) => {
    const [x, y] = [a[order.by], b[order.by]];
    const first = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : (x ?? -Infinity) - (y ?? -Infinity);
    return (order.down ? -first : first) || a.key.localeCompare(b.key, "en", { numeric: true });
  });
  const place = $("members");
  if (!place.firstChild) {
    place.append(el("table", {}, el("caption", { class: "hidden", text: "Members" }), el("thead"), el("tbody")));
    $("legend").replaceChildren(...legend());
  }
  const sortable = ([by, words, kind]) => {
    if (!by) return el("th", { scope: "col", class: kind, text: words });
    const sorted = order.by === by ? (order.down ? "descending" : "ascending") : null;
    const sort = () => {
      order.down = order.by === by ? !order.down : false;
      order.by = by;
      members(live.head);
      place.querySelector(`[data-by="${by}"]`)?.focus();
    };
    return el("th", { scope: "col", class: kind || null, "aria-sort": sorted }, el("button", { type: "button", "data-by": by, onclick: sort }, words));
  };
  const named = `${order.by}${order.down}`;
  if (place.dataset.order !== named) {
    place.dataset.order = named;
    place.querySelector("thead").replaceChildren(el("tr", {}, ...COLUMNS.map(sortable)));
  }
  const body = place.querySelector("tbody");
  const mark = `${shown[1]}`;
  const rows = list.map((member) => {
    const before = drawn.get(member.key);
    if (before && before.member === member && before.mark === mark) return before.row;
    const cells = COLUMNS.map(([, , kind, cell]) => {
      const made = cell(member, shown);
      return made instanceof Element ? made : el("td", { class: kind, text: made });
    });
    const row = el("tr", {}, ...cells);
    const focused = before?.row.contains(document.activeElement);
    before?.row.replaceWith(row);
    if (focused) row.querySelector("a").focus();
    drawn.set(member.key, { member, mark, row });
    return row;
  });
  if (rows.length !== body.children.length || rows.some((row, index) => body.children[index] !== row)) body.replaceChildren(...rows);
}

const SHOWN_SCORES = 6;

/** Benchmarks: the first score and the newest ones. Prompts: the first answer and the newest ones, newest first. */
function evaluations() {
  $("scores-card").hidden = live.scores.length === 0;
  const figures = (value) => (value === null ? "–" : value.toFixed(4));
  const scores = live.scores.map(({ task, metric, rows }) => {
    const [first, last] = [rows[0] ?? [0, null], rows[rows.length - 1] ?? [0, null]];
    const between = rows.slice(1, -1).slice(-SHOWN_SCORES).map(([step, value]) => `${figures(value)} (step ${step})`);
    return [task, metric, `${figures(first[1])} (step ${first[0]})`, between.join(", ") || "–", `${figures(last[1])} (step ${last[0]})`];
  });
  fill($("scores"), [table("Evaluations", [["Task", ""], ["Metric", ""], ["First", ""], ["Between", "rare"], ["Newest", ""]], scores)]);
  $("answers-card").hidden = live.answers.length === 0;
  const answers = live.answers.flatMap(({ prompt, answers }) => [...answers].reverse().map((each) => [prompt, each.step, when(each.time), each.text]));
  fill($("answers"), [table("Prompts with their answers, newest first", [["Prompt", ""], ["Step", "n"], ["Time", "rare"], ["The model writes", ""]], answers)]);
}

function lists() {
  evaluations();
  const agreed = (epoch) => (epoch.digests.length === 0 ? "–" : epoch.digests.length === 1 ? `${epoch.digests[0]} equal` : `DIFFER: ${epoch.digests.join(" and ")}`);
  const epochs = [...live.epochs].reverse().map((epoch) => [
    epoch.epoch,
    epoch.last === null ? `${epoch.first} …` : `${epoch.first}–${epoch.last}`,
    when(epoch.began),
    epoch.ended === null ? "–" : duration(epoch.ended - epoch.began),
    epoch.clients || "–",
    agreed(epoch),
    el("code", { text: epoch.digest.slice(0, 8) || "–" }),
  ]);
  fill($("epochs"), [epochs.length ? table("Epochs, newest first", [["Epoch", ""], ["Steps", ""], ["Began", ""], ["Took", "n"], ["Members", "n"], ["Replicas", ""], ["Digest", "rare"]], epochs) : el("p", { text: "No epoch has begun." })]);
  const words = { saved: "saved", stored: "stored for all", paid: "paid" };
  const entries = [...live.entries].reverse().map((entry) => [
    when(entry.time),
    words[entry.kind] ?? entry.kind,
    entry.kind === "paid" ? `${entry.number.toLocaleString("en")} units` : `step ${entry.number}`,
    el("code", { text: entry.text }),
  ]);
  fill($("entries"), [entries.length ? table("Checkpoints and payments, newest first", [["Time", ""], ["What", ""], ["Which", ""], ["Where or to whom", ""]], entries) : el("p", { text: "None yet." })]);
  const news = [...live.news].reverse().map((line) =>
    el("li", { class: line.level === "info" ? null : line.level }, when(line.time), el("span", { class: "who", text: line.source }), el("span", { class: "text", text: line.text })),
  );
  fill($("news"), [news.length ? el("ul", { class: "log" }, ...news) : el("p", { text: "Nothing yet." })]);
}

/** Now and then one sentence for those who listen. */
function speak(head, phase) {
  if (Date.now() - spokenAt < SPOKEN_MS) return;
  spokenAt = Date.now();
  const of = head.total_steps ? ` of ${head.total_steps}` : "";
  $("spoken").textContent = `${phase}, step ${head.step}${of}, loss ${loss(head.loss)}, ${head.healthy} of ${head.members} members train`;
}

controls();
live.open();
globalThis.psyche = { charts, live }; // for tests and the curious
