// Small pieces that pages share.
import { html, shared, useEffect, useState } from '../lib/dom.js';
import { ago, bytes, number, oneLine, percent, shortName, utc } from '../lib/format.js';
import { jobLink } from '../lib/router.js';

const MARKS = {
  PENDING: '○', PREPARING: '◔', RUNNING: '●', CANCELLING: '◌', SUCCEEDED: '✓', FAILED: '✕', CANCELLED: '–',
  UP: '●', SUSPECT: '?', CORDONED: '‖', DRAINING: '◌', DRAINED: '‖',
};

// A state as its word, with a mark and a colour beside it.
export const State = ({ of }) => html`<span class="state ${of}"><span aria-hidden="true">
  ${MARKS[of] || '○'}</span> ${of}</span>`;

// What screen readers are told: changes of state, results of actions.
export const spoken = shared('');
// A line at the foot of the page, for what an action did.
export const notice = shared('');

export function tell(text) {
  notice.set(text);
  spoken.set(text);
}

// A clock of the page, in whole seconds.
const clock = shared(Date.now());
setInterval(() => { if (!document.hidden) clock.set(Date.now()); }, 1000);

// "3m ago", with the time itself beside it on hover.
export function Ago({ time }) {
  const now = clock.use();
  if (!time) return html`<span class="dim">-</span>`;
  return html`<time datetime=${time} title=${utc(time)}>${ago(time, now)}</time>`;
}

export const useNow = () => clock.use();
export const Time = ({ time }) => html`<time datetime=${time || ''}>${utc(time)}</time>`;

// A share of something as a bar and in words; `label` says of what.
export function Bar({ share, label, level = '' }) {
  const value = Math.max(0, Math.min(1, share || 0));
  return html`<span class="bar ${level}" role="img" aria-label="${label}: ${percent(value)}">
    <span class="fill" style=${{ width: `${100 * value}%` }}></span></span>`;
}

export const JobLink = ({ name, view, children }) =>
  html`<a href=${jobLink(name, view)}>${children || shortName(name)}</a>`;

// Ids of jobs as links, with commas.
export const JobLinks = ({ names }) => (names || []).map((name, i) =>
  html`${i > 0 ? ', ' : ''}<${JobLink} name=${name} />`);

// What is copied is what is seen: a shell would take a line break for its Enter.
export function Copy({ text: given }) {
  const text = oneLine(given);
  const [done, setDone] = useState(false);
  useEffect(() => {
    const timer = done ? setTimeout(() => setDone(false), 1500) : 0;
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => {
    await navigator.clipboard?.writeText(text);
    setDone(true);
  };
  return html`<button type="button" class="small" onClick=${copy} aria-label="Copy ${text}">
    ${done ? 'copied' : 'copy'}</button>`;
}

// A command of sftctl that does the same.
export const Command = ({ text }) => html`<span class="command"><code>${oneLine(text)}</code> <${Copy}
  text=${text} /></span>`;

export const Failure = ({ error }) => (error
  ? html`<p class="failure" role="alert">${oneLine(error.message)}${(error.details || []).map((detail) =>
      html`<br /><code>${oneLine(detail.field)}</code> ${oneLine(detail.description)}`)}</p>`
  : null);

// Text that nobody has made safe yet; templates and numbers stay as they are.
const shown = (cell) => (typeof cell === 'string' ? oneLine(cell) : cell);

export const Facts = ({ items }) => html`<dl class="facts">
  ${items.filter((item) => item && item[1] !== '' && item[1] !== null && item[1] !== undefined)
  .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${shown(value)}</dd></div>`)}</dl>`;

// A plain table: `head` of names (or {name, right, class, unseen}), `rows` of cells.
export function Table({ caption, head, rows, empty = 'nothing yet' }) {
  const heads = head.map((each) => (typeof each === 'string' ? { name: each } : each));
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${shown(caption)}><table>
    <caption class="unseen">${shown(caption)}</caption>
    <thead><tr>${heads.map((each) => html`<th scope="col" class=${each.right ? 'right' : ''}>
      ${each.unseen ? html`<span class="unseen">${each.name}</span>` : each.name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.key} class=${row.class || ''}>${(row.cells || row).map((cell, i) =>
      html`<td class=${heads[i].right ? 'right' : heads[i].class || ''}>${shown(cell)}</td>`)}</tr>`)}</tbody>
  </table>${rows.length === 0 ? html`<p class="dim pad">${empty}</p>` : null}</div>`;
}

// Loss over the last looks at a list, as a line without axes.
export function Spark({ values, label }) {
  const finite = values.filter(Number.isFinite);
  if (finite.length < 2) return null;
  const low = Math.min(...finite);
  const range = Math.max(...finite) - low || 1;
  const points = finite.map((value, i) =>
    `${((60 * i) / (finite.length - 1)).toFixed(1)},${(15 - (14 * (value - low)) / range).toFixed(1)}`).join(' ');
  return html`<svg class="spark" viewBox="0 0 60 16" role="img" aria-label=${label}><polyline points=${points} />
    </svg>`;
}

export function diskText(disk) {
  if (!disk || number(disk.total_bytes) === 0) return '-';
  const level = disk.level === 'LOW' || disk.level === 'FULL' ? ` ${disk.level}` : '';
  return `${bytes(disk.free_bytes)} of ${bytes(disk.total_bytes)} free${level}`;
}
