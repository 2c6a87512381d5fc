// Curves in memory: growing columns of numbers, and what is drawn of them.

// The most buckets that are drawn of a curve, each by its lowest and its highest point.
export const MOST_BUCKETS = 2000;

class Column {
  constructor() {
    this.values = new Float64Array(1024);
    this.length = 0;
  }

  push(value) {
    if (this.length === this.values.length) {
      const larger = new Float64Array(2 * this.length);
      larger.set(this.values);
      this.values = larger;
    }
    this.values[this.length++] = value;
  }

  view() {
    return this.values.subarray(0, this.length);
  }
}

// Points with a step and named values, in the order of their steps.
export class Points {
  constructor(names) {
    this.names = names;
    this.columns = Object.fromEntries(['step', ...names].map((name) => [name, new Column()]));
  }

  get length() {
    return this.columns.step.length;
  }

  // Drops points at `step` and later; whether there were any.
  cut(step) {
    if (this.length === 0 || this.last('step') < step) return false;
    const kept = firstNotBelow(this.column('step'), step);
    for (const column of Object.values(this.columns)) column.length = kept;
    return true;
  }

  // `step` is beyond the last one.
  push(step, values) {
    this.columns.step.push(step);
    for (let i = 0; i < this.names.length; ++i) this.columns[this.names[i]].push(values[i]);
  }

  column(name) {
    return this.columns[name].view();
  }

  last(name) {
    return this.length > 0 ? this.columns[name].values[this.length - 1] : NaN;
  }
}

// Index of the first value that is not below `limit`, in ascending values.
export function firstNotBelow(values, limit) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

// What is drawn of y over x between two values of x: every point where they are few, else the lowest
// and the highest of each bucket, so that no spike is lost. Values that are no numbers become gaps.
// Returns {x, y, points, buckets}; buckets is 0 where all points are there.
export function drawn(x, y, from = -Infinity, to = Infinity, most = MOST_BUCKETS) {
  // One point outside on either side, so that the line goes on to the edge.
  const begin = Math.max(0, firstNotBelow(x, from) - 1);
  let end = firstNotBelow(x, to);
  if (end < x.length) ++end;
  const points = end - begin;
  const out = { x: [], y: [], points, buckets: 0 };
  const add = (i) => {
    out.x.push(x[i]);
    out.y.push(Number.isFinite(y[i]) ? y[i] : null);
  };
  if (points <= 2 * most) {
    for (let i = begin; i < end; ++i) add(i);
    return out;
  }
  out.buckets = most;
  for (let bucket = 0; bucket < most; ++bucket) {
    const first = begin + Math.floor((points * bucket) / most);
    const last = begin + Math.floor((points * (bucket + 1)) / most);
    let low = -1;
    let high = -1;
    let odd = -1;
    for (let i = first; i < last; ++i) {
      const value = y[i];
      if (!Number.isFinite(value)) odd = i;
      else {
        if (low < 0 || value < y[low]) low = i;
        if (high < 0 || value > y[high]) high = i;
      }
    }
    for (const i of [...new Set([low, high, odd])].filter((index) => index >= 0).sort((a, b) => a - b)) add(i);
  }
  return out;
}

// Curves over one x: the union of their x, with gaps (undefined) where a curve has no point.
export function joined(curves) {
  if (curves.length === 1) return [curves[0].x, curves[0].y];
  const x = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const place = new Map(x.map((value, i) => [value, i]));
  return [x, ...curves.map((curve) => {
    const y = new Array(x.length).fill(undefined);
    for (let i = 0; i < curve.x.length; ++i) y[place.get(curve.x[i])] = curve.y[i];
    return y;
  })];
}

// An exponential mean with a half-life of `half` points; gaps stay gaps.
export function smooth(values, half) {
  const out = new Float64Array(values.length);
  const keep = 0.5 ** (1 / half);
  let sum = 0;
  let weight = 0;
  for (let i = 0; i < values.length; ++i) {
    if (Number.isFinite(values[i])) {
      sum = keep * sum + (1 - keep) * values[i];
      weight = keep * weight + (1 - keep);
      out[i] = sum / weight;
    } else {
      out[i] = NaN;
    }
  }
  return out;
}
