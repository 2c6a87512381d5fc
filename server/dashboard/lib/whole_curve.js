// Every point of a job's training curve, for figures that need each of them.
import { stream } from './api.js';
import { number } from './format.js';
import { Points } from './series.js';

export class WholeCurve {
  constructor() {
    this.steps = new Points(['loss', 'tokens_per_second', 'gpu_memory_bytes', 'tokens']);
    this.validations = new Points(['val_loss']);
    // Index of the next point on the server.
    this.next = 0;
  }

  // A step that was there already is run again by a later attempt: what followed it is void.
  add(point) {
    const step = number(point.step);
    if (point.is_eval) {
      this.validations.cut(step);
      this.validations.push(step, [number(point.val_loss)]);
      return;
    }
    if (this.steps.cut(step)) this.validations.cut(step);
    const last = (name) => (this.steps.length > 0 ? this.steps.last(name) : 0);
    // A point stands for all steps since the previous one.
    const tokens = last('tokens') + number(point.tokens) * (step - last('step'));
    this.steps.push(step, [number(point.loss), number(point.tokens_per_second), number(point.gpu_memory_bytes),
      tokens]);
  }

  // Reads what the server has beyond `next`.
  async read(job, signal) {
    for await (const { metrics, next_index } of stream('JobService/ReadMetrics', { name: job, index: this.next },
      signal)) {
      if (number(next_index) <= this.next) continue;
      this.next = number(next_index);
      for (const point of metrics || []) this.add(point);
    }
  }
}
