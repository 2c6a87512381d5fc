// The data files that a job file names: chosen here and sent to the server.
import { html, useEffect, useRef, useState } from '../lib/dom.js';
import { bytes, duration, oneLine, plural } from '../lib/format.js';
import { sendFile } from '../lib/send_file.js';
import { spoken, tell } from './bits.js';

const CHOOSE = 'choose the file, or drop it here: it is sent at once';
export const baseName = (path) => path.slice(path.lastIndexOf('/') + 1);

// Of which file of which project a choice is: another path of the same key needs another file.
const idOf = (needed, project) => JSON.stringify([needed.key, needed.path, project]);

// What is chosen for each file that a job needs, and how far it is.
export function useDataFiles(project) {
  const [files, setFiles] = useState({});
  const running = useRef({});
  // Dropped before a dry run has said which file of the job it is.
  const dropped = useRef([]);
  useEffect(() => () => Object.values(running.current).forEach((each) => each.abort()), []);

  const choose = async (needed, file) => {
    const id = idOf(needed, project);
    const control = new AbortController();
    running.current[id]?.abort();
    running.current[id] = control;
    const put = (state) => {
      if (running.current[id] === control) setFiles((seen) => ({ ...seen, [id]: { file, ...state } }));
    };
    let quarter = 0;
    const onState = (state) => {
      put(state);
      const seen = state.doing === 'send' ? Math.floor((4 * state.done) / file.size) : quarter;
      if (seen > quarter) spoken.set(`${25 * seen}% of ${file.name} sent`);
      quarter = seen;
    };
    put({ doing: 'read', done: 0 });
    try {
      const { sha256, rows } = await sendFile(file, project, control.signal, onState);
      put({ sent: { key: needed.key, sha256, size: file.size, client_path: file.name }, rows });
      spoken.set(`${file.name} is on the server`);
    } catch (error) {
      const cancelled = control.signal.aborted;
      const failure = cancelled ? 'cancelled; chosen again, it goes on where it was' : error.message;
      put({ failure, again: !cancelled });
      spoken.set(`${file.name}: ${cancelled ? 'cancelled' : error.message}`);
    }
  };
  const stateOf = (needed) => files[idOf(needed, project)];
  // Files by their names, and a single one for the single one that is missing; those that fit nothing are left.
  const offer = (offered, allNeeded) => {
    const missing = allNeeded.filter((each) => !stateOf(each));
    return offered.filter((file) => {
      const named = (each) => baseName(each.path) === file.name;
      const needed = missing.find(named) || allNeeded.find(named) ||
        (offered.length === 1 && missing.length === 1 ? missing[0] : null);
      if (needed) choose(needed, file);
      return !needed;
    });
  };
  return {
    choose,
    stateOf,
    cancel: (needed) => running.current[idOf(needed, project)]?.abort(),
    // Data that was dropped on the page; `allNeeded`: what the job needs, empty where no dry run has told it yet.
    drop: (given, allNeeded) => {
      if (allNeeded.length === 0) {
        dropped.current.push(...given);
        tell(`${given.map((file) => file.name).join(', ')}: the dry run says what of the job it is`);
        return;
      }
      const left = offer(given, allNeeded);
      if (left.length === 0) return;
      tell(`the job names no file ${left.map((file) => file.name).join(', ')}: choose which of its files it is`);
    },
    // What was dropped before, once a dry run has told what the job needs.
    match: (allNeeded) => { dropped.current = offer(dropped.current, allNeeded); },
  };
}

// The same file again, which may have changed, is a choice too.
export const chooseAnew = (event) => { event.target.value = ''; };

function Progress({ state }) {
  const { file, doing, done } = state;
  if (doing === 'wait') return html`<span class="warn">${oneLine(state.why)}; trying again</span>`;
  if (doing === 'check') return html`<span class="dim">${bytes(file.size)} sent; the server looks at its rows</span>`;
  const seconds = (Date.now() - state.since) / 1000;
  const rate = doing === 'send' && seconds > 1 ? (done - state.begin) / seconds : 0;
  const text = `${bytes(done)} of ${bytes(file.size)} ${doing}${rate > 0
    ? `, ${bytes(Math.round(rate))}/s, ${duration((file.size - done) / rate)} left` : ''}`;
  return html`<progress max=${file.size} value=${done} aria-label="${oneLine(file.name)} ${doing}"></progress>
    <span class="dim">${text}</span>`;
}

function DataFile({ needed, files }) {
  const field = useRef(null);
  const state = files.stateOf(needed);
  const stop = () => {
    field.current.focus();
    files.cancel(needed);
  };
  // What has failed can be chosen again: a browser does not tell of the file that a field has already.
  useEffect(() => { if (state?.failure) field.current.value = ''; }, [state?.failure]);
  const where = state && state.file.name !== baseName(needed.path) ? ` (${oneLine(state.file.name)})` : '';
  const rows = state?.rows > 0 ? `${plural(state.rows, 'row')}, ` : '';
  return html`<li aria-live="off"><label class="file"><span><code>${oneLine(needed.key)}</code>${' '}
      ${oneLine(needed.path)}</span><input type="file" ref=${field} onClick=${chooseAnew}
      onChange=${(event) => event.target.files[0] && files.choose(needed, event.target.files[0])} /></label>
    <p class="sending">${!state ? html`<span class="dim">${CHOOSE}</span>` : null}
      ${state?.sent ? html`<span class="good">${bytes(state.file.size)}, ${rows}on the server${where}</span>` : null}
      ${state?.failure ? html`<span class="bad">${oneLine(state.failure)}</span>` : null}
      ${state?.again ? html` <button type="button" class="small" onClick=${() => files.choose(needed, state.file)}>
        Try again</button>` : null}
      ${state?.doing ? html`<${Progress} state=${state} /> <button type="button" class="small" onClick=${stop}
        aria-label="Cancel ${oneLine(needed.path)}">Cancel</button>` : null}</p></li>`;
}

export const DataFiles = ({ needed, files }) => html`<section aria-label="Its data"><h2>Its data</h2>
  <ul class="needed">${needed.map((each) => html`<${DataFile} key=${each.key} needed=${each} files=${files} />`)}
  </ul></section>`;
