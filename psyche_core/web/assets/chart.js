// A chart by uPlot that can be used by mouse, touch, keyboard and screen reader.
// Drag selects what to enlarge, wheel enlarges, shift and wheel (or a sideways wheel) moves; buttons and keys do the same.

import { clock, count, el, table, tick } from "./common.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const LINES = ["--accent", "--warm", "--good", "--bad", "--late", "--soft"];
/** Distances between the marks of an axis of whole numbers. */
const WHOLE = [...Array(13).keys()].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));
let charts = 0;

export const colour = (index) => () => css(LINES[index % LINES.length]);

/** n colours that can be told apart, for many thin lines. */
export const hue = (index, of) => `hsl(${Math.round((360 * index) / Math.max(1, of))} 55% 52%)`;

export class Chart {
  /**
   * place: element that gets it. name: for those who cannot see it. tools: whether there are buttons; keys there are always. height: pixels. series: as uPlot takes them, with `label`.
   * value: a value as text. bands: as uPlot takes them. axis: "step", "tokens" or "time". sync: charts of one name share a cursor.
   */
  constructor(place, { name, height, series, value, bands = [], axis = "step", sync = null, low = null, tools = true, empty = "Nothing yet." }) {
    Object.assign(this, { place, name, height, series, value, bands, axis, sync, low, data: null, zoom: null, plot: null, log: false });
    this.number = ++charts;
    const hint = `hint-${this.number}`;
    this.box = el("div", { class: "plot", tabindex: "0", role: "group", "aria-label": `Chart: ${name}`, "aria-describedby": hint });
    this.empty = el("div", { class: "empty", text: empty });
    this.box.style.minHeight = `${height}px`;
    this.said = el("span", { class: "say", "aria-live": "polite" });
    const button = (text, label, act) => el("button", { type: "button", "aria-label": `${label}: ${name}`, title: label, onclick: act }, text);
    const buttons = [
      button("−", "Show more around", () => this.scale(2)),
      button("+", "Enlarge", () => this.scale(0.5)),
      button("←", "Move left", () => this.move(-0.25)),
      button("→", "Move right", () => this.move(0.25)),
      button("All", "Show all", () => this.reset()),
    ];
    this.tools = el("div", { class: "tools" }, ...(tools ? buttons : []), this.said);
    this.rows = el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `Last values: ${name}` });
    this.details = el("details", {}, el("summary", { text: "Last values as a table" }), this.rows);
    this.details.addEventListener("toggle", () => this.tabulate());
    const text = "Arrow keys read out points, plus and minus enlarge, Page Up and Page Down move, Escape shows all.";
    place.replaceChildren(el("p", { id: hint, class: "hidden", text }), this.box, this.tools, this.details);
    this.box.append(this.empty);
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    new ResizeObserver(() => this.plot?.setSize({ width: this.box.clientWidth, height: this.height })).observe(this.box);
    addEventListener("themechange", () => this.plot?.redraw(false, true));
  }

  /** columns: places and values, as uPlot takes them. What is enlarged stays so; a view of all goes on to show all. */
  set(columns, axis = this.axis) {
    const changed = axis !== this.axis;
    this.axis = axis;
    if (changed) this.zoom = null;
    this.data = columns;
    this.empty.hidden = columns[0].length > 0;
    if (!this.plot || changed) this.make();
    else this.draw();
    this.tabulate();
  }

  /** Other lines. */
  describe(series, bands = []) {
    this.series = series;
    this.bands = bands;
    this.plot?.destroy();
    this.plot = null;
  }

  setLog(log) {
    this.log = log;
    if (this.data) this.make();
  }

  place_text(x) {
    return this.axis === "time" ? clock(x) : this.axis === "tokens" ? `${count(x)} tokens` : `step ${Math.round(x)}`;
  }

  make() {
    this.plot?.destroy();
    const grid = { stroke: () => css("--grid"), width: 1 };
    const font = "12px system-ui, sans-serif";
    const axis = (more) => ({ stroke: () => css("--soft"), grid, ticks: { show: false }, font, ...more });
    const marked = (ticks, text) => ticks.map((at) => (at === null || this.data[0].length === 0 ? "" : text(at)));
    const values = (_, ticks, __, ___, step) => marked(ticks, (at) => (this.axis === "time" ? tick(at, step) : count(at)));
    const heights = (_, ticks, __, ___, step) => marked(ticks, (at) => this.value(at, step || 1));
    this.plot = new uPlot(
      {
        width: this.box.clientWidth || 600,
        height: this.height,
        cursor: { sync: this.sync ? { key: `${this.sync}-${this.axis}`, setSeries: false } : undefined, drag: { x: true, y: false, uni: 12 }, points: { size: 6 } },
        legend: { live: true },
        scales: {
          x: { time: this.axis === "time", range: (_, low, high) => this.range(low, high) },
          y: { distr: this.log ? 3 : 1, range: this.log ? undefined : (_, low, high) => this.height_of(low, high) },
        },
        axes: [
          axis({ values, space: 70, size: 30, ...(this.axis === "time" ? {} : { incrs: WHOLE }) }),
          axis({ size: 62, space: this.height > 250 ? 40 : 26, values: heights }),
        ],
        series: [
          { label: this.axis === "time" ? "time" : this.axis, value: (_, x) => (x === null ? "–" : this.place_text(x)) },
          ...this.series.map((line) => ({ spanGaps: true, points: { show: false }, value: (_, y) => (y === null || y === undefined ? "–" : this.value(y)), ...line })),
        ],
        bands: this.bands,
        hooks: {
          setSelect: [
            (plot) => {
              if (plot.select.width > 0) this.show(plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x"));
              plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            },
          ],
        },
      },
      this.data,
      this.box,
    );
    this.plot.over.addEventListener("dblclick", () => this.reset());
  }

  range(low, high) {
    if (this.zoom) return this.zoom;
    if (low === null || high === null) return [0, 1];
    return low === high ? [low - 1, high + 1] : [low, high];
  }

  height_of(low, high) {
    if (low === null || high === null) return [0, 1];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [this.low ?? low - room, high + room];
  }

  draw() {
    this.plot.setData(this.data, !this.zoom);
    if (this.zoom) this.plot.setScale("x", { min: this.zoom[0], max: this.zoom[1] });
  }

  all() {
    const x = this.data?.[0] ?? [];
    return x.length ? [x[0], x[x.length - 1]] : [0, 1];
  }

  show(low, high) {
    const [first, last] = this.all();
    const least = (last - first) / 1e5;
    if (high - low < least) return;
    this.zoom = low <= first && high >= last ? null : [Math.max(low, first - (high - low) / 2), Math.min(high, last + (high - low) / 2)];
    const [from, to] = this.zoom ?? [first, last];
    this.plot.setScale("x", { min: from, max: to });
  }

  view() {
    return this.zoom ?? this.all();
  }

  scale(by, around = null) {
    const [low, high] = this.view();
    const middle = around ?? (low + high) / 2;
    this.show(middle - (middle - low) * by, middle + (high - middle) * by);
  }

  move(by) {
    if (!this.zoom) return;
    const [low, high] = this.zoom;
    const [first, last] = this.all();
    let shift = (high - low) * by;
    shift = Math.min(Math.max(shift, first - low), last - high);
    this.show(low + shift, high + shift);
  }

  reset() {
    this.zoom = null;
    const [first, last] = this.all();
    this.plot?.setScale("x", { min: first, max: last });
  }

  wheel(event) {
    if (!this.plot || (!event.ctrlKey && !event.shiftKey && !event.altKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY) && document.activeElement !== this.box)) return;
    event.preventDefault();
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (sideways) this.move((event.deltaX || event.deltaY) / 600);
    else this.scale(Math.exp(event.deltaY / 400), this.plot.posToVal(event.clientX - this.plot.over.getBoundingClientRect().left, "x"));
  }

  key(event) {
    if (event.target !== this.box || !this.plot) return;
    const acts = {
      "+": () => this.scale(0.5),
      "=": () => this.scale(0.5),
      "-": () => this.scale(2),
      PageUp: () => this.move(-0.5),
      PageDown: () => this.move(0.5),
      Escape: () => this.reset(),
      ArrowLeft: () => this.read(-1),
      ArrowRight: () => this.read(1),
      Home: () => this.read(-Infinity),
      End: () => this.read(Infinity),
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** Put the cursor on another point that is in view, and say its values. */
  read(by) {
    const x = this.data[0];
    const [low, high] = this.view();
    const first = x.findIndex((place) => place >= low);
    const last = x.findLastIndex((place) => place <= high);
    if (first < 0 || last < first) return;
    const at = this.plot.cursor.idx ?? (by > 0 ? first - 1 : last + 1);
    const next = by === -Infinity ? first : by === Infinity ? last : Math.min(Math.max(at + by, first), last);
    this.plot.setCursor({ left: this.plot.valToPos(x[next], "x"), top: this.height / 3 });
    this.plot.cursor.idx = next;
    this.said.textContent = `${this.place_text(x[next])}: ${this.words(next)}`;
  }

  words(at) {
    return this.series
      .map((line, index) => [line.label, this.data[index + 1]?.[at]])
      .filter(([label, value]) => label && value !== null && value !== undefined)
      .map(([label, value]) => `${label} ${this.value(value)}`)
      .join(", ");
  }

  tabulate() {
    if (!this.details.open || !this.data) return;
    const x = this.data[0];
    const shown = this.series.map((line, index) => [line, this.data[index + 1]]).filter(([line]) => line.label).slice(0, 8);
    const rows = [];
    for (let at = x.length - 1; at >= 0 && rows.length < 12; at--) {
      if (shown.every(([, values]) => values[at] === null || values[at] === undefined)) continue;
      rows.push([this.place_text(x[at]), ...shown.map(([, values]) => (values[at] === null || values[at] === undefined ? "–" : this.value(values[at])))]);
    }
    const columns = [[this.axis === "time" ? "Time" : this.axis === "tokens" ? "Tokens" : "Step", ""], ...shown.map(([line]) => [line.label, "n"])];
    this.rows.replaceChildren(table(`Last values: ${this.name}, newest first`, columns, rows));
  }
}
