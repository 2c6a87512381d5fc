// Usage of the fleet over a period.
import { call } from '../lib/api.js';
import { html, useEvery, useState } from '../lib/dom.js';
import { duration, number, oneLine, utc, whole } from '../lib/format.js';
import { route, setQuery } from '../lib/router.js';
import { money } from '../lib/words.js';
import { Bar, Command, Facts, Failure, Table } from '../parts/bits.js';

const DAY_S = 86400;
const PERIODS = { '1d': 1, '7d': 7, '30d': 30, '90d': 90 };
const GROUPS = { project: 'PROJECT', owner: 'OWNER', node: 'NODE' };
const LOOK_S = 60;

const share = (part, all) => (all > 0 ? `${((100 * part) / all).toFixed(0)}%` : '-');
const wait = (seconds) => (seconds === undefined ? '-' : duration(number(seconds)));
const ended = (row) =>
  `${whole(row.succeeded)} succeeded, ${whole(row.failed)} failed, ${whole(row.cancelled)} cancelled`;
const waits = (row) =>
  `${whole(row.placed)} placed, median ${wait(row.wait_median_seconds)}, p90 ${wait(row.wait_p90_seconds)}`;
const failures = (row) => (row.failures || []).map((each) => `${each.count} ${oneLine(each.code)}`).join(', ') || '-';

export function StatsPage() {
  const query = route.use().query;
  const since = PERIODS[query.get('since')] ? query.get('since') : '30d';
  const by = GROUPS[query.get('by')] ? query.get('by') : 'project';
  const [state, setState] = useState({ stats: null, error: null });
  useEvery(LOOK_S, async (ended) => {
    try {
      const stats = await call('OperatorService/GetStats',
        { since_seconds: PERIODS[since] * DAY_S, group_by: GROUPS[by] });
      if (!ended()) setState({ stats, error: null });
    } catch (error) {
      if (!ended()) setState((seen) => ({ ...seen, error }));
    }
  }, [since, by]);
  const { stats, error } = state;
  const total = stats?.total || {};
  const currency = stats?.currency;
  // A column of costs, where there are prices.
  const withCost = (cells, cost) => (currency ? [...cells.slice(0, 2), cost, ...cells.slice(2)] : cells);
  return html`<div class="head"><h1>Stats</h1><div class="tools">
      <label>the last <select value=${since} onChange=${(event) =>
        setQuery({ since: event.target.value === '30d' ? '' : event.target.value })}>
        ${Object.keys(PERIODS).map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
      <label>by <select value=${by} onChange=${(event) =>
        setQuery({ by: event.target.value === 'project' ? '' : event.target.value })}>
        ${Object.keys(GROUPS).map((name) => html`<option value=${name}>${name}</option>`)}</select></label></div></div>
    <${Failure} error=${error} />
    ${!stats ? html`<p class="dim">${error ? '' : 'loading'}</p>` : html`
    ${stats.warning ? html`<p class="warning">${oneLine(stats.warning)}</p>` : null}
    <${Facts} items=${[['from', utc(stats.begin)], ['to', utc(stats.end)],
      ['GPU-hours', number(total.gpu_hours).toFixed(2)],
      currency && ['cost', money(total.cost_micros, currency)],
      ['jobs', ended(total)],
      ['waits', waits(total)]]} />
    <h2>Utilisation</h2>
    <${Table} caption="Utilisation by type" head=${['Type', { name: 'As a bar', unseen: true },
      { name: 'Held', right: true }, { name: 'Available', right: true }, { name: 'Share', right: true }]}
      rows=${(stats.types || []).map((type) => ({ key: type.gpu_type,
        cells: [oneLine(type.gpu_type), html`<${Bar} share=${number(type.held_hours) / number(type.available_hours)}
          label="held" />`,
        `${number(type.held_hours).toFixed(1)} h`, `${number(type.available_hours).toFixed(1)} h`,
          share(number(type.held_hours), number(type.available_hours))] }))} />
    <h2>By ${by}</h2>
    <${Table} caption="By ${by}" head=${withCost([by, { name: 'GPU-hours', right: true },
      { name: 'Succeeded', right: true }, { name: 'Failed', right: true },
      { name: by === 'node' ? 'Other' : 'Cancelled', right: true },
      { name: 'Wait', right: true }, { name: 'p90', right: true }, by === 'node'
        ? 'Failures that blame it' : 'Failed attempts'], { name: 'Cost', right: true })}
      rows=${(stats.rows || []).map((row) => ({ key: row.name,
        cells: withCost([oneLine(row.name), number(row.gpu_hours).toFixed(2), whole(row.succeeded), whole(row.failed),
          whole(row.cancelled), wait(row.wait_median_seconds), wait(row.wait_p90_seconds), failures(row)],
        money(row.cost_micros, currency)) }))} />
    <div class="two"><section><h2>Failures by verdict</h2><${Table} caption="Failures by verdict"
      head=${['Verdict', 'Domain', { name: 'Attempts', right: true }]} empty="none"
      rows=${(total.failures || []).map((each) => ({ key: each.code,
        cells: [html`<code>${oneLine(each.code)}</code>`, each.domain, whole(each.count)] }))} /></section>
    <section><h2>Accuracy of the estimates</h2><${Table} caption="Accuracy of the estimates"
      head=${['Estimate', { name: 'Jobs', right: true }, { name: 'Within 20%', right: true },
        { name: 'Within 50%', right: true }, { name: 'Off on average', right: true }]}
          empty="no job has ended in the period"
      rows=${(stats.estimates || []).map((each) =>
        ({ key: each.estimate, cells: [each.estimate === 'end_after_50_steps'
          ? 'end, after 50 steps' : each.estimate, whole(each.count),
        share(number(each.within_20), number(each.count)), share(number(each.within_50), number(each.count)),
          `${(100 * number(each.mean)).toFixed(0)}%`] }))} /></section></div>
    <p><${Command} text=${`sftctl stats --since ${since} --by ${by}`} /></p>`}`;
}
