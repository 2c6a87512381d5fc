// What fills the server's disk.
import { call } from '../lib/api.js';
import { html, useEvery, useState } from '../lib/dom.js';
import { bytes, number, oneLine, shortName, whole } from '../lib/format.js';
import { STORED_KINDS } from '../lib/words.js';
import { Ago, Bar, Command, diskText, Failure, JobLink, Table } from '../parts/bits.js';

const LOOK_S = 30;
const BIGGEST = 100;
const OF_JOBS = new Set(['CHECKPOINTS', 'LOGS', 'METRICS']);

const quotaText = (used, most) => (number(most) > 0 ? `${bytes(used)} of ${bytes(most)}` : bytes(used));
const sumOf = (kinds) => (kinds || []).reduce((sum, use) => sum + number(use.bytes), 0);

const jobsOf = (item) => `${item.node ? `on ${shortName(item.node)}, ` : ''}` +
  `${number(item.live_jobs) > 0 ? `${item.live_jobs} live of ` : ''}${number(item.jobs)}`;

// What `sftctl rm` takes: a job, whose page is linked, or a thing by its kind and id.
function Item({ item }) {
  const name = oneLine(item.display_name);
  if (!OF_JOBS.has(item.kind)) return html`<code>${name || oneLine(item.name).slice(0, 28)}</code>`;
  return html`<${JobLink} name=${item.name} /> ${name}`;
}

export function StoragePage() {
  const [state, setState] = useState({ storage: null, error: null });
  useEvery(LOOK_S, async (ended) => {
    try {
      const storage = await call('StorageService/GetStorage', { biggest: BIGGEST });
      if (!ended()) setState({ storage, error: null });
    } catch (error) {
      if (!ended()) setState((seen) => ({ ...seen, error }));
    }
  }, []);
  const { storage, error } = state;
  if (!storage) return html`<h1>Storage</h1>${error
    ? html`<${Failure} error=${error} />` : html`<p class="dim">loading</p>`}`;
  const disk = storage.disk || {};
  const used = number(disk.total_bytes) > 0 ? 1 - number(disk.free_bytes) / number(disk.total_bytes) : 0;
  const full = disk.level === 'FULL' || disk.level === 'LOW';
  return html`<div class="head"><h1>Storage</h1><span class="dim">measured <${Ago} time=${storage.measured} /></span>
    </div>
    <${Failure} error=${error} />
    <p class="progress disk"><${Bar} share=${used} label="disk in use" level=${full ? 'high' : ''} /> <span>
      ${diskText(disk)}</span></p>
    <div class="two"><section><h2>By kind</h2><${Table} caption="By kind"
      head=${['Kind', { name: 'Items', right: true }, { name: 'Size', right: true }]}
      rows=${(storage.kinds || []).map((use) => ({ key: use.kind,
        cells: [STORED_KINDS[use.kind] || use.kind, whole(use.items), bytes(use.bytes)] }))} /></section>
    <section><h2>By project</h2><${Table} caption="By project"
      head=${['Project', { name: 'Size', right: true }, { name: 'Data sets', right: true },
        { name: 'Artifacts', right: true }]}
      rows=${(storage.projects || []).map((use) =>
        ({ key: use.project, cells: [oneLine(use.project), bytes(sumOf(use.kinds)),
        use.quota ? quotaText(use.quota.dataset_used, use.quota.dataset_bytes) : '-', use.quota
          ? quotaText(use.quota.artifact_used, use.quota.artifact_bytes) : '-'] }))} /></section></div>
    <h2>Largest items</h2>
    <${Table} caption="Largest items" head=${[{ name: 'Item', class: 'name' }, 'Kind',
      { name: 'Size', right: true }, 'Project', 'Owner',
      'Last use', { name: 'Jobs', right: true }]}
      rows=${(storage.biggest || []).map((item) => ({ key: `${item.name}/${item.kind}`,
        cells: [html`<${Item} item=${item} />`, STORED_KINDS[item.kind] || item.kind, bytes(item.bytes),
          oneLine(item.project), oneLine(item.owner), html`<${Ago} time=${item.last_use} />`, jobsOf(item)] }))} />
    <p><${Command} text="sftctl storage" /> <span class="dim">removing data: <code>sftctl rm NAME --dry-run</code>
      </span></p>`;
}
