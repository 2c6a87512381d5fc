// The use of GPUs over time, as curves: x in seconds since 1970.
import { call, CallError } from './api.js';
import { millis, number, oneLine, shortName } from './format.js';

export const WEEK_S = 7 * 86400;
// What is no longer in the server's memory is kept to a minute, however fine the steps are.
const KEPT_S = 60;
const COLOURS = 7;

// Name of the figure -> its member of GpuUse.
const FIGURES = {
  utilization: 'utilization_percent', memory: 'memory_used_bytes', power: 'power_watts',
  temperature: 'temperature_celsius',
};

// The use of a node's GPUs from `since` to `until` seconds ago: {step, gpus: [{slot, points}]}; none of a node that is
// no longer there.
export async function readUse(node, since, until, points) {
  try {
    const answer = await call('ClusterService/GetNodeHistory', { node,
      since_seconds: Math.min(WEEK_S, Math.ceil(since)), until_seconds: Math.max(0, Math.floor(until)),
      max_points: points });
    return { step: number(answer.step_seconds), gpus: answer.gpus || [] };
  } catch (error) {
    if (error instanceof CallError && error.code === 'NOT_FOUND') return { step: 0, gpus: [] };
    throw error;
  }
}

// A GPU's points as curves, one for each figure: {utilization: {x, y}, ...}. Where one is missing there is a gap.
function curvesOf(points, step) {
  const curves = Object.fromEntries(Object.keys(FIGURES).map((name) => [name, { x: [], y: [], points: 0, parts: 0 }]));
  let last = NaN;
  for (const point of points) {
    const at = millis(point.time) / 1000;
    for (const [name, member] of Object.entries(FIGURES)) {
      const curve = curves[name];
      if (at - last > 1.5 * Math.max(step, KEPT_S)) {
        curve.x.push(last + step);
        curve.y.push(NaN);
      }
      curve.x.push(at);
      curve.y.push(number(point[member]));
      ++curve.points;
    }
    last = at;
  }
  return curves;
}

// Several GPUs' curves by figure, for a chart each: {utilization: [curve of the first GPU, ...], ...}. A figure that
// no GPU reports is left out. `gpus`: {name, points, step}.
export function figuresOf(gpus) {
  const all = gpus.map((gpu, i) => ({ name: gpu.name, colour: `curve-${(i % COLOURS) + 1}`,
    curves: curvesOf(gpu.points, gpu.step) }));
  return Object.fromEntries(Object.keys(FIGURES)
    .map((name) => [name, all.map((gpu) => ({ ...gpu.curves[name], name: gpu.name, colour: gpu.colour }))])
    .filter(([name, curves]) => name === 'utilization' || curves.some((curve) => curve.y.some((value) => value > 0))));
}

const PLACED = /(?:^|; )(\S+) slots ([\d,]+)(?=;|$)/g;

// The slots that each attempt of a job got, as its event says: attempt -> node -> slots.
export async function slotsOf(job) {
  const attempts = new Map();
  const wanted = (job.attempts || []).length;
  let token = '';
  do {
    const page = await call('JobService/ListEvents', { name: job.name, page_size: 500, page_token: token });
    for (const event of page.events || []) {
      if (event.type !== 'placed') continue;
      attempts.set(event.attempt, new Map([...event.message.matchAll(PLACED)]
        .map(([, node, slots]) => [node, new Set(slots.split(',').map(Number))])));
    }
    token = page.next_page_token || '';
  } while (token && attempts.size < wanted);
  return attempts;
}

// When each attempt held its slots, in seconds since 1970: [{begin, end, nodes}]; `now` ends one that runs.
export const spansOf = (job, slots, now) => (job.attempts || []).map((attempt) => ({
  begin: millis(attempt.create_time) / 1000,
  end: attempt.end_time ? millis(attempt.end_time) / 1000 : now,
  nodes: slots.get(attempt.number) || new Map(),
}));

// The use of each GPU that the spans name, of the first `mostNodes` nodes, cut to the spans; nodes in their order.
export async function readUseOf(spans, now, points, mostNodes) {
  const nodes = [...new Set(spans.flatMap((span) => [...span.nodes.keys()]))];
  const begin = Math.min(...spans.map((span) => span.begin));
  const end = Math.max(...spans.map((span) => span.end));
  if (nodes.length === 0 || now - end >= WEEK_S) return { gpus: [], nodes: 0 };
  const uses = await Promise.all(nodes.slice(0, mostNodes)
    .map((node) => readUse(node, now - begin + 1, now - end - 60, points)));
  const gpus = uses.flatMap(({ step, gpus: all }, i) => all.map((gpu) => ({
    name: nodes.length > 1 ? `${oneLine(shortName(nodes[i]))} GPU ${gpu.slot || 0}` : `GPU ${gpu.slot || 0}`,
    step,
    points: (gpu.points || []).filter((point) => {
      const at = millis(point.time) / 1000;
      return spans.some((span) => span.nodes.get(nodes[i])?.has(gpu.slot || 0) && at + step > span.begin &&
        at < span.end);
    }),
  }))).filter((gpu) => gpu.points.length > 0);
  return { gpus, nodes: nodes.length };
}
