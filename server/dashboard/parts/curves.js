// The charts of a job, with one zoom for all of them.
import { call } from '../lib/api.js';
import { requestOf, seriesOf } from '../lib/curve.js';
import { html, useEvery, useRef, useState } from '../lib/dom.js';
import { bytes, count, duration, figure, whole } from '../lib/format.js';
import { route, setQuery } from '../lib/router.js';
import { isEnded } from '../lib/words.js';
import { Chart } from './chart.js';

// What x can be: name, column, and how a value is written.
export const X_AXES = {
  step: { name: 'step', text: whole },
  tokens: { name: 'tokens', text: count },
  seconds: { name: 'time', text: duration },
};
const SMOOTH = [0, 10, 50, 200, 1000];
const ratio = (value) => (Number.isFinite(value) ? `${(100 * value).toFixed(0)}%` : '-');

// The view of the charts as the address has it: x, smoothing, log, zoom.
export function viewOf(query) {
  const from = Number(query.get('from') ?? NaN);
  const to = Number(query.get('to') ?? NaN);
  return {
    x: X_AXES[query.get('x')] ? query.get('x') : 'step',
    half: Number(query.get('smooth')) || 0,
    log: query.get('log') === '1',
    range: to > from ? [from, to] : null,
  };
}

export const zoomTo = (range) => setQuery(range
  ? { from: String(Number(range[0].toPrecision(8))), to: String(Number(range[1].toPrecision(8))) }
  : { from: '', to: '' });

// The zoom by buttons, for keyboards and touch: halves or doubles what is seen, around its end.
export function ZoomButtons({ range, extent }) {
  const [low, high] = range || extent;
  const half = () => zoomTo([high - (high - low) / 2, high]);
  const twice = () => {
    const next = [Math.max(extent[0], high - 2 * (high - low)), high];
    zoomTo(next[0] <= extent[0] && high >= extent[1] ? null : next);
  };
  const move = (by) => {
    const width = high - low;
    const begin = Math.max(extent[0], Math.min(extent[1] - width, low + by * width));
    zoomTo([begin, begin + width]);
  };
  return html`<span class="buttons" role="group" aria-label="Zoom of all charts">
    <button type="button" onClick=${half} title="The last half of what is seen; or drag over a chart">Zoom in</button>
    <button type="button" onClick=${twice} disabled=${!range}>Zoom out</button>
    <button type="button" onClick=${() => move(-0.5)} disabled=${!range} aria-label="Earlier">←</button>
    <button type="button" onClick=${() => move(0.5)} disabled=${!range} aria-label="Later">→</button>
    <button type="button" onClick=${() => zoomTo(null)} disabled=${!range}>All</button></span>`;
}

export function ChartTools({ view, extent, axes = X_AXES }) {
  const empty = !(extent[1] > extent[0]);
  return html`<div class="tools">
    <label>over <select value=${view.x} onChange=${(event) =>
      setQuery({ x: event.target.value === 'step' ? '' : event.target.value, from: '', to: '' })}>
      ${Object.entries(axes).map(([name, axis]) => html`<option value=${name}>${axis.name}</option>`)}</select></label>
    <label>smooth <select value=${String(view.half)}
      onChange=${(event) => setQuery({ smooth: event.target.value === '0' ? '' : event.target.value })}>
      ${SMOOTH.map((half) => html`<option value=${String(half)}>
        ${half === 0 ? 'off' : `${half} points`}</option>`)}</select></label>
    <label class="checkbox"><input type="checkbox" checked=${view.log}
      onChange=${(event) => setQuery({ log: event.target.checked ? '1' : '' })} /><span>log loss</span></label>
    <${ZoomButtons} range=${view.range} extent=${empty ? [0, 1] : extent} /></div>`;
}

const COLOURS = 7;
const RANK_PARTS = 250;
const LOOK_S = 5;

// Loss and memory of every rank of a job over its own rows.
function RankCurves({ job, view, chart }) {
  const [{ series, version }, setSeries] = useState({ series: new Map(), version: 0 });
  const { x, range } = view;
  const seen = useRef('');
  const key = JSON.stringify([job.name, job.state, x, range]);
  useEvery(LOOK_S, async (ended) => {
    if (isEnded(job) && seen.current === key) return;
    const answer = await call('JobService/GetCurve', { ...requestOf(job.name, view),
      values: ['rank_loss', 'rank_memory'], max_parts: RANK_PARTS }).catch(() => null);
    if (!answer || ended()) return;
    seen.current = key;
    setSeries((before) => ({ series: seriesOf(answer), version: before.version + 1 }));
  }, [key]);
  const of = (name, text) => [...series].filter(([key]) => key.startsWith(`${name}/`)).map(([key, each]) => {
    const rank = Number(key.slice(name.length + 1));
    return { ...each, name: `rank ${rank}`, colour: `curve-${(rank % COLOURS) + 1}`, text };
  });
  const losses = of('rank_loss');
  if (losses.length < 2) return null;
  const more = { version: `ranks/${version}`, note: `${losses.length} ranks` };
  return html`${chart('Loss of each rank', losses, { ...more, log: view.log })}
    ${chart('Memory of each rank', of('rank_memory', bytes), { ...more, text: bytes })}`;
}

export function JobCurves({ job, curve, view, version, answers, children }) {
  const axis = X_AXES[view.x];
  const of = (name, label, colour, text) => ({ ...curve.of(name), name: label, colour, text });
  const loss = of('loss', 'loss', 'curve-1');
  const losses = view.half > 0
    ? [{ ...loss, name: 'loss (each)', faint: true }, { ...curve.mean, name: 'loss', colour: 'curve-1' }] : [loss];
  if (curve.of('val_loss').x.length > 0) losses.push({ ...of('val_loss', 'validation', 'curve-2'), dots: true });
  const chart = (title, curves, more = {}) => html`<${Chart} key=${title} title=${title} curves=${curves}
    xName=${axis.name} xText=${axis.text} range=${view.range} onZoom=${zoomTo} sync="job" ...${more}
    version=${`${version}/${more.version || ''}`} />`;
  const ofLimit = curve.of('of_limit');
  const speed = chart('Tokens/s', [of('tokens_per_second', 'tokens/s', 'curve-3', count)], { text: count });
  const tools = html`<${ChartTools} view=${view} extent=${curve.extent} />`;
  if (answers) return html`${tools}<div class="charts">${speed}</div>${children}`;
  const grades = curve.grades();
  return html`${tools}<div class="charts">
    ${chart('Loss', losses, { log: view.log })}
    ${curve.of('margin').x.length > 0 ? html`${chart('Margin of the rewards', [of('margin', 'margin', 'curve-2')])}
      ${chart('Accuracy of the rewards', [of('accuracy', 'accuracy', 'curve-3', ratio)], { text: ratio })}` : null}
    ${chart('Learning rate', [of('lr', 'learning rate', 'curve-4')])}
    ${chart('Gradient norm', [of('grad_norm', 'gradient norm', 'curve-5')])}
    ${speed}
    ${chart('% of limit', [of('of_limit', 'of limit', 'curve-6', ratio)], { text: ratio,
      note: ofLimit.y.length > 0 && ofLimit.y[ofLimit.y.length - 1] === 0
        ? 'the limit of these slots was not measured' : 'speed beside what the GPUs’ measured rates allow' })}
    ${chart('Memory per GPU', [of('gpu_memory_bytes', 'memory', 'curve-7', bytes)], { text: bytes, note: 'rank 0' })}
    <${RankCurves} job=${job} view=${view} chart=${chart} />
  </div>${children}${grades.length > 0 ? html`<p>Last validation: ${grades
    .map(([name, value]) => `${name} ${figure(value)}`).join(', ')}</p>` : null}`;
}
