// Charts of how GPUs were used: of a node, and of a job over its attempts.
import { isPassing } from '../lib/api.js';
import { figuresOf, readUse, readUseOf, slotsOf, spansOf, WEEK_S } from '../lib/gpu_use.js';
import { html, useEvery, useMemo, useRef, useState } from '../lib/dom.js';
import { bytes, duration } from '../lib/format.js';
import { route, setQuery } from '../lib/router.js';
import { isEnded } from '../lib/words.js';
import { Failure } from './bits.js';
import { Chart } from './chart.js';

const LOOK_S = 15;
const POINTS = 360;
// All of a job's GPUs together, so that one with many is no burden.
const JOB_POINTS = 8000;
const MOST_NODES = 16;
const DAY_S = 86400;

const size = (value) => (Number.isFinite(value) ? bytes(value) : '-');
const percents = (value) => (Number.isFinite(value) ? `${value.toFixed(0)}%` : '-');
const watts = (value) => (Number.isFinite(value) ? `${value.toFixed(0)} W` : '-');
const celsius = (value) => (Number.isFinite(value) ? `${value.toFixed(0)} °C` : '-');
const CHARTS = {
  utilization: { title: 'GPU utilisation', text: percents, of: 'means', yRange: [0, 100] },
  memory: { title: 'GPU memory', text: size, of: 'the most' },
  power: { title: 'GPU power', text: watts, of: 'means' },
  temperature: { title: 'GPU temperature', text: celsius, of: 'the highest' },
};

// A time of an axis over `span` seconds, in UTC: "10:40", of more than a day "11-24 10:40" and for midnight "11-24".
const timeText = (span) => (at) => {
  if (!Number.isFinite(at)) return '';
  const text = new Date(1000 * at).toISOString();
  if (span > DAY_S) return text.slice(5, 16).replace('T00:00', '').replace('T', ' ');
  return text.slice(11, span > 600 ? 16 : 19);
};

// `gpus`: {name, points, step}; `figures`: which charts.
function UseCharts({ gpus, figures, sync, version }) {
  const [zoom, setZoom] = useState(null);
  const use = useMemo(() => figuresOf(gpus), [version]);
  const times = use.utilization.flatMap((curve) => [curve.x[0], curve.x[curve.x.length - 1]]);
  const [begin, end] = zoom || [Math.min(...times), Math.max(...times)];
  const step = Math.max(...gpus.map((gpu) => gpu.step));
  return html`${zoom ? html`<p class="buttons"><button type="button" onClick=${() => setZoom(null)}>All of the time
      </button></p>` : null}
    <div class="charts">${figures.filter((name) => use[name]).map((name) => html`<${Chart} key=${name}
      title=${CHARTS[name].title} text=${CHARTS[name].text} isTime xName="UTC"
      curves=${use[name].map((curve) => ({ ...curve, text: CHARTS[name].text }))}
      xText=${timeText(end - begin)} range=${zoom} onZoom=${setZoom} sync=${sync} version=${version}
      yRange=${CHARTS[name].yRange} note=${`${CHARTS[name].of} of ${duration(step)} each`} />`)}</div>`;
}

const SPANS = { '2h': { name: '2 hours', seconds: 7200 }, week: { name: 'week', seconds: WEEK_S } };

// Of a node, behind a button; which one is open and for how long is in the address.
export function NodeUse({ node }) {
  const query = route.use().query;
  const open = query.get('use') === node;
  const key = SPANS[query.get('span')] ? query.get('span') : '2h';
  const [{ gpus, error, version, of }, setState] = useState({ gpus: null, error: null, version: 0, of: '' });
  useEvery(LOOK_S, async (ended) => {
    if (!open) return;
    try {
      const use = await readUse(node, SPANS[key].seconds, 0, POINTS);
      const next = use.gpus.map((gpu) => ({ name: `GPU ${gpu.slot || 0}`, points: gpu.points || [], step: use.step }));
      if (!ended()) setState((before) => ({ gpus: next, error: null, version: before.version + 1, of: key }));
    } catch (failure) {
      if (!ended() && !isPassing(failure)) setState((before) => ({ ...before, error: failure }));
    }
  }, [node, open, key]);
  const span = (name) => html`<button key=${name} type="button" class="small" aria-pressed=${name === key}
    onClick=${() => setQuery({ span: name === '2h' ? '' : name })}>${SPANS[name].name}</button>`;
  const shown = gpus && of === key;
  return html`<p class="buttons"><button type="button" class="small" aria-expanded=${open}
      onClick=${() => setQuery({ use: open ? '' : node, span: '' })}>Use over time</button>
      ${open ? html`<span class="buttons" role="group" aria-label="How far back">
        ${Object.keys(SPANS).map(span)}</span>` : null}</p>
    ${open ? html`<${Failure} error=${error} />
      ${shown && gpus.length > 0 ? html`<${UseCharts} key=${key} gpus=${gpus} figures=${Object.keys(CHARTS)}
        sync="node-${node}" version=${version} />` : html`<p class="dim">${shown
          ? 'It has reported no use of GPUs in that time.' : 'loading'}</p>`}` : null}`;
}

// Of a job: its own GPUs while its attempts held them. Nothing where nothing is kept of them.
export function JobUse({ job }) {
  const [{ gpus, nodes, version, error }, setState] = useState({ gpus: [], nodes: 0, version: 0, error: null });
  const slots = useRef({ attempts: -1, known: new Map() });
  const attempts = (job.attempts || []).length;
  const done = useRef(false);
  useEvery(LOOK_S, async (ended) => {
    if (attempts === 0 || done.current) return;
    try {
      if (slots.current.attempts !== attempts) slots.current = { attempts, known: await slotsOf(job) };
      const now = Date.now() / 1000;
      const spans = spansOf(job, slots.current.known, now);
      const count = spans.reduce((sum, span) => sum + [...span.nodes.values()]
        .reduce((slots, each) => slots + each.size, 0), 0);
      const points = Math.max(60, Math.min(POINTS, Math.floor(JOB_POINTS / Math.max(1, count))));
      const use = await readUseOf(spans, now, points, MOST_NODES);
      if (ended()) return;
      done.current = isEnded(job);
      setState((before) => ({ ...use, version: before.version + 1, error: null }));
    } catch (failure) {
      if (!ended() && !isPassing(failure)) setState((before) => ({ ...before, error: failure }));
    }
  }, [job.name, job.state, attempts]);
  if (gpus.length === 0) return html`<${Failure} error=${error} />`;
  return html`<section aria-label="Use of its GPUs"><h2>Use of its GPUs <span class="dim">
      while it held them${nodes > MOST_NODES ? `; of the first ${MOST_NODES} of ${nodes} nodes` : ''}</span></h2>
    <${UseCharts} gpus=${gpus} figures=${['utilization', 'memory']} sync="gpus" version=${version} /></section>`;
}
