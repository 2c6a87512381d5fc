// Numbers, times and names, written as sftctl writes them (client/output/format.cc).

export const shortName = (name) => oneLine((name || '').slice((name || '').lastIndexOf('/') + 1));

// A number of the wire: 64-bit integers are strings, and so are "NaN" and "Infinity".
export const number = (value) => (value === undefined || value === null ? 0 : Number(value));

export function bytes(value) {
  let left = number(value);
  if (Math.abs(left) < 1000) return `${left} B`;
  let unit = 'B';
  for (const next of ['kB', 'MB', 'GB', 'TB', 'PB']) {
    if (Math.abs(left) < 1000) break;
    left /= 1000;
    unit = next;
  }
  return `${left.toFixed(Math.abs(left) < 10 ? 2 : 1)} ${unit}`;
}

export function duration(seconds) {
  if (!(seconds >= 0) || seconds === Infinity) return '-';
  const whole = Math.round(seconds);
  const two = (value) => String(Math.floor(value)).padStart(2, '0');
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h${two((whole / 60) % 60)}m`;
  return `${Math.floor(whole / 86400)}d${two((whole / 3600) % 24)}h`;
}

export function count(value) {
  const all = number(value);
  if (!(all >= 1000)) return Number.isFinite(all) ? all.toFixed(0) : '-';
  if (all < 1e6) return `${(all / 1e3).toFixed(1)}k`;
  if (all < 1e9) return `${(all / 1e6).toFixed(2)}M`;
  return `${(all / 1e9).toFixed(2)}G`;
}

export const whole = (value) => number(value).toLocaleString('en-US');
export const percent = (share) => `${(100 * share).toFixed(0)}%`;
export const plural = (many, word) => `${whole(many)} ${word}${many === 1 ? '' : 's'}`;

export const millis = (time) => (time ? Date.parse(time) : NaN);
export const utc = (time) => (time ? `${new Date(time).toISOString().slice(0, 19).replace('T', ' ')} UTC` : '-');

// "3m ago", "in 2h05m": without seconds from a minute on, which would only flicker.
export function ago(time, now = Date.now()) {
  if (!time) return '-';
  const seconds = (now - millis(time)) / 1000;
  const size = Math.abs(seconds);
  if (size < 1) return 'now';
  const text = size >= 60 && size < 3600 ? `${Math.floor(size / 60)}m` : duration(size);
  return seconds >= 0 ? `${text} ago` : `in ${text}`;
}

// A figure of a curve, as short as it can be read: 1.2345, 2.00e-5, 12.3k.
export function figure(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '-';
  if (!Number.isFinite(value)) return value > 0 ? 'inf' : '-inf';
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size < 1e-3) return value.toExponential(2);
  if (size < 10) return value.toFixed(4);
  if (size < 1000) return value.toFixed(2);
  return count(value);
}

// The same for an axis, where digits that say nothing are left out: 2.5, 0.001.
export const axisFigure = (value) => {
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1000) ? figure(value) : String(Number(value.toPrecision(4)));
};

// Text of others in one line: control characters are shown, as sftctl does.
export function oneLine(text) {
  return (text || '').replace(/[\n\t\r]/g, ' ').replace(CONTROL, shown);
}

// The same with its line breaks.
export function lines(text) {
  return (text || '').replaceAll('\r\n', '\n').replace(CONTROL, shown);
}

// As IsControl of plain_text.cc: controls, marks of direction, and what cannot be seen.
const CONTROL = new RegExp('[\\u{0}-\\u{8}\\u{b}-\\u{1f}\\u{7f}-\\u{9f}\\u{61c}\\u{200b}\\u{200e}\\u{200f}' +
  '\\u{2028}-\\u{202e}\\u{2060}-\\u{206f}\\u{feff}\\u{fff9}-\\u{fffb}\\u{e0000}-\\u{e007f}]', 'gu');
const shown = (letter) => (letter === '\r' ? ' ' : `\\x${letter.codePointAt(0).toString(16).padStart(2, '0')}`);

// Colours and cursor movements of programs that think they write to a terminal.
const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;
export const withoutAnsi = (text) => text.replace(ANSI, '');
