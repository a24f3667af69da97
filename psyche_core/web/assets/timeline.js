// When members took part: coloured spans, always with words beside them, since colours alone say nothing to many.

import { clock, duration, el } from "./common.js";

const KINDS = {
  healthy: "healthy",
  finished: "left",
  left: "left",
  leaving: "left",
  failed: "ejected",
  ejected: "ejected",
  dropped: "dropped",
  waiting: "waiting",
  joined: "waiting",
  starting: "loading",
  loading: "loading",
  "catching up": "loading",
};

export const LEGEND = [
  ["healthy", "trains"],
  ["waiting", "waits"],
  ["loading", "starts or loads"],
  ["dropped", "dropped"],
  ["ejected", "ejected or failed"],
  ["left", "left or finished"],
];

export const kindOf = (state) => KINDS[state] ?? "left";

export const stateLabel = (state, words = state) => el("span", { class: `state ${kindOf(state)}`, text: words || "–" });

export const legend = () => LEGEND.map(([kind, words]) => el("li", {}, el("span", { class: `state ${kind}`, text: words })));

/** Times that a timeline shows, of a run's head. The end moves in steps, so that not everything is drawn at every message. */
export function range(head) {
  const first = head.first ?? 0;
  const length = Math.max(1, (head.newest ?? first) - first);
  const grain = Math.max(1, length / 150);
  return [first, first + Math.ceil(length / grain) * grain];
}

export function track(member, [first, last], more = "") {
  const made = el("div", { class: `track ${more}`, role: "img", "aria-label": spoken(member, last) });
  const percent = (time) => Math.min(100, Math.max(0, (100 * (time - first)) / (last - first)));
  member.spans.forEach(([since, state, why], index) => {
    const until = member.spans[index + 1]?.[0] ?? last;
    const span = el("i", { class: kindOf(state), title: `${state}${why ? ` (${why})` : ""}, from ${clock(since)}, ${duration(until - since)}` });
    span.style.left = `${percent(since)}%`;
    span.style.width = `max(2px, ${percent(until) - percent(since)}%)`;
    made.append(span);
  });
  return made;
}

function spoken(member, last) {
  if (!member.spans.length) return "nothing known";
  let healthy = 0;
  let dropped = 0;
  member.spans.forEach(([since, state], index) => {
    if (state === "healthy") healthy += (member.spans[index + 1]?.[0] ?? last) - since;
    if (state === "dropped") dropped += 1;
  });
  const share = Math.round((100 * healthy) / Math.max(1, last - member.spans[0][0]));
  return `trained ${share} % of the time since ${clock(member.spans[0][0])}${dropped ? `, dropped ${dropped} times` : ""}, now ${member.state}`;
}
