// The list of runs.

import { $, bytes, clock, count, el, fill, link, loss, notice, phaseOf } from "./common.js";

const SECONDS = 3;

function card(run) {
  const [phase, kind] = phaseOf(run);
  const pair = (name, value) => el("div", {}, el("dt", { text: name }), el("dd", { text: value }));
  const named = run.run_id && run.run_id !== run.key ? `${run.key} (${run.run_id})` : run.key;
  return el(
    "article",
    { class: "card" },
    el("div", { class: "head" }, el("h2", {}, el("a", { href: link("run", { run: run.key }), text: named })), el("span", { class: `chip ${kind}`, text: run.ready ? phase : "reading …" })),
    run.outline.length > 1 ? sketch(run.outline) : null,
    el(
      "dl",
      {},
      pair("Step", run.total_steps ? `${count(run.step)} of ${count(run.total_steps)}` : count(run.step)),
      pair("Loss", loss(run.loss)),
      pair("Members", run.members ? `${run.healthy} of ${run.members} ${run.silent ? "trained" : "train"}` : "–"),
      pair("Tokens", count(run.tokens)),
      pair("Traffic", bytes(run.sent)),
      pair("Last heard", clock(run.newest || null)),
    ),
  );
}

/** A small curve without axes; the loss stands beside it in words. */
function sketch(values) {
  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const points = values.map((value, at) => `${(100 * at) / (values.length - 1)},${high > low ? 2 + (28 * (high - value)) / (high - low) : 16}`);
  const drawn = svg("svg", { viewBox: "0 0 100 32", preserveAspectRatio: "none", class: "sketch", "aria-hidden": "true" });
  drawn.append(svg("polyline", { points: points.join(" "), "vector-effect": "non-scaling-stroke" }));
  return drawn;
}

async function show() {
  try {
    const answer = await fetch("api/runs");
    const told = await answer.json();
    const more = told.login ? el("a", { href: "login", text: "I have a token" }) : null;
    if (told.runs.length === 0) notice(told.login ? "The runs here are private. " : "There are no runs yet. They appear here by themselves.", ...(more ? [more] : []));
    else if (told.login) notice("There may be private runs, too. ", more);
    else notice("");
    fill($("runs"), told.runs.sort((a, b) => b.newest - a.newest).map(card));
  } catch {
    notice("The server does not answer; trying again …");
  }
  setTimeout(show, SECONDS * 1000);
}

show();
