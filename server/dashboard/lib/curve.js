// A job's curves as the server draws them for what is in sight (JobService/GetCurve), with the points
// that have come since.
import { call } from './api.js';
import { number } from './format.js';

// With so many later points the server is asked again: a chart has no more of them than it can show.
const MOST_LATER = 1000;
const PAUSE_MS = 1000;
const NONE = { x: [], y: [], points: 0, parts: 0 };

export const AXES = { step: 'STEP', tokens: 'TOKENS', seconds: 'SECONDS' };

// {x, y, points, parts} of each series of an answer, by name; of ranks by "name/rank".
export function seriesOf(answer) {
  return new Map((answer.series || []).map((series) => [
    series.name.startsWith('rank_') ? `${series.name}/${series.rank || 0}` : series.name,
    { x: series.x || [], y: (series.y || []).map(Number), points: number(series.points),
      parts: number(series.parts) }]));
}

// What GetCurve is asked for a view {x, range}.
export const requestOf = (name, { x, range }) => ({ name, axis: AXES[x],
  ...(range ? { begin: range[0], end: range[1] } : {}) });

export class Curve {
  // `answers`: the job's steps are answers to prompts.
  constructor(name) {
    this.name = name;
    this.answers = false;
    this.view = { x: 'step', range: null, half: 0 };
    this.series = new Map();
    this.mean = NONE;  // of the loss, where the view asks for one
    this.extent = [0, 0];
    this.next = 0;  // index of the next point on the server
    this.ready = false;
    this.version = 0;
    // Later points than the server has drawn, and whether it has to be asked for what they change.
    this.later = 0;
    this.stale = false;
    this.reading = null;
  }

  of(name) {
    return this.series.get(name) || NONE;
  }

  // Names and last values of what answers to validation rows were graded by.
  grades() {
    return [...this.series].filter(([name]) => name.startsWith('val.')).map(([name, { y }]) => [name, y[y.length - 1]]);
  }

  // What is to be in sight from now on; whether that is something else.
  look(view) {
    if (JSON.stringify(view) === JSON.stringify(this.view)) return false;
    this.view = view;
    return true;
  }

  // Asks for what is in sight, now or after the call that is under way.
  read() {
    this.again = true;
    this.reading ||= (async () => {
      try {
        while (this.again) {
          this.again = false;
          await this.readOnce();
        }
      } finally {
        this.reading = null;
      }
    })();
    return this.reading;
  }

  async readOnce() {
    this.missed = [];
    this.asked = performance.now();
    const { view } = this;
    const request = requestOf(this.name, view);
    const [all, mean] = await Promise.all([call('JobService/GetCurve', request),
      view.half > 0 ? call('JobService/GetCurve', { ...request, values: ['loss'], half_life: view.half }) : {}]);
    this.series = seriesOf(all);
    this.mean = seriesOf(mean).get('loss') || NONE;
    this.extent = [number(all.first_x), number(all.last_x)];
    this.step = number(all.last_step);
    this.tokens = number(all.last_tokens);
    this.begin = all.begin_time ? Date.parse(all.begin_time) / 1000 : NaN;
    this.attempt = number(all.last_attempt);
    this.next = Math.max(this.next, number(all.next_index));
    this.stale = false;
    this.later = 0;
    this.ready = true;
    // What came while this was under way may be in the answer, or be later than it.
    for (const point of this.missed) this.add(point);
    ++this.version;
  }

  // Takes points up to the index `next` of the server; those that it had already are left out.
  take(points, next) {
    if (number(next) <= this.next) return false;
    this.next = number(next);
    if (this.reading) this.missed.push(...points);
    for (const point of points) this.add(point);
    ++this.version;
    return points.length > 0;
  }

  // Milliseconds until the server is to be asked again; NaN: it need not.
  due() {
    const wanted = this.stale || this.later > MOST_LATER || (this.view.half > 0 && this.later > 0);
    return wanted && !this.reading ? Math.max(0, this.asked + PAUSE_MS - performance.now()) : NaN;
  }

  add(point) {
    const step = number(point.step);
    const attempt = number(point.attempt);
    const time = Date.parse(point.time) / 1000;
    if (Number.isNaN(this.begin)) this.begin = time - number(point.step_seconds);
    if (step <= this.step && attempt > this.attempt) {
      // It is run again by a later attempt: what is drawn from there on is void.
      this.attempt = attempt;
      this.stale = true;
    }
    if (this.stale) return;
    const at = { step: this.step, tokens: this.tokens, seconds: time - this.begin };
    if (point.is_eval) {
      this.push('val_loss', { ...at, step }, point.val_loss);
      for (const { name, value } of point.values || []) this.push(name, { ...at, step }, value);
      return;
    }
    if (step <= this.step) return;
    // A point stands for all steps since the previous one; one of answers has the tokens of all.
    this.tokens += number(point.tokens) * (this.answers ? 1 : step - this.step);
    this.step = step;
    this.attempt = attempt;
    ++this.later;
    const here = { step, tokens: this.tokens, seconds: at.seconds };
    if (this.extent[1] === 0) this.extent[0] = here[this.view.x];
    this.extent[1] = here[this.view.x];
    for (const name of ['loss', 'lr', 'grad_norm', 'tokens_per_second', 'of_limit', 'gpu_memory_bytes']) {
      this.push(name, here, point[name]);
    }
    const preference = point.preference;
    if (!preference) return;
    this.push('margin', here, number(preference.rewards_chosen) - number(preference.rewards_rejected));
    this.push('accuracy', here, preference.rewards_accuracies);
  }

  // Behind the last point of its series, where it is in sight.
  push(name, at, value) {
    const x = at[this.view.x];
    const { range } = this.view;
    const series = this.of(name);
    if ((series.x.length > 0 && x <= series.x[series.x.length - 1]) || (range && x > range[1])) return;
    if (series === NONE) this.series.set(name, { x: [x], y: [number(value)], points: 1, parts: 0 });
    else {
      series.x.push(x);
      series.y.push(number(value));
      ++series.points;
    }
  }
}
