// Why a job waits, and what would start it sooner.
import { call, isPassing } from '../lib/api.js';
import { html, useEvery, useState } from '../lib/dom.js';
import { oneLine, utc } from '../lib/format.js';
import { aheadText, pastStartsText, soonerText } from '../lib/words.js';
import { Ago, Command, Facts, Failure } from './bits.js';

// The server makes an answer anew after as long.
const LOOK_S = 10;

// A start to come, with how long it is until then; `text` in place of a time that is not known.
const Start = ({ time, text = '' }) => (time
  ? html`<${Ago} time=${time} /> <span class="dim">${utc(time)}</span>` : text);

// What has a place in no line has no `outlook`.
const places = ({ outlook, line, ...wait }) => (outlook ? [
  outlook.place > 0 && ['place', line > 0 ? `${outlook.place} of ${line}` : outlook.place],
  ['ahead of it', aheadText(wait)],
  outlook.start_time && ['expected start', html`<${Start} time=${outlook.start_time} />`],
  outlook.promised_start_time && ['at the latest', html`<${Start} time=${outlook.promised_start_time} />`],
  outlook.end_time && ['expected end',
    html`<${Start} time=${outlook.end_time} />${outlook.source === 'measured' ? ' (measured)' : ''}`],
  outlook.start_time && ['estimates', pastStartsText(wait)],
] : []);

const WhatIf = ({ whatIf }) => html`<li><strong>${oneLine(whatIf.change)}</strong>: <${Start}
    time=${whatIf.now ? '' : whatIf.start_time} text=${soonerText(whatIf)} />${whatIf.promised_start_time
      ? html`, at the latest <${Start} time=${whatIf.promised_start_time} />` : null}
    <br /><${Command} text=${whatIf.command} /></li>`;

// Changes that are seen before "all" is asked for.
const CHANGES_SHOWN = 3;

const placeText = (place) => (place > 0 ? place : 'none');
const timeText = (time) => (time ? utc(time) : 'not known');

// What of its place and starts a change moved: "place 2 → 4".
const moves = (change) => [
  ['place', change.place_before || 0, change.place || 0, placeText],
  ['start', change.start_time_before, change.start_time, timeText],
  ['at the latest', change.promised_start_time_before, change.promised_start_time, timeText],
].filter(([, before, after]) => before !== after)
  .map(([what, before, after, text]) => `${what} ${text(before)} → ${text(after)}`);

// When the place or the start changed, and by what; the newest first.
function Changes({ history }) {
  const [all, setAll] = useState(false);
  return html`<h3>What moved it</h3><ul class="moved">
    ${(all ? history : history.slice(0, CHANGES_SHOWN)).map((change) => html`<li key=${change.time + change.cause}>
      <${Ago} time=${change.time} />: ${oneLine(change.cause)}
      ${moves(change).map((move) => html`<br /><span class="dim">${move}</span>`)}</li>`)}</ul>
    ${history.length > CHANGES_SHOWN ? html`<button type="button" class="small" aria-expanded=${all}
      onClick=${() => setAll(!all)}>${all ? 'Show the last ones' : `Show all ${history.length} changes`}</button>`
    : null}`;
}

// `wait`: a WaitExplanation; `said`: the reason that stands beside it already. Nothing where that says all.
export function Wait({ wait, said = '', title = 'Why it waits' }) {
  const whatIfs = wait.what_ifs || [];
  const history = wait.history || [];
  const reason = wait.reason === '' ? 'It starts with the next decision.' : wait.reason;
  const isNew = reason && reason !== said;
  if (!isNew && !wait.outlook && whatIfs.length === 0 && history.length === 0) return null;
  return html`<section aria-label=${title}><h2>${title}</h2>
    ${isNew ? html`<p class="reason">${oneLine(reason)}</p>` : null}
    <${Facts} items=${places(wait)} />
    ${history.length > 0 ? html`<${Changes} history=${history} />` : null}
    ${whatIfs.length > 0 ? html`<h3>What would start it sooner</h3><ul class="sooner">
      ${whatIfs.map((each) => html`<${WhatIf} key=${each.command} whatIf=${each} />`)}</ul>` : null}</section>`;
}

// The same of a job, asked for as long as it waits. Before the first answer it shows what the job itself says.
export function JobWait({ job }) {
  const [{ wait, error }, setState] = useState({ wait: null, error: null });
  const waits = job.state === 'PENDING';
  useEvery(LOOK_S, async (ended) => {
    if (!waits) return;
    let next;
    try {
      next = { wait: await call('SchedulingService/ExplainWait', { name: job.name }), error: null };
    } catch (failure) {
      // It may have started meanwhile, which the stream tells, or the server is away or busy.
      if (failure.code === 'FAILED_PRECONDITION' || isPassing(failure)) return;
      next = { wait: null, error: failure };
    }
    if (!ended()) setState(next);
  }, [job.name, job.state, job.held, job.reason, job.outlook?.place]);
  if (!waits) return null;
  return html`<${Wait} wait=${wait || { outlook: job.outlook }} said=${job.reason} />
    <${Failure} error=${error} />`;
}
