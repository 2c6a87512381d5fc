// Words for states and events, the same as sftctl's.
import { bytes, count, number, oneLine, plural, shortName, utc, whole } from './format.js';

export const STATES = ['PENDING', 'PREPARING', 'RUNNING', 'CANCELLING', 'SUCCEEDED', 'FAILED', 'CANCELLED'];
export const ENDED = new Set(['SUCCEEDED', 'FAILED', 'CANCELLED']);
export const isEnded = (job) => ENDED.has(job.state);

// Jobs of these kinds count answers, not steps.
export const countsAnswers = (job) => job.kind === 'GENERATE' || job.kind === 'EVALUATE';

// Whether progress has a loss: before the first step there is none.
export const hasLoss = (job) => !countsAnswers(job) && number(job.progress?.step) > 0;

// "UP", "SUSPECT", "CORDONED", "DRAINING", "DRAINED".
export function nodeState(node) {
  if (node.state === 'SUSPECT' || !node.hold) return node.state;
  if (node.hold.mode === 'CORDON') return 'CORDONED';
  return (node.hold.jobs || []).length > 0 ? 'DRAINING' : 'DRAINED';
}

export function progressText(job) {
  const progress = job.progress || {};
  if (number(progress.total_steps) === 0) return progress.phase || '-';
  const steps = `${number(progress.step)}/${number(progress.total_steps)}`;
  if (countsAnswers(job)) return `${steps} answers`;
  return hasLoss(job) ? `${steps} loss ${number(progress.loss).toFixed(3)}` : `${steps} steps`;
}

// "place 2 in line, start 2026-01-31 12:00:00 UTC".
export function outlookText(outlook) {
  if (!outlook) return '';
  const parts = [];
  if (outlook.place > 0) parts.push(`place ${outlook.place} in line`);
  if (outlook.start_time) parts.push(`start ${utc(outlook.start_time)}`);
  if (outlook.promised_start_time) parts.push(`${utc(outlook.promised_start_time)} at the latest`);
  if (outlook.end_time) parts.push(`end ${utc(outlook.end_time)}${outlook.source === 'measured' ? ' (measured)' : ''}`);
  return parts.join(', ');
}

// "2 jobs of its project and 1 of other projects, 3.5 GPU-hours".
export function aheadText(wait) {
  const own = wait.ahead_own || 0;
  const others = wait.ahead_others || 0;
  const parts = [];
  if (own > 0) parts.push(`${plural(own, 'job')} of its project`);
  if (others > 0) parts.push(`${own > 0 ? whole(others) : plural(others, 'job')} of other projects`);
  if (parts.length === 0) return '';
  const unknown = wait.ahead_unknown || 0;
  return `${parts.join(' and ')}, ${number(wait.ahead_gpu_hours).toFixed(1)} GPU-hours${unknown > 0
    ? ` (${whole(unknown)} of unknown run time, counted with an hour)` : ''}`;
}

// How near the estimates of the last starts came.
export function pastStartsText(wait) {
  const all = wait.past_starts || 0;
  const share = (part) => `${Math.round((100 * (part || 0)) / all)} %`;
  return all === 0 ? '' : `of the last ${whole(all)} starts ${share(wait.past_within_20)} came within a fifth of ` +
    `the wait that was expected, ${share(wait.past_within_50)} within a half`;
}

// When a change would start a job, where that is no time.
export const soonerText = (whatIf) => (whatIf.now ? 'now' : 'in its turn');

// "12.40 EUR", as sftctl writes millionths; what is not nothing but less than a hundredth is "< 0.01 EUR".
export function money(micros, currency) {
  const amount = number(micros);
  return `${amount > 0 && amount < 10000 ? '< 0.01' : (amount / 1e6).toFixed(2)} ${oneLine(currency)}`;
}

// What a job has cost, or a plan will; empty where nothing has a price.
export function costText(cost, what = 'so far') {
  if (!cost) return '';
  const parts = [];
  if (number(cost.micros) > 0) parts.push(`${money(cost.micros, cost.currency)} ${what}`.trim());
  if (number(cost.lost_micros) > 0) parts.push(`${money(cost.lost_micros, cost.currency)} of it for lost work`);
  if (number(cost.micros_per_hour) > 0) parts.push(`${money(cost.micros_per_hour, cost.currency)} an hour`);
  return parts.join(', ');
}

export const STORED_KINDS = {
  DATASETS: 'data sets', ARTIFACTS: 'artifacts', CHECKPOINTS: 'checkpoints', LOGS: 'logs', METRICS: 'metrics',
  UPLOADS: 'uploads', BACKUPS: 'backups', DATABASE: 'database', DAMAGED: 'damaged',
};

export const gpusOf = (job) => {
  const match = /-(\d+)x$/.exec(job.variant || '');
  const nodes = Math.max(1, (job.nodes || []).length);
  return match ? Number(match[1]) * nodes : 0;
};

export const eventKind = (event) => oneLine(event.type).slice(0, 24).replaceAll('_', ' ') || 'event';

const NOTES = {
  prepared(note) {
    if (!note.loss_tokens) return `${note.rows} prompts, ${count(note.tokens)} tokens`;
    let text = `${note.used} of ${note.rows} rows${note.forms ? ` (${note.forms})` : ''}, ${note.skipped ||
      0} left out`;
    if (note.repeated > 0) text += `, beside ${note.repeated} repeats`;
    text += `; ${count(note.tokens)} tokens, ${count(note.loss_tokens)} of them with loss`;
    if (note.cut > 0) text += `; ${note.cut} rows cut or split, ${count(note.cut_tokens)} tokens of them left out`;
    if (note.validation > 0) text += `; ${note.validation} rows for validation`;
    return text + (note.from_cache ? '; prepared before' : '');
  },
  ready(note) {
    const text = `rank ${note.rank} of ${note.world} on ${note.device} after ${number(note.seconds).toFixed(1)} s: `;
    if (!note.total_parameters) return `${text}${note.total_steps} answers in all`;
    return `${text}${note.total_steps} steps, ${count(note.trainable_parameters)} of ` +
      `${count(note.total_parameters)} parameters train`;
  },
  consistency(note) {
    return `rank ${note.rank}: weights ${note.consistent ? 'agree' : 'DIFFER'} (${String(note.weights_sha256)
      .slice(0, 12)})`;
  },
  checkpoint(note) {
    let text = `step ${note.step} saved on its node: ${bytes(note.bytes)} in ${number(note.seconds).toFixed(1)} s`;
    const stall = number(note.stall_seconds);
    if (stall > 0) text += `, of which training stood still for ${stall.toFixed(1)} s`;
    if (note.reason) text += ` (${note.reason})`;
    if (note.has_metric) text += `; metric ${number(note.metric).toFixed(4)}`;
    return text + (note.best ? '; the best so far' : '');
  },
  resumed(note) {
    const changes = Array.isArray(note.changes) && note.changes.length > 0;
    return `goes on after step ${note.step}${changes ? `; other than then: ${note.changes.join(', ')}` : ''}`;
  },
  plan(note) {
    const memory = note.reserved_bytes || {};
    let text = `rank ${note.rank}${note.description ? `: ${note.description}` : ''}`;
    if (memory.predicted) text += `; memory at the peak: ${bytes(memory.predicted)} planned`;
    if (memory.measured) text += `, ${bytes(memory.measured)} measured`;
    if (note.measured_tokens_per_second > 0) {
      text += `; ${count(note.predicted_tokens_per_second)} tok/s planned, ` +
        `${count(note.measured_tokens_per_second)} measured`;
    }
    return text;
  },
};

// The message of an event; one of a rank is JSON, written out as sftctl does.
export function eventText(event) {
  if (!event.message.startsWith('{')) return oneLine(event.message);
  let note;
  try {
    note = JSON.parse(event.message);
  } catch {
    return oneLine(event.message);
  }
  const known = NOTES[event.type];
  if (known) return oneLine(known(note));
  return oneLine(Object.entries(note).filter(([key]) => key !== 'event' && key !== 'time').map(([key, value]) =>
    `${key.replaceAll('_', ' ')} ${typeof value === 'string' ? value : JSON.stringify(value)}`).join(', '));
}

// Why a node takes no new work, and what else an operator should know.
export function nodeWhy(node) {
  const why = [node.unusable, node.left_out, node.rival].filter(Boolean);
  const offset = number(node.clock_offset_seconds);
  if (Math.abs(offset) >= 2) why.push(`its clock is ${Math.abs(offset).toFixed(1)} s ${offset > 0
    ? 'ahead' : 'behind'}`);
  for (const slot of node.slots || []) {
    if (!slot.healthy) why.push(`slot ${slot.index}: ${slot.health_reason}`);
  }
  return oneLine(why.join('; '));
}

export const jobsOf = (node) => [...new Set((node.slots || []).map((slot) => shortName(slot.job)).filter(Boolean))];
