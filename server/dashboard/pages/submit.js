// A job file from the page: checked by a dry run first, then submitted.
import { call, CallError, requestId } from '../lib/api.js';
import { html, useRef, useState } from '../lib/dom.js';
import { bytes, count, number, oneLine, plural, shortName, whole } from '../lib/format.js';
import { go, jobLink } from '../lib/router.js';
import { costText, outlookText } from '../lib/words.js';
import { Command, Facts, Failure, JobLink, Table, tell } from '../parts/bits.js';
import { baseName, chooseAnew, DataFiles, useDataFiles } from '../parts/data_files.js';
import { Wait } from '../parts/wait.js';

const KEPT = 'sft-job-file';
// The most that a server takes.
const MOST_TEXT = 1 << 20;
const HINT = 'A dry run comes first: it says here what the job would be, and all that a submit would refuse.';
const START = `[job]
name = ""
model = ""
data = ""

[compute]
variant = ""

[training]
mode = "lora"
`;

// Of what is dropped: a job file by its name, or data.
const isJobFile = (file) => /\.(toml|ya?ml|json)$/i.test(file.name) || !file.name.includes('.');

// The problems that an error of SubmitJob names, as a dry run gives them.
function problemsOf(error) {
  if (!(error instanceof CallError)) return [];
  return error.details.map(({ field, description }) => {
    const [, line, message] = /^line (\d+): (.*)$/s.exec(description) || [null, '0', description];
    return { key: field, line: Number(line), message };
  });
}

function Problems({ problems, name, onLine }) {
  if (problems.length === 0) return null;
  return html`<section role="alert"><h2>${plural(problems.length, 'problem')}</h2>
    <ul class="problems">${problems.map((problem, i) => html`<li key=${i}>
      ${problem.line > 0 ? html`<button type="button" class="small" onClick=${() => onLine(problem.line)}>
        ${oneLine(name)}:${problem.line}</button> ` : null}
      ${problem.key ? html`<code>${oneLine(problem.key)}</code> ` : null}${oneLine(problem.message)}</li>`)}</ul>
        </section>`;
}

// A webhook that was made for a job: this is the one time that its secret is there.
const Secret = ({ made }) => html`<section role="alert"><h2>The secret of its webhook</h2>
    <p><code>${oneLine(made.hook.webhook)}</code> tells <code>${oneLine(made.hook.url)}</code> of <${JobLink}
      name=${made.job.name} />. The receiver knows this server by the secret, which is not shown again:</p>
    <p><code>${made.hook.secret}</code></p></section>`;

function Plan({ plan, resolved }) {
  const memory = (plan.memory || []).reduce((sum, item) => sum + number(item.bytes), 0);
  return html`<section><h2>What it would be</h2><${Facts} items=${[
    ['GPUs', `${oneLine(plan.variant)}${plan.nodes > 1 ? `, ${plan.nodes} nodes` : ''}, ${plural(plan.ranks, 'rank')}`],
    ['placement', oneLine(plan.placement)], ['expected', plan.wait?.outlook ? '' : outlookText(plan.outlook)],
    plan.cost && ['cost', costText(plan.cost, 'for the expected run')], ['batch', oneLine(plan.batch)],
    number(plan.total_parameters) > 0 && ['parameters',
      `${count(plan.trainable_parameters)} of ${count(plan.total_parameters)} train`],
    memory > 0 && ['memory per rank', `${bytes(memory)}${number(plan.memory_limit_bytes) > 0
      ? ` of ${bytes(plan.memory_limit_bytes)}` : ''}`],
    number(plan.tokens_per_second) > 0 && ['tokens/s',
      `${count(plan.tokens_per_second)}${plan.speed_from_peaks ? ' (from published peaks)' : ''}`],
    ['execution', oneLine(plan.execution)], ['note', oneLine(plan.note)]]} />
    ${plan.wait ? html`<${Wait} wait=${plan.wait} said=${plan.placement} title="Why it would wait" />` : null}
    <details><summary>${whole(resolved.length)} resolved keys</summary><${Table} caption="Resolved keys"
      head=${['Key', 'Value', 'Origin']}
      rows=${resolved.map((each) => ({ key: each.key,
        cells: [html`<code>${oneLine(each.key)}</code>`, html`<code>${oneLine(each.value)}</code>`,
          html`<span class="dim">${oneLine(each.origin)}</span>`] }))} /></details></section>`;
}

export function SubmitPage() {
  const [text, setText] = useState(() => sessionStorage.getItem(KEPT) || START);
  const [name, setName] = useState('job.toml');
  const [project, setProject] = useState('');
  const [answer, setAnswer] = useState(null);
  const [error, setError] = useState(null);
  const files = useDataFiles(project);
  const [busy, setBusy] = useState('');
  const [over, setOver] = useState(false);
  const [made, setMade] = useState(null);
  // The same id until the file changes, so that a second click makes no second job.
  const request = useRef({ text: '', id: '' });
  const area = useRef(null);
  const numbers = useRef(null);

  const change = (next) => {
    setMade(null);
    setText(next);
    sessionStorage.setItem(KEPT, next);
    setAnswer(null);
    setError(null);
  };
  const take = async (file) => {
    if (file.size > MOST_TEXT) {
      setError(new Error(`${file.name} has ${bytes(file.size)}, a job file at most 1 MiB`));
      return;
    }
    setName(file.name);
    change(await file.text());
  };
  const idOf = () => {
    const key = `${name}\n${project}\n${text}`;
    if (request.current.text !== key) request.current = { text: key, id: requestId() };
    return request.current.id;
  };
  const during = async (what, work) => {
    setBusy(what);
    setError(null);
    try {
      await work();
    } catch (failure) {
      setError(failure);
    }
    setBusy('');
  };
  const check = () => during('check', async () => {
    const told = await call('JobService/ResolveJob', { source_text: text, file_name: name, for_submit: true,
      explain_wait: true, project, request_id: idOf() });
    setAnswer(told);
    files.match(told.needed_files || []);
  });
  const problems = answer ? answer.problems || [] : problemsOf(error);
  const needed = answer?.needed_files || [];
  const missing = needed.filter((each) => !files.stateOf(each)?.sent);
  const submit = () => during('submit', async () => {
    const job = await call('JobService/SubmitJob', { source_text: text, file_name: name, project, request_id: idOf(),
      files: needed.map((each) => files.stateOf(each).sent) });
    sessionStorage.removeItem(KEPT);
    tell(`${shortName(job.name)} ${job.state}`);
    const hook = (job.hooks || []).find((each) => each.secret);
    if (hook) setMade({ job, hook });
    else go(jobLink(job.name));
  });
  const toLine = (line) => {
    const lines = text.split('\n');
    const begin = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
    area.current.focus();
    area.current.setSelectionRange(begin, begin + (lines[line - 1] || '').length);
  };
  const bad = new Set(problems.map((problem) => problem.line));
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    const folder = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.())
      .find((entry) => entry?.isDirectory);
    if (folder) {
      setError(new Error(`${folder.name} is a folder: sftctl submit ${name} sends the rows of its files`));
      return;
    }
    const given = [...event.dataTransfer.files];
    const isData = (file) => needed.some((each) => baseName(each.path) === file.name) || !isJobFile(file);
    const data = given.filter(isData);
    const jobFile = given.find((file) => !isData(file));
    if (jobFile) take(jobFile);
    if (data.length > 0) files.drop(data, jobFile ? [] : needed);
  };
  return html`<div class="head"><h1>Submit</h1><span
    class="dim">a job file in TOML, YAML or JSON: paste it, or drop it here, with its data</span></div>
    <div class="two submit ${over ? 'over' : ''}" onDrop=${drop}
      onDragOver=${(event) => { event.preventDefault(); setOver(true); }} onDragLeave=${() => setOver(false)}><section>
      <div class="tools"><label>name <input value=${name}
        onInput=${(event) => { setName(event.target.value); setAnswer(null); }} /></label>
        <label>project <input value=${project} placeholder="yours"
          onInput=${(event) => { setProject(event.target.value); setAnswer(null); }} /></label>
        <label class="file"><span class="unseen">Job file</span><input type="file" accept=".toml,.yaml,.yml,.json"
          onClick=${chooseAnew} onChange=${(event) => event.target.files[0] && take(event.target.files[0])} />
            </label></div>
      <div class="editor"><pre class="numbers" aria-hidden="true" ref=${numbers}>
        ${text.split('\n').map((line, i) => html`<span key=${i} class=${bad.has(i + 1) ? 'bad' : ''}>
          ${i + 1}${'\n'}</span>`)}</pre>
        <textarea ref=${area} value=${text} spellcheck=${false} wrap="off" aria-label="Job file"
          onInput=${(event) => change(event.target.value)}
          onScroll=${(event) => { numbers.current.scrollTop = event.target.scrollTop; }}></textarea></div>
      <p class="buttons"><button type="button" class=${answer ? '' : 'main'} disabled=${busy !== ''}
        onClick=${check}>${busy === 'check' ? 'checking' : 'Dry run'}</button>
        <button type="button" class=${answer ? 'main' : ''}
          disabled=${busy !== '' || !answer || problems.length > 0 || missing.length > 0} onClick=${submit}>
            ${busy === 'submit' ? 'submitting' : 'Submit'}</button>
        ${answer && problems.length === 0 && missing.length > 0
          ? html`<span class="dim">once ${missing.map((each) => oneLine(each.path)).join(', ')} is there</span>` : null}
        <${Command} text=${`sftctl submit ${name}${project ? ` --project ${project}` : ''}${answer
          ? '' : ' --dry-run'}`} /></p>
    </section><section aria-live="polite">
      ${made ? html`<${Secret} made=${made} />` : null}
      ${!answer && !error ? html`<p class="dim">${HINT}</p>` : null}
      ${error && problems.length === 0 ? html`<${Failure} error=${error} />` : null}
      <${Problems} problems=${problems} name=${name} onLine=${toLine} />
      ${(answer?.warnings || []).map((warning) => html`<p key=${warning.key + warning.message} class="warning"><code>
        ${oneLine(warning.key)}</code> ${oneLine(warning.message)}</p>`)}
      ${answer && problems.length === 0 ? html`<p class="good">The job would be accepted.</p>` : null}
      ${needed.length > 0 && problems.length === 0 ? html`<${DataFiles} needed=${needed} files=${files} />` : null}
      ${answer?.plan && problems.length === 0 ? html`<${Plan} plan=${answer.plan}
        resolved=${answer.resolved || []} />` : null}
    </section></div>`;
}
