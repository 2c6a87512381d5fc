// Curves in memory: growing columns of numbers, and several over one x.

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

// Curves over one x: the union of their x, with nothing (undefined) where a curve has no point. Values
// that are no numbers become gaps.
export function joined(curves) {
  const shown = (value) => (Number.isFinite(value) ? value : null);
  if (curves.length === 1) return [curves[0].x, curves[0].y.map(shown)];
  const x = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const place = new Map(x.map((value, i) => [value, i]));
  return [x, ...curves.map((curve) => {
    const y = new Array(x.length).fill(undefined);
    for (let i = 0; i < curve.x.length; ++i) y[place.get(curve.x[i])] = shown(curve.y[i]);
    return y;
  })];
}
