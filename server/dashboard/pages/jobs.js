// The list of jobs: pages of the server as it is scrolled, changes as they come.
import { html, useEffect, useRef, useState } from '../lib/dom.js';
import { count, duration, number, oneLine, percent, shortName, whole } from '../lib/format.js';
import { JobList } from '../lib/job_list.js';
import { useKeys } from '../lib/keys.js';
import { go, jobLink, route, setQuery } from '../lib/router.js';
import { gpusOf, isEnded, outlookText, progressText, STATES } from '../lib/words.js';
import { Ago, Bar, Failure, JobLink, Spark, State } from '../parts/bits.js';
import { LongTable } from '../parts/list.js';

// As long as the filter is typed the server is not asked.
const TYPING_MS = 250;

// The states that a filter names: "RUNNING,FAILED".
const STATE_WORD = /^state[:=]/;
const statesOf = (text) => (text.split(/\s+/).find((word) => STATE_WORD.test(word)) || '').replace(STATE_WORD, '')
  .toUpperCase();

// The jobs that a filter lets through, kept up to date: what JobList has, null before its first answer. The
// words are the server's (docs/cli.md).
function useJobs(filter) {
  const [list, setList] = useState({ shown: null });
  const asked = useRef(false);
  useEffect(() => {
    let jobs = null;
    const timer = setTimeout(() => { jobs = new JobList({ filter }, (shown) => setList({ shown })); },
      asked.current ? TYPING_MS : 0);
    asked.current = true;
    return () => {
      clearTimeout(timer);
      jobs?.close();
    };
  }, [filter]);
  return list.shown;
}

function Progress({ job }) {
  const { step, total_steps: total } = job.progress || {};
  if (isEnded(job) || number(total) === 0) return html`<span class="cut" title=${oneLine(job.reason)}>
    ${oneLine(job.reason) || progressText(job)}</span>`;
  const share = number(step) / number(total);
  return html`<span class="progress"><${Bar} share=${share} label="progress" />
    <span class="cut" title=${percent(share)}>${oneLine(progressText(job))}</span></span>`;
}

function ends(job) {
  if (isEnded(job)) return html`<${Ago} time=${job.end_time} />`;
  const left = number(job.progress?.eta_seconds);
  if (job.state === 'RUNNING' && left > 0) return `${duration(left)} left`;
  return job.state === 'PENDING' && job.outlook?.start_time
    ? html`<span title=${outlookText(job.outlook)}>starts <${Ago} time=${job.outlook.start_time} /></span>` : '-';
}

export function JobsPage() {
  const query = route.use().query;
  const text = query.get('q') || '';
  const list = useJobs(text.trim());
  const { jobs = null, token, error } = list || {};
  const [marked, setMarked] = useState(new Set());
  const field = useRef(null);
  const shown = jobs || [];
  const mark = (job) => {
    const next = new Set(marked);
    if (!next.delete(job.name)) next.add(job.name);
    setMarked(next);
  };
  const compare = () => go(`/compare?jobs=${[...marked].map((name) => encodeURIComponent(shortName(name))).join(',')}`);
  useKeys({ '/': () => field.current.focus(), c: () => (marked.size > 1 ? compare() : false) });
  const stateOf = statesOf(text);
  const setState = (state) => {
    const rest = text.split(/\s+/).filter((word) => word && !STATE_WORD.test(word));
    setQuery({ q: [...(state ? [`state=${state}`] : []), ...rest].join(' ') });
  };
  const columns = [
    { name: html`<span class="unseen">Compare</span>`, class: 'mark', cell: (job) =>
      html`<input type="checkbox" checked=${marked.has(job.name)}
        aria-label="Compare ${shortName(job.name)}" onChange=${() => mark(job)} />` },
    { name: 'State', class: 'w-state', cell: (job) => html`<${State} of=${job.state} />` },
    { name: 'Job', class: 'w-job', cell: (job) => html`<${JobLink} name=${job.name}>
      ${job.display_name ? `${oneLine(job.display_name)} ` : ''}
      <span class=${job.display_name ? 'dim' : ''}>${shortName(job.name)}</span></${JobLink}>` },
    { name: 'Owner', class: 'w-owner wide', cell: (job) =>
      html`<span title="project ${oneLine(job.project)}">${oneLine(job.owner)}</span>` },
    { name: 'Progress or reason', class: 'w-progress', cell: (job) => html`<${Progress} job=${job} />` },
    { name: 'Loss', class: 'w-spark wide', cell: (job) =>
      html`<${Spark} values=${job.losses.map((each) => each.loss)} label="loss since the page was opened" />` },
    { name: 'Tokens/s', class: 'right w-rate wide', cell: (job) =>
      (job.state === 'RUNNING' && number(job.progress?.tokens_per_second) > 0
        ? count(job.progress.tokens_per_second) : '') },
    { name: 'GPUs', class: 'w-gpus', cell: (job) =>
      html`<span title=${gpusOf(job) ? `${gpusOf(job)} slots` : ''}>${oneLine(job.variant)}</span>` },
    { name: 'End', class: 'w-end', cell: ends },
    { name: 'Submitted', class: 'w-time wide', cell: (job) => html`<${Ago} time=${job.create_time} />` },
  ];
  return html`<div class="head"><h1>Jobs</h1>
      <div class="tools">
        <label><span class="unseen">Filter</span><input ref=${field} type="search" class="filter" value=${text}
          aria-keyshortcuts="/"
          placeholder="filter: text, owner=, group=, sweep=, project="
            onInput=${(event) => setQuery({ q: event.target.value })} /></label>
        <label><span class="unseen">State</span><select value=${stateOf}
          onChange=${(event) => setState(event.target.value)}>
          <option value="">all states</option>
          <option value="PENDING,PREPARING,RUNNING,CANCELLING">not ended</option>
          ${STATES.map((state) => html`<option value=${state}>${state}</option>`)}</select></label>
        ${marked.size > 0 ? html`<button type="button" class="main" disabled=${marked.size < 2}
          onClick=${compare}>Compare ${marked.size}</button>` : null}
        <span class="dim" role="status">${jobs === null
          ? 'loading' : `${whole(shown.length)}${token ? ' so far' : ''} ${shown.length === 1 ? 'job' : 'jobs'}`}</span>
      </div></div>
    <${Failure} error=${error} />
    ${jobs !== null && shown.length === 0 && !error && !token
      ? html`<p class="dim pad">${text ? 'no job is like that' : html`There is no job yet: <a
        href="/submit">submit one</a>, or <code>sftctl submit FILE</code>.`}</p>` : null}
    <${LongTable} caption="Jobs, newest first" columns=${columns} rows=${shown} marked=${marked} onMark=${mark}
      onOpen=${(job) => go(jobLink(job.name))} onEnd=${() => list?.more()}
        total=${token ? -1 : shown.length} />`;
}
