// GPUs of a fleet or of a job, as the nodes report them now.
import { callAll } from '../lib/api.js';
import { html, useEvery, useState } from '../lib/dom.js';
import { bytes, number, oneLine, percent, shortName } from '../lib/format.js';
import { isEnded } from '../lib/words.js';
import { Bar, JobLink, Table } from './bits.js';

const LOOK_S = 5;

export const memoryShare = (slot) => (number(slot.memory_bytes) > 0
  ? number(slot.memory_used_bytes) / number(slot.memory_bytes) : 0);

// One slot of a node, as a cell of the fleet's grid.
export function SlotCell({ slot }) {
  const free = !slot.job && slot.healthy;
  const state = !slot.healthy ? 'bad' : slot.job ? 'busy' : 'free';
  const memory = memoryShare(slot);
  return html`<div class="slot ${state}" title="${oneLine(slot.product_name ||
    slot.gpu_type)}: ${bytes(slot.memory_used_bytes)} of ${bytes(slot.memory_bytes)}${slot.healthy
      ? '' : `, ${oneLine(slot.health_reason)}`}">
    <span class="slot-name"><b>${slot.index}</b> ${slot.job ? html`<${JobLink} name=${slot.job} />` : free
      ? 'free' : 'unhealthy'}</span>
    <${Bar} share=${memory} label="memory" level=${memory > 0.97 ? 'high' : ''} />
    <span class="dim">${percent(memory)} mem · ${slot.utilization_percent || 0}% busy</span></div>`;
}

// Memory of each GPU that a job holds.
export function JobGpus({ job }) {
  const [slots, setSlots] = useState(null);
  useEvery(LOOK_S, async (ended) => {
    if (isEnded(job)) return;
    const nodes = await callAll('ClusterService/ListNodes', {}, 'nodes').catch(() => null);
    if (ended() || !nodes) return;
    setSlots(nodes.flatMap((node) => (node.slots || [])
      .filter((slot) => slot.job && shortName(slot.job) === shortName(job.name))
      .map((slot) => ({ ...slot, node: shortName(node.name) }))));
  }, [job.name, job.state]);
  if (isEnded(job) || !slots || slots.length === 0) return null;
  return html`<section><h2>Its GPUs now</h2><${Table} caption="GPUs of the job"
    head=${['Node', 'Slot', 'Type', 'Memory', { name: 'Used', right: true }, { name: 'Of', right: true },
      { name: 'Busy', right: true }]}
    rows=${slots.map((slot) => ({ key: `${slot.node}/${slot.index}`, cells: [slot.node, slot.index, slot.gpu_type,
      html`<${Bar} share=${memoryShare(slot)} label="memory" />`, bytes(slot.memory_used_bytes),
        bytes(slot.memory_bytes), `${slot.utilization_percent || 0}%`] }))} /></section>`;
}
