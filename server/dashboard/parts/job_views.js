// The quieter views of a job: history, checkpoints, results, settings.
import { bytesOf, call, callAll, stream } from '../lib/api.js';
import { html, useEffect, useMemo, useState } from '../lib/dom.js';
import { bytes, duration, figure, lines, number, oneLine, shortName, utc, whole } from '../lib/format.js';
import { countsAnswers, eventKind, eventText, isEnded } from '../lib/words.js';
import { actionsOf, askJob } from './actions.js';
import { Command, Failure, Table, Time } from './bits.js';
import { download } from './log.js';

const ACTION = { name: 'Action', unseen: true };
// Larger files are fetched by sftctl, which goes on where a download broke.
const MOST_DOWNLOADED = 64 << 20;

// What a call answers, asked again when one of `inputs` changes: [answer, error].
function useAnswer(ask, inputs) {
  const [state, setState] = useState([null, null]);
  useEffect(() => {
    let ended = false;
    ask().then((answer) => !ended && setState([answer, null]), (error) => !ended &&
      setState(([answer]) => [answer, error]));
    return () => { ended = true; };
  }, inputs);
  return state;
}

const seconds = (attempt) => {
  const begin = Date.parse(attempt.create_time);
  const end = attempt.end_time ? Date.parse(attempt.end_time) : Date.now();
  return Math.max(0, (end - begin) / 1000);
};

// Why an attempt ended, and what the service did then.
const Ending = ({ verdict }) => (verdict?.code
  ? html`<code>${oneLine(verdict.code)}</code> ${oneLine(verdict.message)}
    ${verdict.action ? html`<br /><span class="dim">${oneLine(verdict.action)}</span>` : null}` : null);

// Attempts as bars, one after the other, and everything that happened as one table.
export function Timeline({ job }) {
  const [events, error] = useAnswer(() => callAll('JobService/ListEvents', { name: job.name, page_size: 500 },
    'events'),
    [job.name, job.state, job.attempt, job.checkpoint_step, job.reason]);
  const attempts = job.attempts || [];
  const unit = countsAnswers(job) ? 'answers' : 'steps';
  return html`<${Failure} error=${error} />
    ${attempts.length > 0 ? html`<h2>Attempts</h2>
      <div class="attempts" aria-hidden="true">${attempts
        .map((attempt) => html`<span key=${attempt.number} class="attempt ${attempt.state}"
          style=${{ flexGrow: Math.max(seconds(attempt), 1) }}>${attempt.number}</span>`)}</div>
      <${Table} caption="Attempts" head=${[{ name: 'Attempt', right: true }, 'State', 'Nodes', `Its ${unit}`, 'From',
        { name: 'For', right: true },
          { name: 'Verdict', class: 'text' }]}
        rows=${attempts.map((attempt) => ({ key: attempt.number,
          cells: [attempt.number, html`<span class="state ${attempt.state}">${attempt.state}</span>`,
          (attempt.nodes || []).map(shortName).join(', '),
            `${whole(attempt.first_step)} to ${whole(attempt.last_step)}`,
          html`<${Time} time=${attempt.create_time} />`, duration(seconds(attempt)),
          html`<${Ending} verdict=${attempt.verdict} />`] }))} />` : null}
    <h2>Events</h2>
    <${Table} caption="Events, newest first" head=${['Time', { name: 'Attempt', right: true }, 'Event',
      { name: 'What', class: 'text' }]}
      rows=${[...(events || [])].reverse().map((event) =>
        ({ key: event.sequence, cells: [html`<${Time} time=${event.time} />`, event.attempt || '', eventKind(event),
          eventText(event)] }))}
      empty=${events ? 'nothing yet' : 'loading'} />`;
}

export function Checkpoints({ job }) {
  const [list, error] = useAnswer(() => call('JobService/ListCheckpoints', { name: job.name }),
    [job.name, job.checkpoint_step, job.state]);
  const resumes = actionsOf(job).includes('resume');
  return html`<${Failure} error=${error} />
    <${Table} caption="Checkpoints, newest first" head=${[{ name: 'Step', right: true },
      { name: 'Attempt', right: true }, { name: 'Size', right: true }, 'Why', { name: 'Metric', right: true },
        'Where', 'Saved', ACTION]}
      rows=${(list?.checkpoints || []).map((each) =>
        ({ key: `${each.step}/${each.attempt}`, cells: [whole(each.step), each.attempt, bytes(each.bytes),
        `${each.reason}${each.best ? ', the best' : ''}`, each.metric === undefined
          ? '' : figure(number(each.metric)), oneLine(each.place) + (each.problem ? ` (${oneLine(each.problem)})` : ''),
        html`<${Time} time=${each.commit_time} />`, resumes
          ? html`<button type="button" class="small"
            onClick=${() => askJob('resume', job, number(each.step))}>Resume from here</button>` : ''] }))}
      empty=${list ? 'no checkpoint exists' : 'loading'} />
    <${Command} text=${`sftctl checkpoints ${shortName(job.name)}`} />`;
}

function FileRow({ artifact, file, onError }) {
  const [busy, setBusy] = useState(false);
  const size = number(file.blob?.size);
  const fetchFile = async () => {
    setBusy(true);
    try {
      const parts = [];
      for await (const chunk of stream('DataService/DownloadArtifactFile',
        { name: artifact.name, path: file.path })) parts.push(bytesOf(chunk.data));
      download(file.path.slice(file.path.lastIndexOf('/') + 1), parts, 'application/octet-stream');
    } catch (error) {
      onError(error);
    }
    setBusy(false);
  };
  return size <= MOST_DOWNLOADED ? html`<button type="button" class="small" disabled=${busy} onClick=${fetchFile}
    aria-label="Download ${oneLine(file.path)}">${busy ? 'loading' : 'download'}</button>`
    : html`<span class="dim">by sftctl</span>`;
}

export function Results({ job }) {
  const names = job.artifacts || [];
  const [artifacts, error] = useAnswer(() => Promise.all(names
    .map((name) => call('DataService/GetArtifact', { name }))), [names.join(' ')]);
  const [failure, setFailure] = useState(null);
  const id = shortName(job.name);
  if (names.length === 0) return html`<p class="dim pad">
    ${isEnded(job) ? 'The job has delivered nothing.' : 'Results are here once the job has succeeded.'}</p>`;
  return html`<${Failure} error=${error || failure} />
    ${(artifacts || []).map((artifact) => html`<section key=${artifact.name}>
    <h2>${oneLine(artifact.kind)}${' '}
    <span class="dim">${bytes(artifact.bytes)}, ${utc(artifact.create_time)}${artifact.node
      ? `, on ${shortName(artifact.node)} in ${oneLine(artifact.node_path)}` : ''}</span></h2>
    <${Table} caption="Files of the ${artifact.kind}" head=${['File', { name: 'Size', right: true }, 'SHA-256', ACTION]}
      rows=${(artifact.files || []).map((file) => ({ key: file.path,
        cells: [oneLine(file.path), bytes(file.blob?.size),
          html`<code class="dim">${(file.blob?.sha256 || '').slice(0, 16)}</code>`,
        html`<${FileRow} artifact=${artifact} file=${file} onError=${setFailure} />`] }))} />
    <p><${Command} text=${`sftctl download ${id}`} /></p></section>`)}`;
}

export function Settings({ job }) {
  const [all, setAll] = useState(false);
  const [text, setText] = useState('');
  const rows = useMemo(() => (job.resolved || []).filter((each) => (all || each.origin !== 'default') &&
    `${each.key} ${each.value} ${each.origin}`.toLowerCase().includes(text.toLowerCase())), [job.resolved, all, text]);
  return html`${(job.warnings || []).map((warning) =>
    html`<p key=${warning.key + warning.message} class="warning"><code>
      ${oneLine(warning.key)}</code> ${oneLine(warning.message)}</p>`)}
    <div class="tools"><label>find <input type="search" value=${text}
      onInput=${(event) => setText(event.target.value)} /></label>
      <label class="checkbox"><input type="checkbox" checked=${all}
        onChange=${(event) => setAll(event.target.checked)} /><span>defaults too</span></label>
      <span class="dim" role="status">${whole(rows.length)} keys</span></div>
    <${Table} caption="Resolved keys" head=${['Key', 'Value', 'Origin']} rows=${rows.map((each) => ({ key: each.key,
      cells: [html`<code>${oneLine(each.key)}</code>`, html`<code>${oneLine(each.value)}</code>`,
        html`<span class="dim">${oneLine(each.origin)}</span>`] }))} />
    ${job.source_text ? html`<details><summary>The job file as it was submitted</summary><pre tabindex="0"
      aria-label="Job file">${lines(job.source_text)}</pre></details>` : null}`;
}
