// Several jobs over each other, and what they differ in.
import { call, callAll } from '../lib/api.js';
import { commonSamples, differences, figuresOf, lossAt } from '../lib/comparison.js';
import { requestOf, seriesOf } from '../lib/curve.js';
import { html, useEffect, useMemo, useRef, useState } from '../lib/dom.js';
import { bytes, count, duration, figure, number, oneLine, shortName, whole } from '../lib/format.js';
import { useKeys } from '../lib/keys.js';
import { route, setQuery } from '../lib/router.js';
import { WholeCurve } from '../lib/whole_curve.js';
import { isEnded } from '../lib/words.js';
import { Command, Failure, JobLink, State, Table } from '../parts/bits.js';
import { Chart } from '../parts/chart.js';
import { ChartTools, viewOf, X_AXES, zoomTo } from '../parts/curves.js';

const MOST = 20;
const COLOURS = 7;
const LOOK_MS = 5000;
const DASHES = [undefined, [6, 4], [2, 3]];
const AXES = { samples: { name: 'samples', text: whole }, ...X_AXES };
const METRICS = {
  loss: { name: 'Loss', text: figure },
  val_loss: { name: 'Validation loss', text: figure, validation: true },
  grad_norm: { name: 'Gradient norm', text: figure },
  lr: { name: 'Learning rate', text: figure },
  tokens_per_second: { name: 'Tokens/s', text: count },
  gpu_memory_bytes: { name: 'Memory per GPU', text: bytes },
};

// The jobs of the address, read again while one runs. `whole`: each point of them is there too, for
// figures; curves are drawn before.
function useRuns(ids, group) {
  const [state, setState] = useState({ runs: [], whole: false, error: null, reading: true, version: 0 });
  useEffect(() => {
    const stop = new AbortController();
    const curves = new Map();
    let timer = 0;
    let told = false;
    const read = async () => {
      try {
        const names = group ? (await callAll('JobService/ListJobs', { group, page_size: MOST, fields: ['name'] },
          'jobs', MOST)).map((job) => job.name) : ids;
        const jobs = await Promise.all(names.slice(0, MOST).map((name) =>
          call('JobService/GetJob', { name }, stop.signal)));
        for (const job of jobs) if (!curves.has(job.name)) curves.set(job.name, new WholeCurve());
        const tell = (whole) => setState((seen) => ({ runs: jobs.map((job) => figuresOf(job, curves.get(job.name))),
          whole: whole || seen.whole, error: null, reading: false, version: seen.version + 1 }));
        if (!told) tell(false);
        told = true;
        for (const job of jobs) await curves.get(job.name).read(job.name, stop.signal);
        tell(true);
        if (jobs.some((job) => !isEnded(job))) timer = setTimeout(read, LOOK_MS);
      } catch (error) {
        if (error.name === 'AbortError') return;
        setState((seen) => ({ ...seen, error, reading: false }));
        timer = setTimeout(read, LOOK_MS);
      }
    };
    setState({ runs: [], whole: false, error: null, reading: ids.length > 0 || !!group, version: 0 });
    if (ids.length > 0 || group) read();
    return () => { stop.abort(); clearTimeout(timer); };
  }, [ids.join(), group]);
  return state;
}

const NONE = { x: [], y: [], points: 0, parts: 0 };

// A run's metric as the server draws it, with samples as x where they are asked for: a step has a
// batch of them.
async function drawnOf(run, metric, view) {
  const unit = view.x === 'samples' ? run.batch : 1;
  const range = view.range && view.range.map((each) => each / unit);
  const answer = await call('JobService/GetCurve', { ...requestOf(run.job.name,
    { x: view.x === 'samples' ? 'step' : view.x, range }), values: [metric], half_life: view.half });
  const series = seriesOf(answer).get(metric) || NONE;
  return { ...series, x: unit === 1 ? series.x : series.x.map((x) => x * unit),
    extent: [number(answer.first_x) * unit, number(answer.last_x) * unit] };
}

// The curves of runs, in their order.
function useDrawn(runs, metric, view, version) {
  const [drawn, setDrawn] = useState({ curves: [], version: 0 });
  const { x, half, range } = view;
  useEffect(() => {
    let ended = false;
    Promise.all(runs.map((run) => drawnOf(run, metric, view))).then((curves) => {
      if (!ended) setDrawn((seen) => ({ curves, version: seen.version + 1 }));
    }, () => undefined);  // the page tells of a server that is away, and asks again
    return () => { ended = true; };
  }, [version, metric, x, half, range?.[0], range?.[1]]);
  return drawn;
}

function nameOf({ job }) {
  const id = shortName(job.name);
  return job.display_name ? `${oneLine(job.display_name)} (${id})` : id;
}

function Overlay({ runs, metric, version }) {
  const query = route.use().query;
  const view = { ...viewOf(query), x: AXES[query.get('x')] ? query.get('x') : 'samples' };
  const { curves: drawn, version: drawnVersion } = useDrawn(runs, metric, view, version);
  const curves = runs.map((run, i) => ({ ...NONE, ...drawn[i], name: nameOf(run), text: METRICS[metric].text,
    colour: `curve-${(i % COLOURS) + 1}`, dash: DASHES[Math.floor(i / COLOURS) % DASHES.length],
    dots: METRICS[metric].validation }));
  const some = curves.filter((curve) => curve.x.length > 0);
  const extent = some.length === 0 ? [0, 0] : [Math.min(...some.map((curve) => curve.extent[0])),
    Math.max(...some.map((curve) => curve.extent[1]))];
  return html`<${ChartTools} view=${view} extent=${extent} axes=${AXES} />
    <ul class="legend">${curves.map((curve, i) => html`<li key=${curve.name}><span class="swatch" aria-hidden="true"
      style=${{ borderTop: `3px ${curve.dash ? (curve.dash[0] > 3
        ? 'dashed' : 'dotted') : 'solid'} var(--${curve.colour})` }}></span>
      <${JobLink} name=${runs[i].job.name}>${curve.name}</${JobLink}></li>`)}</ul>
    <${Chart} title=${METRICS[metric].name} curves=${curves} xName=${AXES[view.x].name} xText=${AXES[view.x].text}
      text=${METRICS[metric].text}
      range=${view.range} onZoom=${zoomTo} version=${drawnVersion}
        log=${view.log && metric.endsWith('loss')} height=${320} />`;
}

export function ComparePage() {
  const query = route.use().query;
  const ids = (query.get('jobs') || '').split(',').map((id) => id.trim()).filter(Boolean).slice(0, MOST);
  const group = query.get('group') || '';
  const metric = METRICS[query.get('metric')] ? query.get('metric') : 'loss';
  const { runs, whole: counted, error, reading, version } = useRuns(ids, group);
  const field = useRef(null);
  useKeys({ '/': () => field.current.focus() });
  const common = runs.length > 0 ? commonSamples(runs) : null;
  const different = useMemo(() => differences(runs), [runs]);
  const submit = (event) => {
    event.preventDefault();
    setQuery({ jobs: field.current.value.split(/[\s,]+/).filter(Boolean).join(','), group: '' });
  };
  const ofPoints = (of) => (run) => (counted ? of(run) : '...');
  const figures = [
    ['state', (run) => html`<${State} of=${run.job.state} />`], ['method', (run) => run.method],
    ['GPUs', (run) => `${run.gpus} (${oneLine(run.job.variant)})`],
    ['steps', ofPoints((run) => whole(run.steps))], ['samples', ofPoints((run) => whole(run.samples))],
    [`loss at ${common && counted ? whole(common.to) : 'common'} samples`,
      ofPoints((run) => figure(lossAt(run, common)))],
    ['lowest loss', ofPoints((run) => figure(run.lowest))], ['last loss', ofPoints((run) => figure(run.loss))],
    ['validation loss', ofPoints((run) => figure(run.valLoss))],
    ['tokens/s (median)', ofPoints((run) => count(run.tokensPerSecond))],
    ['memory (highest)', ofPoints((run) => bytes(run.memory))], ['wall time', (run) => duration(run.wall)],
  ];
  const heads = runs.map((run) => html`<${JobLink} name=${run.job.name}>${nameOf(run)}</${JobLink}>`);
  return html`<div class="head"><h1>Compare</h1>
    <form class="tools" onSubmit=${submit}><label>jobs <input ref=${field} class="filter" key=${ids.join()}
      defaultValue=${ids.join(', ')} placeholder="job-a, job-b" aria-keyshortcuts="/" /></label>
      <button type="submit">Compare</button>
      <label>show <select value=${metric} onChange=${(event) =>
        setQuery({ metric: event.target.value === 'loss' ? '' : event.target.value })}>
        ${Object.entries(METRICS).map(([key, each]) => html`<option value=${key}>${each.name}</option>`)}</select>
          </label></form></div>
    <${Failure} error=${error} />
    ${runs.length === 0 ? html`<p class="dim pad">
      ${reading ? 'loading' : html`Mark jobs in the <a
        href="/">list</a> (<kbd>x</kbd>) and choose Compare, or name them above.`}</p>` : html`
      <${Overlay} runs=${runs} metric=${metric} version=${version} />
      <h2>Figures</h2>
      ${counted ? null : html`<p class="dim">reading every point</p>`}
      <${Table} caption="Figures of the jobs" head=${[{ name: 'Figure', unseen: true }, ...heads
        .map((name) => ({ name, right: true }))]}
        rows=${figures.map(([name, of]) => ({ key: name, cells: [name, ...runs.map(of)] }))} />
      <h2>Keys that differ</h2>
      <${Table} caption="Keys that differ" head=${['Key', ...heads.map((name) => ({ name }))]}
        empty="none: the jobs have the same settings"
        rows=${different.map(({ key, values }) => ({ key,
          cells: [html`<code>${oneLine(key)}</code>`, ...values
            .map((value) => html`<code>${oneLine(value)}</code>`)] }))} />
      <p><${Command} text=${group ? `sftctl compare --group ${group}` : `sftctl compare ${ids.join(' ')}`} /></p>`}`;
}
