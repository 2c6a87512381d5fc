// A job's training curve: read once, then fed.
import { stream } from './api.js';
import { number } from './format.js';
import { Points } from './series.js';

const STEP_VALUES = ['loss', 'lr', 'grad_norm', 'tokens_per_second', 'of_limit', 'gpu_memory_bytes', 'tokens', 'seconds'];

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
  }

  // Takes points up to the index `next` of the server; those that it had already are left out.
  take(points, next) {
    if (number(next) <= this.next) return false;
    this.next = number(next);
    for (const point of points) this.add(point);
    ++this.version;
    return points.length > 0;
  }

  add(point) {
    const step = number(point.step);
    const time = Date.parse(point.time) / 1000;
    if (Number.isNaN(this.begin)) this.begin = time - number(point.step_seconds);
    const seconds = time - this.begin;
    if (point.is_eval) {
      this.validations.push(step, [number(point.val_loss), this.steps.length ? this.steps.last('tokens') : 0, seconds]);
      for (const { name, value } of point.values || []) this.grades.set(name, number(value));
      return;
    }
    // A point stands for all steps since the previous one.
    const before = this.steps.length ? this.steps.last('step') : 0;
    const seen = this.steps.length ? this.steps.last('tokens') : 0;
    const tokens = (before < step ? seen : 0) + number(point.tokens) * Math.max(1, step - before);
    this.steps.push(step, [number(point.loss), number(point.lr), number(point.grad_norm),
      number(point.tokens_per_second), number(point.of_limit), number(point.gpu_memory_bytes), tokens, seconds]);
  }

  // Reads what the server has beyond `next`; `shown` is called now and then while it comes.
  async read(job, signal, shown = () => undefined) {
    let told = performance.now();
    for await (const { metrics, next_index } of stream('JobService/ReadMetrics', { name: job, index: this.next }, signal)) {
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
