// What all pages share: making elements, numbers as text, the theme switch. Text of others is only ever set as text.

export const $ = (id) => document.getElementById(id);

/** An element. attributes: by name; `class`, `text` and listeners (`onclick`) too. children: elements or strings, never markup. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export const parameter = (name) => new URLSearchParams(location.search).get(name) ?? "";

export const link = (page, parameters) => `${page}?${new URLSearchParams(parameters)}`;

/** Three digits and a unit; a value that would round to 1,000 of a unit is one of the next. */
const scaled = (value, units) => {
  for (const [size, unit] of units) if (Math.abs(value) >= 0.9995 * size) return `${(value / size).toPrecision(3)} ${unit}`;
  return null;
};

export const count = (value) =>
  value === null || value === undefined
    ? "–"
    : Math.abs(value) < 1e4
      ? Math.round(value).toLocaleString("en")
      : scaled(value, [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]);

export const bytes = (value) =>
  value === null || value === undefined
    ? "–"
    : (scaled(value, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) ?? `${Math.round(value)} B`);

/** What a member sent or received; a server that hears nothing of it knows only zeros. */
export const traffic = (member, value) => (member.sent || member.received ? bytes(value) : "–");

export const loss = (value) => (value === null || value === undefined ? "–" : value.toFixed(value < 10 ? 3 : 2));

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const two = (number) => String(number).padStart(2, "0");

/** Local time: with the day unless it is today. */
export function clock(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const date = new Date(seconds * 1000);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const now = new Date();
  if (date.toDateString() === now.toDateString()) return time;
  const day = `${date.getDate()} ${MONTHS[date.getMonth()]}`;
  return date.getFullYear() === now.getFullYear() ? `${day} ${time}` : `${day} ${date.getFullYear()} ${time}`;
}

/** A place on a time axis whose ticks are so many seconds apart. */
export function tick(seconds, apart) {
  const date = new Date(seconds * 1000);
  const day = `${date.getDate()} ${MONTHS[date.getMonth()]}`;
  const time = `${two(date.getHours())}:${two(date.getMinutes())}`;
  if (apart >= 86400) return day;
  if (apart < 60) return `${time}:${two(date.getSeconds())}`;
  return date.getHours() === 0 && date.getMinutes() === 0 ? day : time;
}

export const when = (seconds) =>
  el("time", { datetime: seconds === null ? null : new Date(seconds * 1000).toISOString(), text: clock(seconds) });

/** One figure of a list of figures; more: a smaller line below. */
export function figure(name, value, more = "") {
  return el("div", {}, el("dt", { text: name }), el("dd", { title: more || null }, value, more ? el("small", { text: more }) : null));
}

/** Replace children only if what they would say has changed: screen readers and selections are not disturbed. */
export function fill(place, children) {
  const box = el("div", {}, ...children);
  if (place.innerHTML === box.innerHTML) return;
  place.replaceChildren(...box.childNodes);
}

export function table(caption, columns, rows) {
  return el(
    "table",
    {},
    el("caption", { class: "hidden", text: caption }),
    el("thead", {}, el("tr", {}, ...columns.map(([name, kind]) => el("th", { scope: "col", class: kind || null, text: name })))),
    el(
      "tbody",
      {},
      ...rows.map((row) =>
        el("tr", {}, ...row.map((cell, index) => el("td", { class: columns[index][1] || null }, cell instanceof Node ? cell : String(cell)))),
      ),
    ),
  );
}

const phases = {
  WaitingForMembers: ["waiting for members", "late"],
  Warmup: ["warming up", "late"],
  RoundTrain: ["training", "good"],
  RoundWitness: ["training", "good"],
  Training: ["training", "good"],
  Cooldown: ["epoch's end", "good"],
  Paused: ["paused", "late"],
  Finished: ["finished", ""],
  Uninitialized: ["not set up", ""],
};

/** How a run's phase is called, and how good it is. */
export function phaseOf(head) {
  if (head.ended) return [head.ended.success ? "finished" : "failed", head.ended.success ? "" : "bad"];
  if (head.silent) return [`no news since ${clock(head.newest)}`, "late"];
  if (!head.phase) return [head.step ? "training" : "starting", head.step ? "good" : ""];
  return phases[head.phase] ?? [head.phase, ""];
}

export function notice(text, ...more) {
  const place = $("notice");
  place.hidden = !text;
  place.replaceChildren(text, ...more);
}

const themes = ["system", "light", "dark"];

function theme(change) {
  const root = document.documentElement;
  let now = root.dataset.theme ?? "system";
  if (change) {
    now = themes[(themes.indexOf(now) + 1) % themes.length];
    if (now === "system") delete root.dataset.theme;
    else root.dataset.theme = now;
    try {
      localStorage.setItem("psyche-theme", now);
    } catch {
      // not kept
    }
    dispatchEvent(new Event("themechange"));
  }
  $("theme").textContent = `Theme: ${now}`;
}

$("theme").addEventListener("click", () => theme(true));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("themechange")));
theme(false);
