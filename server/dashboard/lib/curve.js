// A job's training curve: read once, then fed.
import { stream } from './api.js';
import { number } from './format.js';
import { Points } from './series.js';

// Margin and accuracy are of jobs that learn from preferences; NaN in others.
const STEP_VALUES = ['loss', 'lr', 'grad_norm', 'tokens_per_second', 'of_limit', 'gpu_memory_bytes', 'margin',
  'accuracy', 'tokens', 'seconds'];

export class Curve {
  constructor() {
    this.steps = new Points(STEP_VALUES);
    this.validations = new Points(['val_loss', 'tokens', 'seconds']);
    // Names and last values of what answers to validation rows were graded by.
    this.grades = new Map();
    // Index of the next point on the server.
    this.next = 0;
    this.version = 0;
    this.begin = NaN;
    // Whether the job learns from preferences.
    this.prefers = false;
  }

  // Takes points up to the index `next` of the server; those that it had already are left out.
  take(points, next) {
    if (number(next) <= this.next) return false;
    this.next = number(next);
    for (const point of points) this.add(point);
    ++this.version;
    return points.length > 0;
  }

  // A step that was there already is run again by a later attempt: what followed it is void.
  add(point) {
    const step = number(point.step);
    const time = Date.parse(point.time) / 1000;
    if (Number.isNaN(this.begin)) this.begin = time - number(point.step_seconds);
    const seconds = time - this.begin;
    const last = (name) => (this.steps.length > 0 ? this.steps.last(name) : 0);
    if (point.is_eval) {
      this.validations.cut(step);
      this.validations.push(step, [number(point.val_loss), last('tokens'), seconds]);
      for (const { name, value } of point.values || []) this.grades.set(name, number(value));
      return;
    }
    if (this.steps.cut(step)) this.validations.cut(step);
    // A point stands for all steps since the previous one.
    const tokens = last('tokens') + number(point.tokens) * (step - last('step'));
    const preference = point.preference;
    this.prefers = this.prefers || !!preference;
    const margin = preference ? number(preference.rewards_chosen) - number(preference.rewards_rejected) : NaN;
    this.steps.push(step, [number(point.loss), number(point.lr), number(point.grad_norm),
      number(point.tokens_per_second), number(point.of_limit), number(point.gpu_memory_bytes), margin,
      preference ? number(preference.rewards_accuracies) : NaN, tokens, seconds]);
  }

  // Reads what the server has beyond `next`; `shown` is called now and then while it comes.
  async read(job, signal, shown = () => undefined) {
    let told = performance.now();
    for await (const { metrics, next_index } of stream('JobService/ReadMetrics', { name: job, index: this.next },
      signal)) {
      this.take(metrics || [], next_index);
      if (performance.now() - told < 250) continue;
      told = performance.now();
      shown();
      // So that the browser draws.
      await new Promise((done) => setTimeout(done));
    }
    shown();
  }
}
