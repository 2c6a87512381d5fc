// Nodes and their GPUs: who holds them, how full and how busy they are, and what is wrong.
import { call } from '../lib/api.js';
import { html, useEffect, useMemo, useRef, useState } from '../lib/dom.js';
import { openFeed } from '../lib/feed.js';
import { bytes, number, oneLine, plural, shortName, utc } from '../lib/format.js';
import { useKeys } from '../lib/keys.js';
import { route, setQuery } from '../lib/router.js';
import { jobsOf, nodeState, nodeWhy } from '../lib/words.js';
import { askNode } from '../parts/actions.js';
import { Ago, diskText, Facts, Failure, JobLinks, State } from '../parts/bits.js';
import { NodeUse } from '../parts/gpu_charts.js';
import { SlotCell } from '../parts/gpus.js';

const LOOK_MS = 5000;

function useNodes() {
  const [state, setState] = useState({ nodes: null, warning: '', error: null });
  useEffect(() => {
    let ended = false;
    let timer = 0;
    const read = async () => {
      clearTimeout(timer);
      try {
        const nodes = [];
        let token = '';
        let warning = '';
        do {
          const page = await call('ClusterService/ListNodes', { page_token: token });
          nodes.push(...page.nodes);
          token = page.next_page_token;
          warning = page.warning;
        } while (token);
        if (!ended) setState({ nodes, warning, error: null });
      } catch (error) {
        if (!ended) setState((seen) => ({ ...seen, error }));
      }
      // Memory and utilisation are no changes that the stream tells of.
      if (!ended) timer = setTimeout(() => (document.hidden ? undefined : read()), LOOK_MS);
    };
    const close = openFeed(() => ({ nodes: 1, jobs: 1 }), { open: read, nodes: read, jobs: read });
    read();
    return () => { ended = true; clearTimeout(timer); close(); };
  }, []);
  return state;
}

function Node({ node }) {
  const id = shortName(node.name);
  const state = nodeState(node);
  const hold = node.hold;
  const why = nodeWhy(node);
  return html`<section class="node" id="node-${id}" aria-label="Node ${id}">
    <div class="head"><h2>${oneLine(id)}</h2><${State} of=${state} />
      ${node.simulated ? html`<span class="dim">simulated</span>` : null}<span class="push"></span>
      <span class="buttons">${hold ? html`<button type="button"
        onClick=${() => askNode('resume', id)}>End the hold</button>` : html`<button type="button"
          onClick=${() => askNode('cordon', id)}>Cordon</button>`}
      ${hold?.mode === 'DRAIN' ? null : html`<button type="button" class="danger"
        onClick=${() => askNode('drain', id)}>Drain</button>`}</span></div>
    ${why ? html`<p class="reason">${why}</p>` : null}
    ${hold ? html`<p>${hold.mode === 'DRAIN' ? 'Drained' : 'Cordoned'} by ${oneLine(hold.who)} <${Ago}
      time=${hold.time} />${hold.reason ? `: ${oneLine(hold.reason)}` : ''}${hold.move_time
        ? `; its jobs move from ${utc(hold.move_time)}` : ''}
      ${(hold.jobs || []).length > 0 ? html`; still here: <${JobLinks} names=${hold.jobs} />` : null}</p>` : null}
    <div class="slots">${(node.slots || []).map((slot) => html`<${SlotCell} key=${slot.index} slot=${slot} />`)}</div>
    <${Facts} items=${[
      ['host', `${oneLine(node.hostname)}, ${node.cpus} CPUs, ${bytes(node.memory_bytes)}`],
      ['disk', diskText(node.disk)],
      node.clock_offset_seconds !== undefined && ['clock',
        `${number(node.clock_offset_seconds) >= 0 ? '+' : ''}${number(node.clock_offset_seconds).toFixed(3)} s`],
      node.facts?.driver_version && ['driver', oneLine(node.facts.driver_version)],
      node.facts?.interconnect && ['interconnect', oneLine(node.facts.interconnect)],
      ['worker', oneLine(node.worker_version)],
      ['last seen', html`<${Ago} time=${node.last_seen} />`],
    ]} /><${NodeUse} node=${id} /></section>`;
}

export function FleetPage() {
  const { nodes, warning, error } = useNodes();
  const query = route.use().query;
  const text = query.get('q') || '';
  const field = useRef(null);
  useKeys({ '/': () => field.current.focus() });
  const shown = useMemo(() => (nodes || []).filter((node) =>
    [shortName(node.name), node.hostname, nodeState(node), ...jobsOf(node),
    ...(node.slots || []).map((slot) => slot.gpu_type)].join(' ').toLowerCase().includes(text.toLowerCase())),
      [nodes, text]);
  const slots = (nodes || []).flatMap((node) => node.slots || []);
  const free = slots.filter((slot) => !slot.job && slot.healthy).length;
  const sick = slots.filter((slot) => !slot.healthy).length;
  return html`<div class="head"><h1>Fleet</h1><div class="tools">
      <label><span class="unseen">Filter</span><input ref=${field} type="search" value=${text}
        placeholder="filter: node, type, state, job" aria-keyshortcuts="/"
          onInput=${(event) => setQuery({ q: event.target.value })} /></label>
      <span class="dim">${nodes ? `${plural(nodes.length, 'node')}, ${plural(slots.length,
        'slot')}, ${free} free${sick ? `, ${sick} unhealthy` : ''}` : 'loading'}</span></div></div>
    <${Failure} error=${error} />
    ${warning ? html`<p class="warning">${oneLine(warning)}</p>` : null}
    ${nodes?.length === 0 ? html`<p class="dim pad">No node has joined yet.</p>` : null}
    <div class="nodes">${shown.map((node) => html`<${Node} key=${node.name} node=${node} />`)}</div>`;
}
