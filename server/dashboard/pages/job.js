// One job: what it does now, its curves, log, history, checkpoints, results and settings. The same
// page before, during and after its run.
import { call, isPassing } from '../lib/api.js';
import { Curve } from '../lib/curve.js';
import { html, useEffect, useRef, useState } from '../lib/dom.js';
import { endedFeed, openFeed } from '../lib/feed.js';
import { bytes, count, duration, lines, number, oneLine, percent, shortName, utc } from '../lib/format.js';
import { useKeys } from '../lib/keys.js';
import { jobLink, route, setQuery } from '../lib/router.js';
import { actionsOf, askJob, JobButtons, KEYS } from '../parts/actions.js';
import { Ago, Bar, Command, Facts, Failure, JobLink, JobLinks, spoken, State } from '../parts/bits.js';
import { JobCurves, viewOf } from '../parts/curves.js';
import { JobUse } from '../parts/gpu_charts.js';
import { JobGpus } from '../parts/gpus.js';
import { LogText, LogView, MOST_BYTES, readLog, saveLog, TAIL_LINES } from '../parts/log.js';
import { Checkpoints, Results, Settings, Timeline } from '../parts/job_views.js';
import { JobWait } from '../parts/wait.js';
import { costText, countsAnswers, gpusOf, hasLoss, isEnded, outlookText } from '../lib/words.js';

const VIEWS = { curves: 'Curves', log: 'Log', timeline: 'Timeline', checkpoints: 'Checkpoints', results: 'Results',
  settings: 'Settings' };
const AGAIN_MS = 2000;
// By then the stream has gone on with the next attempt's log.
const LATE_MS = 3000;

// What the page knows of a job, and what keeps it so: {job, curve, log, error, ...}.
function useJob(name, logPlace, view) {
  const [, draw] = useState(0);
  const known = useRef(null);
  if (known.current?.name !== name) known.current = { name, job: null, curve: new Curve(name), log: null,
    error: null, version: 0 };
  const it = known.current;
  const show = () => {
    ++it.version;
    draw((count) => count + 1);
  };
  // The curve is asked for again where something else is to be seen of it, or later points are many.
  const readCurve = () => it.curve.read().then(show, () => { timer.current = setTimeout(readCurve, AGAIN_MS); });
  const timer = useRef(0);
  const catchUpCurve = () => {
    const wait = it.curve.due();
    clearTimeout(timer.current);
    if (!Number.isNaN(wait)) timer.current = setTimeout(readCurve, wait);
  };
  const viewKey = JSON.stringify(view);
  useEffect(() => { if (it.curve.look(view) && it.curve.ready) readCurve(); }, [name, viewKey]);
  useEffect(() => () => clearTimeout(timer.current), [name]);
  // The stream is opened anew where it is to carry another log.
  const logKey = logPlace ? `${logPlace.attempt}/${logPlace.rank}/${logPlace.stream}` : '';
  useEffect(() => {
    const stop = new AbortController();
    let close = null;
    let timer = 0;
    let late = 0;
    it.log = logPlace ? new LogText() : null;
    it.logError = null;
    const request = logPlace && { name, ...logPlace };
    const tookJob = (job) => {
      if (it.job && it.job.state !== job.state) spoken.set(`${shortName(job.name)} is ${job.state}`);
      it.job = job;
      it.error = null;
      show();
      if (close && late === 0 && isBehind()) late = setTimeout(catchUp, LATE_MS);
    };
    const isBehind = () => follows() && it.log.attempt > 0 && it.log.attempt < it.job.attempt;
    const follows = () => it.log && !logPlace.attempt && logPlace.stream === 'log';
    const handlers = {
      job: tookJob,
      metrics: ({ points, next }) => {
        if (!it.curve.take(points, next)) return;
        catchUpCurve();
        show();
      },
      log: ({ rank, attempt, text, next, gap, error }) => {
        if (!follows() || rank !== logPlace.rank) return;
        it.log.of(attempt);
        if (error) it.logError = new Error(error);
        if (gap) it.log.gap(gap);
        if (number(next) > it.log.end) {
          it.log.text(text);
          it.log.end = number(next);
        }
        show();
      },
      open: () => { it.error = null; },
    };
    const open = () => {
      close = isEnded(it.job) ? endedFeed() : openFeed(() => ({
        job: shortName(it.job.name), metrics: it.curve.next,
        ...(follows() ? { log: `${logPlace.rank}:${it.log.end}` } : {}),
      }), handlers);
    };
    // A stream that was opened between two attempts takes the offset of the earlier one's log for that of the
    // next one's: what it left out is read here.
    const catchUp = async () => {
      late = 0;
      if (!isBehind()) return;
      close();
      try {
        for (let attempt = it.log.attempt; attempt <= it.job.attempt; ++attempt) {
          it.log.of(attempt);
          await readLog(it.log, { ...request, attempt, offset: it.log.end }, stop.signal);
        }
      } catch (error) {
        if (error.name === 'AbortError') return;
        it.logError = error;
      }
      show();
      open();
    };
    const start = async () => {
      try {
        const drawn = it.curve.ready ? null : it.curve.read();
        drawn?.catch(() => undefined);  // where the job is not there, that is said of it
        tookJob(await call('JobService/GetJob', { name }, stop.signal));
        it.curve.answers = countsAnswers(it.job);
        await drawn;
        if (stop.signal.aborted) return;
        show();
        if (it.log) {
          await readLog(it.log, { ...request, tail_lines: TAIL_LINES }, stop.signal).catch((error) => {
            if (error.name === 'AbortError') throw error;
            it.logError = error;
          });
          show();
        }
        open();
      } catch (error) {
        if (error.name === 'AbortError') return;
        it.error = error;
        show();
        if (isPassing(error)) timer = setTimeout(start, AGAIN_MS);
      }
    };
    start();
    return () => {
      stop.abort();
      clearTimeout(timer);
      clearTimeout(late);
      close?.();
    };
  }, [name, logKey]);

  // The log from its beginning, for a search.
  const wholeLog = async () => {
    if (it.readsAll) return;
    it.readsAll = true;
    const all = new LogText();
    const before = it.log;
    try {
      await readLog(all, { name, ...logPlace, offset: 0 });
      if (all.end < before.end) {
        it.logError = new Error(`the log is larger than ${bytes(MOST_BYTES)}: ` +
          `search it by sftctl logs ${shortName(name)} | grep`);
      } else if (it.log === before) {
        it.log = all;
      }
    } catch (error) {
      it.logError = error;
    }
    it.readsAll = false;
    show();
  };
  return { ...it, wholeLog };
}

// `brief`: without the evidence, where another view needs the room.
function Verdict({ job, brief }) {
  const verdict = job.verdict;
  if (!verdict || job.state === 'SUCCEEDED' || job.state === 'CANCELLED') return null;
  const who = verdict.rank >= 0 && verdict.node ? `rank ${verdict.rank} on ${shortName(verdict.node)}` : '';
  const rank = Math.max(0, verdict.rank);
  const where = verdict.process === 'prepare' ? 'view=log&stream=prepare' : `view=log&rank=${rank}`;
  return html`<section class="verdict" aria-label="Verdict">
    <h2><code>${oneLine(verdict.code)}</code> <span class="dim">${verdict.domain.toLowerCase()}</span></h2>
    <p class="message">${lines(verdict.message)}</p>
    ${verdict.advice ? html`<p><strong>What to do:</strong> ${lines(verdict.advice)}</p>` : null}
    ${verdict.action ? html`<p><strong>What was done:</strong> ${lines(verdict.action)}</p>` : null}
    ${who && !brief ? html`<p><strong>Blamed:</strong> ${who}</p>` : null}
    ${(verdict.evidence || []).length > 0 && !brief ? html`<details open><summary>Evidence</summary>
      <pre tabindex="0" aria-label="Evidence">${verdict.evidence.map(lines).join('\n')}</pre></details>` : null}
    ${(verdict.process || verdict.rank >= 0) && !brief
      ? html`<p><a href="${jobLink(job.name)}?${where}&jump=evidence">Show it in the log</a></p>` : null}
  </section>`;
}

function Figures({ job }) {
  const progress = job.progress || {};
  const total = number(progress.total_steps);
  const done = number(progress.step);
  if (total === 0) return progress.phase && !isEnded(job) ? html`<p>${oneLine(progress.phase)}</p>` : null;
  const unit = countsAnswers(job) ? 'answers' : 'step';
  const known = (value, text) => (number(value) > 0 ? text : '');
  return html`<div class="figures">
    <div class="progress"><${Bar} share=${done / total} label="progress" /> <strong>${percent(done / total)}</strong>
      </div>
    <${Facts} items=${[
      [unit, `${done.toLocaleString('en-US')} / ${total.toLocaleString('en-US')}`],
      hasLoss(job) && ['loss', number(progress.loss).toFixed(4)],
      progress.has_val_loss && ['validation', number(progress.val_loss).toFixed(4)],
      ['tokens/s', known(progress.tokens_per_second, count(progress.tokens_per_second))],
      ['MFU', known(progress.mfu, `${(100 * number(progress.mfu)).toFixed(1)}%`)],
      ['of limit', known(progress.of_limit, percent(number(progress.of_limit)))],
      ['memory', known(progress.gpu_memory_bytes, bytes(progress.gpu_memory_bytes))],
      done > 0 && !isEnded(job) && ['left', duration(number(progress.eta_seconds))],
      done === 0 && !isEnded(job) && ['now', oneLine(progress.phase) || `before the first ${unit.replace(/s$/, '')}`],
    ]} /></div>`;
}

function Head({ job }) {
  const id = shortName(job.name);
  const started = job.start_time;
  return html`<div class="head"><h1>${oneLine(job.display_name) || id}</h1>
      <${State} of=${job.state} />
      ${job.display_name ? html`<code>${id}</code>` : null}
      <span class="push"></span><${JobButtons} job=${job} /></div>
    ${job.reason && job.reason !== job.verdict?.message ? html`<p class="reason">${oneLine(job.reason)}</p>` : null}
    <${Facts} items=${[
      ['owner', `${oneLine(job.owner)} in ${oneLine(job.project)}`],
      ['GPUs', `${oneLine(job.variant)}${gpusOf(job) ? ` (${gpusOf(job)})` : ''}`],
      (job.nodes || []).length > 0 && ['nodes', job.nodes.map(shortName).join(', ')],
      job.priority && job.priority !== 'normal' && ['priority', job.priority],
      job.group && ['group', html`<a href="/?q=group:${encodeURIComponent(job.group)}">${oneLine(job.group)}</a>`],
      job.sweep && ['sweep', html`<a href="/?q=sweep:${encodeURIComponent(job.sweep)}">${oneLine(job.sweep)}</a>`],
      (job.after || []).length > 0 && ['after', html`<${JobLinks} names=${job.after} />`],
      job.resumed_from && ['resumed', html`from step ${number(job.resumed_step)} of <${JobLink}
        name=${job.resumed_from} />`],
      ['submitted', html`<${Ago} time=${job.create_time} />`],
      started && ['started', html`<${Ago} time=${started} />`],
      job.end_time && ['ended', html`<${Ago} time=${job.end_time} />
        ${started ? ` after ${duration((Date.parse(job.end_time) - Date.parse(started)) / 1000)}` : ''}`],
      !isEnded(job) && job.state !== 'PENDING' && job.outlook && ['expected', outlookText(job.outlook)],
      job.deadline && ['deadline', utc(job.deadline)],
      job.cost && ['cost', costText(job.cost, isEnded(job) ? '' : 'so far')],
      number(job.checkpoint_step) > 0 && ['checkpoint', `step ${number(job.checkpoint_step)}`],
      (job.hooks || []).length > 0 && ['told', job.hooks.map((hook) =>
        `${oneLine(hook.url)}${hook.off_time ? ` (off: ${oneLine(hook.off_reason)})` : ''}`).join(', ')],
    ]} />`;
}

// Which log: of the ranks or of the preparation, of which rank, of which attempt.
function LogTools({ job, place }) {
  const set = (key, otherwise) => (event) =>
    setQuery({ [key]: event.target.value === otherwise ? '' : event.target.value, jump: '' });
  const numbers = (count, from = 0) => Array.from({ length: count }, (each, i) =>
    html`<option value=${String(i + from)}>${i + from}</option>`);
  const ofRanks = place.stream === 'log';
  const flags = [ofRanks ? '' : ' --prepare', place.rank ? ` --rank ${place.rank}` : '',
    place.attempt ? ` --attempt ${place.attempt}` : ''];
  return html`<div class="tools">
    <label>of <select value=${place.stream} onChange=${set('stream', 'log')}>
      <option value="log">the ranks</option><option value="prepare">the preparation</option></select></label>
    ${ofRanks ? html`<label>rank <select value=${String(place.rank)} onChange=${set('rank', '0')}>
      ${numbers(Math.max(1, gpusOf(job)))}</select></label>` : null}
    ${job.attempt > 1 ? html`<label>attempt <select value=${String(place.attempt)} onChange=${set('attempt', '0')}>
      <option value="0">the last</option>${numbers(job.attempt - 1, 1)}</select></label>` : null}
    <${Command} text=${`sftctl logs ${shortName(job.name)}${flags.join('')}`} /></div>`;
}

export function JobPage({ name }) {
  const query = route.use().query;
  const view = VIEWS[query.get('view')] ? query.get('view') : 'curves';
  const logPlace = view === 'log' ? { attempt: Number(query.get('attempt')) || 0, rank: Number(query.get('rank')) || 0,
    stream: query.get('stream') === 'prepare' ? 'prepare' : 'log' } : null;
  const curveView = viewOf(query);
  const { job, curve, log, error, logError, version, wholeLog } = useJob(name, logPlace,
    { x: curveView.x, range: curveView.range, half: curveView.half });
  const actions = job ? actionsOf(job) : [];
  useKeys(Object.fromEntries(actions.map((action) => [KEYS[action], () => askJob(action, job)])));
  useEffect(() => { document.title = job ? `${oneLine(job.display_name) || shortName(name)} ${job.state}` : 'sft'; },
    [job?.state, name]);
  if (!job) return html`<h1>${oneLine(name)}</h1>${error
    ? html`<${Failure} error=${error} />` : html`<p class="dim">loading</p>`}`;

  const link = (key) => html`<a key=${key} href="${jobLink(job.name)}${key === 'curves' ? '' : `?view=${key}`}"
    aria-current=${key === view ? 'page' : null}>${VIEWS[key]}</a>`;
  const ofWhat = logPlace?.stream === 'log' ? `rank-${logPlace.rank}` : 'prepare';
  const save = () => saveLog(`${shortName(job.name)}-${ofWhat}.log`, { name, ...logPlace });
  const live = !isEnded(job) && !logPlace?.attempt;
  return html`<${Head} job=${job} />
    ${error ? html`<${Failure} error=${error} />` : null}
    <${JobWait} key=${job.name} job=${job} />
    <${Verdict} job=${job} brief=${view !== 'curves'} />
    <${Figures} job=${job} />
    <nav class="tabs" aria-label="Views of the job">${Object.keys(VIEWS).map(link)}</nav>
    ${view === 'curves' ? html`<${JobCurves} job=${job} curve=${curve} view=${curveView} version=${curve.version}
      answers=${countsAnswers(job)}>
      <${JobGpus} job=${job} /><${JobUse} key=${job.name} job=${job} /></${JobCurves}>` : null}
    ${view === 'log' ? html`<${LogTools} job=${job} place=${logPlace} />
      <${LogView} key=${JSON.stringify(logPlace)} log=${log || new LogText()} version=${version} live=${live}
        error=${logError} onWhole=${wholeLog} onSave=${save} evidence=${job.verdict?.evidence || []} />` : null}
    ${view === 'timeline' ? html`<${Timeline} job=${job} />` : null}
    ${view === 'checkpoints' ? html`<${Checkpoints} job=${job} />` : null}
    ${view === 'results' ? html`<${Results} job=${job} />` : null}
    ${view === 'settings' ? html`<${Settings} job=${job} />` : null}`;
}
