// The keys, on "?".
import { html, shared, useEffect, useRef, useState } from '../lib/dom.js';
import { keysAreOff, setKeysOff } from '../lib/keys.js';

export const helpOpen = shared(false);

const KEYS = [
  ['/', 'filter or search'], ['j  k', 'next row, previous row'], ['Enter', 'open the row'],
    ['x', 'mark the row for Compare, c compares'],
  ['g j', 'Jobs'], ['g q', 'Queue'], ['g f', 'Fleet'], ['g c', 'Compare'], ['g n', 'Submit'], ['g t', 'Storage'],
  ['g s', 'Stats'], ['g a', 'Audit'],
  ['1 … 6', 'views of a job'],
  ['c  h  r  s', 'of a job: cancel, hold or pause, release or resume, save a checkpoint; each asks first'],
  ['n  N', 'next, previous hit in a log'], ['Esc', 'leave a field, close, go back'], ['?', 'this list'],
];

export function HelpDialog() {
  return helpOpen.use() ? html`<${Help} />` : null;
}

function Help() {
  const element = useRef(null);
  const [off, setOff] = useState(keysAreOff());
  useEffect(() => element.current.showModal(), []);
  const close = () => helpOpen.set(false);
  return html`<dialog ref=${element} aria-labelledby="keys" onCancel=${close} onClose=${close}><h2 id="keys">Keys</h2>
    <dl class="keys">${KEYS.map(([key, what]) => html`<div key=${key}><dt>
      ${key.split('  ').map((each, i) => html`${i > 0 ? ' ' : ''}<kbd>${each}</kbd>`)}</dt><dd>${what}</dd>
        </div>`)}</dl>
    <label class="checkbox"><input type="checkbox" checked=${off}
      onChange=${(event) => { setKeysOff(event.target.checked); setOff(event.target.checked); }} />
        <span>no single keys in this browser</span></label>
    <p class="buttons"><button type="button" class="main" onClick=${close} autofocus>Close</button></p></dialog>`;
}
