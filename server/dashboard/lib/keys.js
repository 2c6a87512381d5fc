// Keys: those of the page in front, and those that work everywhere.
import { useEffect, useRef } from './dom.js';

const OFF = 'sft-keys-off';
// Pages and their keys; the last one is asked first.
const layers = [];

export const keysAreOff = () => localStorage.getItem(OFF) === '1';
export const setKeysOff = (off) => (off ? localStorage.setItem(OFF, '1') : localStorage.removeItem(OFF));

// Keys while a component is there: {'/': function, 'g j': function}; "g j" is one after the other.
export function useKeys(keys) {
  const current = useRef(keys);
  current.current = keys;
  useEffect(() => {
    layers.push(current);
    return () => layers.splice(layers.indexOf(current), 1);
  }, []);
}

const isText = (element) => element.isContentEditable ||
  element.matches('textarea, select, input:not([type=checkbox]):not([type=radio]):not([type=button])');

export function startKeys() {
  let first = '';
  let firstTime = 0;
  document.addEventListener('keydown', (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (document.querySelector('dialog[open]')) return;
    const text = isText(event.target);
    if (text && event.key === 'Escape') {
      event.target.blur();
      return;
    }
    if (text || keysAreOff()) return;
    const both = first && event.timeStamp - firstTime < 1500 ? `${first} ${event.key}` : '';
    first = '';
    for (const layer of [...layers].reverse()) {
      const handler = (both && layer.current[both]) || (!both && layer.current[event.key]);
      if (!handler) continue;
      if (handler(event) !== false) event.preventDefault();
      return;
    }
    if (!both && event.key === 'g') {
      first = 'g';
      firstTime = event.timeStamp;
    }
  });
}
