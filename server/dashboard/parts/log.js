// A rank's log: its last lines at once, the rest when it is asked for; searched in the page.
import { bytesOf, stream } from '../lib/api.js';
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from '../lib/dom.js';
import { bytes, lines as cleanLines, number, plural, whole, withoutAnsi } from '../lib/format.js';
import { useKeys } from '../lib/keys.js';
import { route, setQuery } from '../lib/router.js';
import { Failure } from './bits.js';

const LINE_PX = 18;
const TAIL_LINES = 5000;
// More is not searched in the page.
const MOST_BYTES = 64 << 20;

// The text of one log: whole lines, from the byte `begin` of the file to `end`.
export class LogText {
  constructor() {
    this.lines = [];
    this.begin = 0;
    this.end = 0;
    this.open = '';
    // The attempt that the last bytes are of; 0: not known yet.
    this.attempt = 0;
    this.decoder = new TextDecoder();
  }

  // Appends bytes of the file that begin at `offset`.
  bytes(offset, data) {
    if (this.end === 0 && this.lines.length === 0) this.begin = offset;
    this.end = offset + data.length;
    this.text(this.decoder.decode(data, { stream: true }));
  }

  text(text) {
    const parts = (this.open + text).split('\n');
    this.open = parts.pop();
    for (const part of parts) this.lines.push(cleanLines(withoutAnsi(part)));
  }

  // What follows is of this attempt, whose log begins at its own offset 0.
  of(attempt) {
    if (attempt === this.attempt) return;
    if (this.attempt > 0) {
      this.remark(`attempt ${this.attempt} has ended; what follows is of attempt ${attempt}`);
      this.end = 0;
    }
    this.attempt = attempt;
  }

  gap({ begin, end }) {
    const lost = number(end) - number(begin);
    if (lost > 0) this.remark(`${whole(lost)} bytes were removed by the log's limit`);
  }

  // A line of the page's own, between those of the log.
  remark(text) {
    this.lines.push(`... ${text}`);
  }

  all() {
    return this.open ? [...this.lines, cleanLines(withoutAnsi(this.open))] : this.lines;
  }
}

// Reads a log from an offset on, or its last lines; MOST_BYTES at most.
export async function readLog(log, request, signal) {
  for await (const part of stream('JobService/ReadLog', request, signal)) {
    log.of(part.attempt);
    if (part.gap) log.gap(part.gap);
    log.bytes(number(part.offset), bytesOf(part.data));
    if (log.end - log.begin > MOST_BYTES) return;
  }
}

// Gives the browser a log as it is, with all its bytes.
export async function saveLog(name, request) {
  const parts = [];
  for await (const part of stream('JobService/ReadLog', { ...request, offset: 0 })) parts.push(bytesOf(part.data));
  download(name, parts);
}

export function download(name, parts, type = 'text/plain') {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob(parts, { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// Index of the line that says what the verdict's evidence says, from the end; -1: none does.
export function evidenceLine(all, evidence) {
  const wanted = evidence.flatMap((text) => text.split('\n')).map((line) => line.trim())
    .filter((line) => line.length >= 8);
  for (const text of wanted.reverse()) {
    for (let i = all.length - 1; i >= 0; --i) {
      if (all[i].includes(text)) return i;
    }
  }
  return -1;
}

// `log` and `version` come from the page, which feeds it; `live`: more may come.
export function LogView({ log, version, live, error, onWhole, onSave, evidence }) {
  const query = route.use().query;
  const box = useRef(null);
  const field = useRef(null);
  const [top, setTop] = useState(0);
  const [follow, setFollow] = useState(live);
  const [at, setAt] = useState(-1);
  const [text, setText] = useState(query.get('find') || '');
  const all = log.all();
  const needle = text.toLowerCase();
  const found = useRef({ key: '', lines: [] });
  const key = `${needle}/${version}`;
  if (found.current.key !== key) {
    const hits = [];
    if (needle) all.forEach((line, i) => { if (line.toLowerCase().includes(needle)) hits.push(i); });
    found.current = { key, lines: hits };
  }
  const hits = found.current.lines;

  const show = (line) => {
    setAt(line);
    setFollow(false);
    box.current.scrollTop = Math.max(0, line * LINE_PX - box.current.clientHeight / 3);
    box.current.scrollIntoView({ block: 'nearest' });
  };
  const search = (next) => {
    setText(next);
    setQuery({ find: next });
    if (next && log.begin > 0) onWhole();
  };
  const step = (by) => {
    if (hits.length === 0) return;
    const index = by > 0 ? hits.find((line) => line > at) ?? hits[0]
      : [...hits].reverse().find((line) => line < at) ?? hits[hits.length - 1];
    show(index);
  };
  const said = useMemo(() => evidenceLine(all, evidence), [version, evidence.length]);
  useKeys({ '/': () => field.current.focus(), n: () => step(1), N: () => step(-1) });
  useLayoutEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [version, follow]);
  // Once; the whole log where the last lines do not have it.
  const jump = useRef(query.get('jump') === 'evidence' ? ['here', 'whole'] : []);
  useEffect(() => {
    if (jump.current.length === 0 || all.length === 0) return;
    if (said >= 0) {
      jump.current = [];
      show(said);
    } else if (jump.current.pop() === 'whole' && log.begin > 0) {
      onWhole();
    }
  }, [version]);

  const first = Math.max(0, Math.floor(top / LINE_PX) - 20);
  const end = Math.min(all.length, first + 40 + Math.ceil((box.current?.clientHeight || 600) / LINE_PX));
  const marked = (line) => {
    if (!needle) return line;
    const parts = [];
    let from = 0;
    for (let i = line.toLowerCase().indexOf(needle); i >= 0; i = line.toLowerCase().indexOf(needle, from)) {
      parts.push(line.slice(from, i), html`<mark>${line.slice(i, i + needle.length)}</mark>`);
      from = i + needle.length;
    }
    return [...parts, line.slice(from)];
  };
  return html`<div class="tools">
      <label>search <input ref=${field} type="search" value=${text} placeholder="text in the log" aria-keyshortcuts="/"
        onInput=${(event) => search(event.target.value)}
        onKeyDown=${(event) => { if (event.key === 'Enter') step(event.shiftKey ? -1 : 1); }} /></label>
      <span class="buttons"><button type="button" onClick=${() => step(-1)} disabled=${hits.length === 0}
        aria-label="Previous hit">↑</button>
      <button type="button" onClick=${() => step(1)} disabled=${hits.length === 0} aria-label="Next hit">↓</button>
        </span>
      <span class="dim" role="status">${needle ? plural(hits.length, 'line') : ''}</span>
      ${said >= 0 ? html`<button type="button" onClick=${() => show(said)}>To the verdict's evidence</button>` : null}
      ${live ? html`<label class="checkbox"><input type="checkbox" checked=${follow}
        onChange=${(event) => setFollow(event.target.checked)} /><span>follow</span></label>` : null}
      ${log.begin > 0 ? html`<button type="button"
        onClick=${onWhole}>Load the first ${bytes(log.begin)} too</button>` : null}
      <button type="button" onClick=${onSave}>Download</button>
    </div>
    <${Failure} error=${error} />
    <div class="log" ref=${box} tabindex="0" role="region" aria-label="Log"
      onScroll=${(event) => {
        setTop(event.target.scrollTop);
        const atEnd = event.target.scrollTop + event.target.clientHeight >= event.target.scrollHeight - 2 * LINE_PX;
        if (!atEnd && follow) setFollow(false);
      }}>
      <div class="lines" style=${{ height: `${all.length * LINE_PX}px`, paddingTop: `${first * LINE_PX}px` }}>
        ${all.slice(first, end).map((line, i) => html`<div key=${first + i}
          class=${`line ${first + i === at ? 'here' : ''} ${line.startsWith('... ') ? 'dim' : ''}`}>
            ${marked(line)}</div>`)}
      </div>
      ${all.length === 0 ? html`<p class="dim pad">${live ? 'nothing yet' : 'the log is empty'}</p>` : null}
    </div>
    <p class="dim">${plural(all.length, 'line')}, ${bytes(log.end - log.begin)}${log.begin > 0
      ? ` (the last ${whole(TAIL_LINES)} lines; the whole log is read for a search)` : ''}</p>`;
}

export { MOST_BYTES, TAIL_LINES };
