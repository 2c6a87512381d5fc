// Figures of several jobs beside each other, as `sftctl compare` has them (client/output/comparison.cc).

const MEAN_OF = 10;
const UNIMPORTANT = new Set(['job.name', 'job.output_dir', 'data.template_date']);

// "a.b" -> value, of nested objects.
function flat(value, path = '', out = new Map()) {
  if (value !== null && typeof value === 'object' && !Array.isArray(value)) {
    for (const [key, each] of Object.entries(value)) flat(each, path ? `${path}.${key}` : key, out);
  } else {
    out.set(path, value);
  }
  return out;
}

function parsed(text) {
  try {
    return flat(JSON.parse(text));
  } catch {
    return new Map();
  }
}

function methodOf(keys) {
  const mode = keys.get('training.mode') || '';
  if (mode !== 'lora') return mode === 'full_finetune' ? 'full' : mode;
  return `${keys.get('training.use_qlora') ? 'qlora' : 'lora'} r=${keys.get('lora.r') ?? 0}`;
}

function median(values) {
  if (values.length === 0) return 0;
  const sorted = Float64Array.from(values).sort();
  return sorted[sorted.length >> 1];
}

// What is said of one run: `curve` is its WholeCurve.
export function figuresOf(job, curve) {
  const keys = parsed(job.resolved_json);
  const batch = Math.max(1, keys.get('hyperparameters.global_batch') || 1);
  const steps = curve.steps;
  const last = steps.length > 0 ? steps.last('step') : 0;
  const speeds = steps.column('tokens_per_second');
  const end = job.end_time ? Date.parse(job.end_time) : Date.now();
  return {
    job, curve, keys, batch,
    method: methodOf(keys),
    gpus: keys.get('compute.gpu_count') ?? 0,
    steps: last,
    samples: last * batch,
    tokens: steps.length > 0 ? steps.last('tokens') : 0,
    loss: steps.length > 0 ? steps.last('loss') : NaN,
    valLoss: curve.validations.length > 0 ? curve.validations.last('val_loss') : NaN,
    lowest: steps.column('loss').reduce((low, value) => (value < low ? value : low), Infinity),
    tokensPerSecond: median(speeds.subarray(speeds.length > 1 ? 1 : 0)),
    memory: steps.column('gpu_memory_bytes').reduce((high, value) => Math.max(high, value), 0),
    wall: job.start_time ? Math.max(0, (end - Date.parse(job.start_time)) / 1000) : 0,
  };
}

// The samples that all runs have reached, and from which on all have steps.
export function commonSamples(runs) {
  return {
    to: Math.min(...runs.map((run) => run.samples)),
    from: Math.max(0, ...runs.filter((run) => run.curve.steps.length > 0)
      .map((run) => (run.curve.steps.column('step')[0] - 1) * run.batch)),
  };
}

// Mean loss of up to ten logged steps up to the samples that all have reached.
export function lossAt(run, common) {
  const steps = run.curve.steps.column('step');
  const losses = run.curve.steps.column('loss');
  let sum = 0;
  let seen = 0;
  for (let i = steps.length - 1; i >= 0 && seen < MEAN_OF; --i) {
    if (steps[i] * run.batch > common.to) continue;
    if (seen > 0 && (steps[i] - 1) * run.batch < common.from) break;
    sum += losses[i];
    ++seen;
  }
  return seen > 0 ? sum / seen : NaN;
}

// Keys in which the runs differ, with the value of each.
export function differences(runs) {
  const keys = new Set(runs.flatMap((run) => [...run.keys.keys()]));
  const out = [];
  for (const key of [...keys].sort()) {
    if (UNIMPORTANT.has(key)) continue;
    const values = runs.map((run) => {
      const value = run.keys.get(key) ?? null;
      return value === null ? '-' : typeof value === 'string' ? value : JSON.stringify(value);
    });
    if (values.some((value) => value !== values[0])) out.push({ key, values });
  }
  return out;
}
