// What changes something: each action asks once, shows the command of sftctl that does the same, and
// says what came of it.
import { call, requestId } from '../lib/api.js';
import { html, shared, useEffect, useRef, useState } from '../lib/dom.js';
import { shortName } from '../lib/format.js';
import { go, jobLink } from '../lib/router.js';
import { isEnded } from '../lib/words.js';
import { Command, Failure, tell } from './bits.js';

// {title, text, fields, command(values), confirm, danger, run(values)} or null.
const asked = shared(null);

export const ask = (action) => asked.set(action);
export const isAsking = () => asked.get() !== null;

// A word of a shell, in quotes where it needs them.
const word = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
const withReason = (command, reason) => (reason ? `${command} --reason ${word(reason)}` : command);

const REASON = { name: 'reason', label: 'Reason (shown to others)', type: 'text' };

async function changeJob(method, request) {
  const job = await call(method, request);
  tell(`${shortName(job.name)} ${job.state}${job.held ? ' held' : ''}`);
}

const JOB_ACTIONS = {
  cancel: (name, id) => ({
    title: `Cancel ${id}?`,
    text: 'Its processes are ended. A checkpoint that exists stays, and the job can be resumed from it as a new one.',
    fields: [{ name: 'checkpoint', label: 'Save the training state first', type: 'checkbox' }, REASON],
    command: (values) => withReason(`sftctl cancel ${id}${values.checkpoint ? ' --checkpoint' : ''}`, values.reason),
    confirm: 'Cancel the job',
    danger: true,
    run: (values) => changeJob('JobService/CancelJob',
      { name, reason: values.reason || '', checkpoint: !!values.checkpoint }),
  }),
  hold: (name, id) => ({
    title: `Hold ${id}?`,
    text: 'It keeps its place among the waiting jobs, but is not started until it is released.',
    fields: [REASON],
    command: (values) => withReason(`sftctl hold ${id}`, values.reason),
    confirm: 'Hold the job',
    run: (values) => changeJob('SchedulingService/HoldJob', { name, reason: values.reason || '' }),
  }),
  pause: (name, id) => ({
    title: `Pause ${id}?`,
    text: 'It writes a checkpoint, gives its GPUs back and waits. Released, it goes on from there.',
    fields: [REASON],
    command: (values) => withReason(`sftctl hold ${id} --pause`, values.reason),
    confirm: 'Pause the job',
    run: (values) => changeJob('SchedulingService/HoldJob', { name, reason: values.reason || '', pause: true }),
  }),
  release: (name, id) => ({
    title: `Release ${id}?`,
    text: 'It may start as soon as there is room; one that was paused goes on from its checkpoint.',
    command: () => `sftctl release ${id}`,
    confirm: 'Release the job',
    run: () => changeJob('SchedulingService/ReleaseJob', { name }),
  }),
  checkpoint: (name, id) => ({
    title: `Save the training state of ${id}?`,
    text: 'It is written after the current step; training goes on.',
    command: () => `sftctl checkpoint ${id}`,
    confirm: 'Save a checkpoint',
    run: async () => {
      const answer = await call('JobService/CheckpointJob', { name, request_id: requestId() });
      tell(`${id} saves a checkpoint after step ${answer.step}`);
    },
  }),
  resume: (name, id, step) => ({
    title: `Resume ${id}?`,
    text: `A new job continues from ${step ? `step ${step}` : 'its newest checkpoint'} with the same settings.`,
    command: () => `sftctl resume ${id}${step ? ` --from ${step}` : ''}`,
    confirm: 'Resume as a new job',
    run: async () => {
      const job = await call('JobService/ResumeJob', { name, request_id: requestId(), step: step || 0 });
      tell(`${shortName(job.name)} continues ${id}`);
      go(jobLink(job.name));
    },
  }),
};

export const askJob = (action, job, step = 0) => ask(JOB_ACTIONS[action](job.name, shortName(job.name), step));

// What can be done with a job as it is now, most usual first.
export function actionsOf(job) {
  if (isEnded(job)) return job.state !== 'SUCCEEDED' && Number(job.checkpoint_step) > 0 ? ['resume'] : [];
  if (job.state === 'CANCELLING') return [];
  const list = job.state === 'RUNNING' ? ['checkpoint'] : [];
  const holding = job.state === 'PENDING' ? 'hold' : 'pause';
  return [...list, job.held ? 'release' : holding, 'cancel'];
}

const NODE_ACTIONS = {
  cordon: (node) => ({
    title: `Cordon ${node}?`,
    text: 'Nothing new is placed on it; its jobs go on.',
    fields: [REASON],
    command: (values) => withReason(`sftctl nodes cordon ${node}`, values.reason),
    confirm: 'Cordon the node',
    run: (values) => holdNode({ node, mode: 'CORDON', reason: values.reason || '' }),
  }),
  drain: (node) => ({
    title: `Drain ${node}?`,
    text: 'Nothing new is placed on it. Its jobs run to their end or, if you move them now, continue elsewhere ' +
      'from a checkpoint.',
    fields: [{ name: 'now', label: 'Move its jobs now', type: 'checkbox' }, REASON],
    command: (values) => withReason(`sftctl drain ${node}${values.now ? ' --now' : ''}`, values.reason),
    confirm: 'Drain the node',
    danger: true,
    run: (values) => holdNode({
      node, mode: 'DRAIN', reason: values.reason || '', ...(values.now ? { move_after_seconds: 0 } : {}),
    }),
  }),
  resume: (node) => ({
    title: `Give ${node} work again?`,
    text: 'Its hold ends. Jobs that were already asked to move still move.',
    command: () => `sftctl nodes resume ${node}`,
    confirm: 'End the hold',
    run: async () => {
      await call('OperatorService/ReleaseNode', { node });
      tell(`${node} takes work again`);
    },
  }),
};

async function holdNode(request) {
  await call('OperatorService/HoldNode', request);
  tell(`${request.node} is ${request.mode === 'DRAIN' ? 'drained' : 'cordoned'}`);
}

export const askNode = (action, node) => ask(NODE_ACTIONS[action](node));

// The question itself; one for the whole page.
export function ActionDialog() {
  const action = asked.use();
  return action ? html`<${Question} key=${action.title} action=${action} />` : null;
}

function Question({ action }) {
  const element = useRef(null);
  const [values, setValues] = useState({});
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    return () => before?.focus?.();
  }, []);
  const close = () => asked.set(null);
  const confirm = async (event) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setError(null);
    try {
      await action.run(values);
      close();
    } catch (failure) {
      setError(failure);
      setBusy(false);
    }
  };
  const field = (each) => html`<label key=${each.name} class=${each.type}>
    ${each.type === 'checkbox' ? null : html`<span>${each.label}</span>`}
    <input type=${each.type} checked=${!!values[each.name]}
      value=${each.type === 'text' ? values[each.name] || '' : undefined}
      maxlength="300" onInput=${(event) => setValues({ ...values, [each.name]: each.type === 'checkbox'
        ? event.target.checked : event.target.value })} />
    ${each.type === 'checkbox' ? html`<span>${each.label}</span>` : null}</label>`;
  return html`<dialog ref=${element} aria-labelledby="question" onCancel=${close} onClose=${close}>
    <form onSubmit=${confirm}>
      <h2 id="question">${action.title}</h2>
      <p>${action.text}</p>
      ${(action.fields || []).map(field)}
      <p class="dim">The same from a terminal:</p>
      <p><${Command} text=${action.command(values)} /></p>
      <${Failure} error=${error} />
      <p class="buttons">
        <button type="button" onClick=${close}>Back</button>
        <button type="submit" class=${action.danger ? 'danger' : 'main'} disabled=${busy} autofocus>
          ${busy ? 'asking the server' : action.confirm}</button>
      </p>
    </form>
  </dialog>`;
}

const LABELS = { cancel: 'Cancel', hold: 'Hold', pause: 'Pause', release: 'Release', checkpoint: 'Checkpoint',
  resume: 'Resume' };
export const KEYS = { cancel: 'c', hold: 'h', pause: 'h', release: 'r', checkpoint: 's', resume: 'r' };

export const JobButtons = ({ job }) => html`<span class="buttons">${actionsOf(job).map((action) => html`
  <button key=${action} type="button" class=${action === 'cancel' ? 'danger' : ''} aria-keyshortcuts=${KEYS[action]}
    onClick=${() => askJob(action, job)}>${LABELS[action]}</button>`)}</span>`;
