// The list of jobs: pages of the server as it is scrolled, changes as they come.
import { call } from '../lib/api.js';
import { html, useEffect, useMemo, useRef, useState } from '../lib/dom.js';
import { openFeed } from '../lib/feed.js';
import { count, duration, number, oneLine, percent, shortName, whole } from '../lib/format.js';
import { useKeys } from '../lib/keys.js';
import { go, jobLink, route, setQuery } from '../lib/router.js';
import { gpusOf, isEnded, outlookText, progressText, STATES } from '../lib/words.js';
import { Ago, Bar, Failure, JobLink, Spark, State } from '../parts/bits.js';
import { LongTable } from '../parts/list.js';

// One page of the server; its limit is 500.
const FIRST_PAGE = 100;
const NEXT_PAGES = 500;
const MOST_ASKED_ALONE = 30;
const SPARK_POINTS = 40;

// The filter box: words to find, and `state:`, `sweep:`, `group:`, `project:` that the server filters by.
export function parseFilter(text) {
  const filter = { words: [], request: {} };
  for (const word of text.trim().split(/\s+/).filter(Boolean)) {
    const [, name, value] = /^(state|sweep|group|project):(.+)$/.exec(word) || [];
    if (name === 'state') filter.request.states = value.toUpperCase().split(',')
      .filter((state) => STATES.includes(state));
    else if (name) filter.request[name] = value;
    else filter.words.push(word.toLowerCase());
  }
  return filter;
}

const searched = (job) => [shortName(job.name), job.display_name, job.owner, job.variant, job.reason, job.project,
  job.group,
  job.state].join(' ').toLowerCase();

// The jobs of a filter: {jobs, more(), whole, error}. Kept up to date by the feed.
function useJobs(request) {
  const key = JSON.stringify(request);
  const [state, setState] = useState({ jobs: null, token: '', error: null });
  const now = useRef({});
  const put = (next) => {
    now.current = { ...now.current, ...next };
    setState(now.current);
  };
  useEffect(() => {
    let ended = false;
    now.current = { jobs: null, token: '', error: null, busy: false };
    const losses = new Map();
    // The last losses of each running job, as the list shows them one after the other.
    const keep = (job) => {
      const seen = losses.get(job.name) || [];
      if (job.state === 'RUNNING' && number(job.progress?.step) > 0 && seen.at(-1)?.step !== job.progress.step) {
        losses.set(job.name, [...seen.slice(1 - SPARK_POINTS),
          { step: job.progress.step, loss: number(job.progress.loss) }]);
      }
      return { ...job, id: job.name, losses: losses.get(job.name) || [], text: searched(job) };
    };
    const list = async (size, token) => call('JobService/ListJobs', { ...request, page_size: size, page_token: token });
    const guarded = async (work) => {
      try {
        await work();
      } catch (error) {
        if (!ended) put({ error, jobs: now.current.jobs || [], busy: false });
      }
    };
    const begin = () => guarded(async () => {
      const page = await list(FIRST_PAGE, '');
      if (ended) return;
      const fresh = page.jobs.map(keep);
      const names = new Set(fresh.map((job) => job.name));
      const older = (now.current.jobs || []).filter((job) => !names.has(job.name));
      // Beyond the first page what was loaded stays, and so does the place to go on from.
      const token = older.length > 0 && page.next_page_token ? now.current.token : page.next_page_token;
      put({ jobs: [...fresh, ...(page.next_page_token ? older : [])], token, error: null });
    });
    now.current.more = () => guarded(async () => {
      if (now.current.busy || !now.current.token) return;
      put({ busy: true });
      const page = await list(NEXT_PAGES, now.current.token);
      if (ended) return;
      const names = new Set(now.current.jobs.map((job) => job.name));
      put({ jobs: [...now.current.jobs, ...page.jobs.filter((job) => !names.has(job.name)).map(keep)],
        token: page.next_page_token, busy: false, error: null });
    });
    const changed = async (ids) => {
      await begin();
      const known = new Map((now.current.jobs || []).map((job, i) => [shortName(job.name), i]));
      const beyond = ids.map(shortName).filter((id) => known.get(id) >= FIRST_PAGE).slice(0, MOST_ASKED_ALONE);
      await guarded(async () => {
        const jobs = await Promise.all(beyond.map((id) => call('JobService/GetJob', { name: id })));
        const byName = new Map(jobs.map((job) => [job.name, keep(job)]));
        if (!ended && byName.size > 0) put({ jobs: now.current.jobs.map((job) => byName.get(job.name) || job) });
      });
    };
    begin();
    const close = openFeed(() => ({ jobs: 1 }), { open: begin, jobs: ({ changed: ids }) => changed(ids || []) });
    return () => { ended = true; close(); };
  }, [key]);
  return state;
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
  if (job.state === 'RUNNING' && number(job.progress?.eta_seconds) > 0) return `${duration(number(job.progress.eta_seconds))} left`;
  return job.state === 'PENDING' && job.outlook?.start_time
    ? html`<span title=${outlookText(job.outlook)}>starts <${Ago} time=${job.outlook.start_time} /></span>` : '-';
}

export function JobsPage() {
  const query = route.use().query;
  const text = query.get('q') || '';
  const filter = useMemo(() => parseFilter(text), [text]);
  const { jobs, token, error, more, busy } = useJobs(filter.request);
  const [marked, setMarked] = useState(new Set());
  const field = useRef(null);
  const shown = useMemo(() => (jobs || []).filter((job) => filter.words.every((word) => job.text.includes(word))),
    [jobs, filter]);
  const mark = (job) => {
    const next = new Set(marked);
    if (!next.delete(job.name)) next.add(job.name);
    setMarked(next);
  };
  const compare = () => go(`/compare?jobs=${[...marked].map((name) => encodeURIComponent(shortName(name))).join(',')}`);
  useKeys({ '/': () => field.current.focus(), c: () => (marked.size > 1 ? compare() : false) });
  // Words are looked for in what is loaded: load on until the page is full or all is there.
  useEffect(() => {
    if (filter.words.length > 0 && token && !busy) more();
  }, [filter, token, busy]);

  const stateOf = (filter.request.states || []).join(',');
  const setState = (state) => {
    const rest = text.split(/\s+/).filter((word) => word && !word.startsWith('state:'));
    setQuery({ q: [...(state ? [`state:${state}`] : []), ...rest].join(' ') });
  };
  const columns = [
    { name: html`<span class="unseen">Compare</span>`, class: 'mark', cell: (job) =>
      html`<input type="checkbox" checked=${marked.has(job.name)}
        aria-label="Compare ${shortName(job.name)}" onChange=${() => mark(job)} />` },
    { name: 'State', class: 'w-state', cell: (job) => html`<${State} of=${job.state} />` },
    { name: 'Job', class: 'w-job', cell: (job) => html`<${JobLink} name=${job.name}>
      ${oneLine(job.display_name) || shortName(job.name)}</${JobLink}>
        ${job.display_name ? html` <span class="dim">${shortName(job.name)}</span>` : null}` },
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
          placeholder="filter: words, group:, sweep:, project:"
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
      onOpen=${(job) => go(jobLink(job.name))} onEnd=${() => token && !busy && more?.()}
        total=${token ? -1 : shown.length} />`;
}
