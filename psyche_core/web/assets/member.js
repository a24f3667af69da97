// A member's page.

import { $, bytes, count, duration, el, figure, fill, link, loss, notice, parameter, table, traffic, when } from "./common.js";
import { Chart, colour } from "./chart.js";
import { join, placer, smooth, widthFor } from "./axis.js";
import { kindOf, legend, range, stateLabel, track } from "./timeline.js";
import { Live } from "./stream.js";

const [run, key] = [parameter("run"), parameter("member")];
const SPOKEN_MS = 20000;
const choice = { axis: "step" };
let spokenAt = 0;
const chart = new Chart($("loss"), {
  name: "loss of this member",
  height: 320,
  value: (value, step) => (step ? value.toFixed(Math.min(4, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)))) : loss(value)),
  empty: "It has trained nothing yet.",
  series: [
    { label: "loss", stroke: colour(0), width: 0.8, alpha: 0.5 },
    { label: "lowest", stroke: "transparent", width: 0 },
    { label: "highest", stroke: "transparent", width: 0 },
    { label: "smoothed", stroke: colour(0), width: 2.2 },
  ],
  bands: [{ series: [3, 2], fill: () => getComputedStyle(document.documentElement).getPropertyValue("--band").trim() }],
});

const live = new Live(run, key, draw);

function curve() {
  const rows = live.rows("loss");
  const place = placer(rows, choice.axis);
  const smoothed = smooth(rows.map((row) => row[1]), widthFor(rows.length, 15));
  const points = Object.assign(rows.map((row, index) => [place(row[0]), row[1], row[2], row[3], smoothed[index]]), { width: 4 });
  chart.set(join([points]), choice.axis);
}

function draw() {
  const member = live.one;
  if (!member) return;
  $("content").hidden = false;
  notice("");
  $("back").href = link("run", { run });
  $("back").textContent = `← ${live.head.run_id || run}`;
  $("name").textContent = member.label || "?";
  $("phase").textContent = member.state;
  $("phase").className = `chip ${{ healthy: "good", dropped: "late", ejected: "bad" }[kindOf(member.state)] ?? ""}`;
  document.title = `${member.label} · ${live.head.run_id || run} · psyche`;
  fill($("figures"), [
    figure("Loss", loss(member.loss), member.step === null ? "" : `step ${member.step}`),
    figure("Tokens trained", count(member.tokens), `${count(member.tokens_per_second)} a second`),
    figure("A result", bytes(member.payload_bytes), "its size"),
    figure("Sent", traffic(member, member.sent), `${traffic(member, member.received)} received`),
    figure("Peers", String(member.peers), member.over_others ? `connected, ${count(member.over_others)} more over others` : "connected"),
    figure("Points", member.earned === null ? "–" : count(member.earned), member.slashed ? `${count(member.slashed)} slashed` : member.paid ? `paid ${count(member.paid)} units` : ""),
    figure("Starts", String(member.starts), member.problems ? `${member.problems} problems told` : ""),
    figure("Key", el("code", { text: member.id ? `${member.id.slice(0, 12)}…` : "–" }), member.digest ? `epoch ${member.digest[0]} ended with ${member.digest[1].slice(0, 8)}` : ""),
  ]);
  curve();
  const shown = range(live.head);
  if (!$("legend").firstChild) $("legend").replaceChildren(...legend());
  fill($("track"), [track(member, shown, "tall")]);
  const spans = member.spans.map(([since, state, why], index) => [when(since), stateLabel(state), duration((member.spans[index + 1]?.[0] ?? live.head.newest) - since), why]);
  fill($("spans"), [table("When it took part, newest first", [["From", ""], ["State", ""], ["For", "n"], ["Why", ""]], spans.reverse())]);
  const news = [...live.news].reverse().map((line) => el("li", { class: line.level === "info" ? null : line.level }, when(line.time), el("span", { class: "who", text: line.source }), el("span", { class: "text", text: line.text })));
  fill($("news"), [news.length ? el("ul", { class: "log" }, ...news) : el("p", { text: "Nothing is told about it alone." })]);
  if (Date.now() - spokenAt > SPOKEN_MS) {
    spokenAt = Date.now();
    $("spoken").textContent = `${member.label}: ${member.state}, step ${member.step ?? "none"}, loss ${loss(member.loss)}`;
  }
}

const radio = (value, words) =>
  el("label", {}, el("input", { type: "radio", name: "axis", value, checked: choice.axis === value, onchange: () => { choice.axis = value; curve(); } }), words);
$("controls").replaceChildren(el("fieldset", {}, el("legend", { class: "hidden", text: "Horizontal axis" }), radio("step", "Steps"), radio("tokens", "Its tokens"), radio("time", "Time")));
live.open();
globalThis.psyche = { chart, live };
