// What waits, for what, and when it is expected to start.
import { callAll } from '../lib/api.js';
import { html, useEffect, useState } from '../lib/dom.js';
import { openFeed } from '../lib/feed.js';
import { number, oneLine, plural, shortName } from '../lib/format.js';
import { Ago, Failure, JobLink, JobLinks, Table } from '../parts/bits.js';
import { JobButtons } from '../parts/actions.js';

const typeOf = (job) => oneLine(job.variant).replace(/-\d+x$/, '') || 'not yet known';

// What the page shows of a job, and what its buttons go by.
const FIELDS = ['state', 'reason', 'display_name', 'owner', 'variant', 'priority', 'held', 'after', 'outlook',
  'create_time'];

function useQueue() {
  const [state, setState] = useState({ jobs: null, variants: [], error: null });
  useEffect(() => {
    let ended = false;
    const read = async () => {
      try {
        const [jobs, variants] = await Promise.all([
          callAll('JobService/ListJobs', { states: ['PENDING'], page_size: 500, fields: FIELDS }, 'jobs'),
          callAll('ClusterService/ListVariants', {}, 'variants'),
        ]);
        if (!ended) setState({ jobs, variants, error: null });
      } catch (error) {
        if (!ended) setState((seen) => ({ ...seen, error }));
      }
    };
    read();
    const close = openFeed(() => ({ jobs: 1, nodes: 1 }), { open: read, jobs: read, nodes: read });
    return () => { ended = true; close(); };
  }, []);
  return state;
}

// In line first, by their place; then what is held or waits for other jobs.
const order = (a, b) => (a.outlook?.place || 1e9) - (b.outlook?.place || 1e9) ||
  Date.parse(a.create_time) - Date.parse(b.create_time);

const why = (job) => (job.held && !oneLine(job.reason).startsWith('held') ? 'held: ' : '') + oneLine(job.reason);

function Line({ type, jobs, variants }) {
  const free = variants.filter((variant) => variant.gpu_type === type && variant.nodes_free > 0)
    .sort((a, b) => b.gpus_per_node - a.gpus_per_node)[0];
  return html`<section><h2>${type} <span class="dim">
    ${plural(jobs.length, 'job')} waiting${variants.some((variant) => variant.gpu_type === type)
    ? free ? `; free now: at most ${free.gpus_per_node} on one node (${plural(free.nodes_free,
      'node')})` : '; nothing is free now' : ''}</span></h2>
    <${Table} caption="Jobs that wait for ${type}"
      head=${[{ name: 'Place', right: true }, { name: 'Job', class: 'name' }, 'Owner',
        { name: 'Asks for', class: 'once' }, 'Priority', { name: 'Why it waits', class: 'text' }, 'Expected start',
          'At the latest', 'Submitted', { name: 'Action', unseen: true, class: 'once' }]}
      rows=${[...jobs].sort(order).map((job) => ({ key: job.name, cells: [job.outlook?.place || '-',
        html`<${JobLink} name=${job.name}>${oneLine(job.display_name) || shortName(job.name)}</${JobLink}>`,
          oneLine(job.owner), oneLine(job.variant), job.priority || 'normal',
        html`${why(job)}${(job.after || []).length > 0 ? html` (after <${JobLinks} names=${job.after} />)` : null}`,
        job.outlook?.start_time ? html`<${Ago} time=${job.outlook.start_time} />` : '-',
          job.outlook?.promised_start_time ? html`<${Ago} time=${job.outlook.promised_start_time} />` : '-',
        html`<${Ago} time=${job.create_time} />`, html`<${JobButtons} job=${job} />`] }))} /></section>`;
}

export function QueuePage() {
  const { jobs, variants, error } = useQueue();
  const types = [...new Set((jobs || []).map(typeOf))].sort();
  const free = variants.filter((variant) => variant.nodes_free > 0);
  return html`<div class="head"><h1>Queue</h1><span class="dim">
    ${jobs ? `${plural(jobs.length, 'job')} waiting` : 'loading'}</span></div>
    <${Failure} error=${error} />
    ${jobs?.length === 0 ? html`<p class="dim pad">Nothing waits.</p>` : null}
    ${types.map((type) => html`<${Line} key=${type} type=${type} jobs=${jobs.filter((job) => typeOf(job) === type)}
      variants=${variants} />`)}
    <h2>What a job can ask for</h2>
    <${Table} caption="Variants" head=${['Variant', 'Type', { name: 'GPUs per node', right: true },
      { name: 'Nodes', right: true }, { name: 'Free now', right: true }]}
      rows=${variants.map((variant) => ({ key: variant.name,
        cells: [html`<code>${oneLine(variant.name)}</code>`, oneLine(variant.gpu_type), variant.gpus_per_node,
          variant.nodes, number(variant.nodes_free)] }))}
      empty=${jobs ? 'no node has offered any slots' : 'loading'} />
    ${jobs && free.length === 0 && variants.length > 0 ? html`<p class="dim">Nothing is free now.</p>` : null}`;
}
