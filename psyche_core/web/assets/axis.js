// Steps, tokens or time as the horizontal axis: where a step lies on it, and curves made of rows.
// A row is [first key, mean, lowest, highest, weight, unix seconds], as the server sends them.

/** A function from steps to places on an axis; kind: "step", "tokens" or "time". rows: of the loss, ascending. */
export function placer(rows, kind) {
  if (kind === "step") return (step) => step;
  const places = [];
  let tokens = 0;
  let time = 0;
  for (const row of rows) {
    tokens += row[4];
    time = Math.max(time, row[5]);
    places.push(kind === "tokens" ? tokens : time);
  }
  return (step) => {
    let low = 0;
    let high = rows.length - 1;
    if (high < 0) return null;
    if (step < rows[0][0]) return kind === "tokens" ? 0 : places[0];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (rows[middle][0] <= step) low = middle;
      else high = middle - 1;
    }
    return places[low];
  };
}

/** The width of a neighbourhood for a curve of so many points: at most a sixth of them, so that a short curve keeps its shape. */
export const widthFor = (points, wanted) => (wanted ? Math.min(wanted, Math.max(3, Math.floor(points / 6))) : 0);

/**
 * Local straight lines: each value becomes that of the line that fits its neighbourhood of `width` points best. At both ends the
 * neighbourhood keeps its width and only lies to one side, so the ends are as smooth as the rest and do not lag behind a slope.
 */
export function smooth(values, width) {
  if (!width) return values;
  const known = [];
  values.forEach((value, at) => value !== null && value !== undefined && known.push(at));
  const n = Math.min(width, known.length);
  const result = new Array(values.length).fill(null);
  if (n < 3) return values;
  // Sums over the window of y and of place * y; places count from the window's first point, so nothing cancels out.
  let from = 0;
  let sum = 0;
  let moment = 0;
  for (let at = 0; at < n; at++) {
    sum += values[known[at]];
    moment += at * values[known[at]];
  }
  const middle = (n - 1) / 2;
  const spread = (n * (n * n - 1)) / 12;
  for (let at = 0; at < known.length; at++) {
    const wanted = Math.min(Math.max(at - Math.floor(n / 2), 0), known.length - n);
    while (from < wanted) {
      const gone = values[known[from]];
      const come = values[known[from + n]];
      moment += n * come - come - sum + gone;
      sum += come - gone;
      from++;
    }
    const slope = (moment - middle * sum) / spread;
    result[known[at]] = sum / n + slope * (at - from - middle);
  }
  return result;
}

/** One array of places for several curves of [place, value…]; null where a curve has no point. Places ascend. */
export function join(curves) {
  const places = [...new Set(curves.flatMap((curve) => curve.map((point) => point[0])))].filter((x) => x !== null).sort((a, b) => a - b);
  const index = new Map(places.map((place, at) => [place, at]));
  const columns = [places];
  for (const curve of curves) {
    const width = curve.width ?? 1;
    const made = Array.from({ length: width }, () => new Array(places.length).fill(null));
    for (const point of curve) {
      const at = index.get(point[0]);
      if (at === undefined) continue;
      for (let column = 0; column < width; column++) made[column][at] = point[column + 1] ?? null;
    }
    columns.push(...made);
  }
  return columns;
}

/** Tokens a second between neighbouring rows, over windows of so many rows that the curve can be read. */
export function rates(rows) {
  const every = Math.max(1, Math.floor(rows.length / 240));
  const found = [];
  // The newest row is still filling up.
  for (let at = every; at < rows.length - 1; at += every) {
    let tokens = 0;
    for (let inside = at - every + 1; inside <= at; inside++) tokens += rows[inside][4];
    const seconds = rows[at][5] - rows[at - every][5];
    if (seconds > 0) found.push([rows[at][0], tokens / seconds]);
  }
  return found;
}

/** How fast a total grows, in units a second; rows of time buckets whose highest value is the total. */
export function growth(rows) {
  const every = Math.max(1, Math.floor(rows.length / 240));
  const found = [];
  for (let at = every; at < rows.length; at += every) {
    const seconds = rows[at][5] - rows[at - every][5];
    if (seconds > 0) found.push([rows[at][5], Math.max(0, (rows[at][3] - rows[at - every][3]) / seconds)]);
  }
  return found;
}
