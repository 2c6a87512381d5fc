// A long table of which only the rows in sight exist; they all have the same height.
import { html, useEffect, useLayoutEffect, useRef, useState } from '../lib/dom.js';
import { useKeys } from '../lib/keys.js';

export const ROW_PX = 32;
const SPARE_ROWS = 12;

// Rows in sight of a table that begins at `top` of the page, as [first, end).
function inSight(element, rows) {
  const above = element ? -element.getBoundingClientRect().top : 0;
  const first = Math.max(0, Math.floor(above / ROW_PX) - SPARE_ROWS);
  const end = Math.min(rows, Math.ceil((above + innerHeight) / ROW_PX) + SPARE_ROWS);
  return [Math.min(first, rows), Math.max(end, first)];
}

// `columns`: {name, cell(row), class}; `rows` have `id`. `onOpen(row)` on Enter, `onMark(row)` on x;
// `onEnd` when the last rows come into sight.
export function LongTable({ caption, columns, rows, onOpen, onMark, marked, onEnd, total }) {
  const body = useRef(null);
  const [range, setRange] = useState([0, 40]);
  const [active, setActive] = useState(-1);
  const [first, end] = [Math.min(range[0], rows.length), Math.min(range[1], rows.length)];

  const look = () => {
    const next = inSight(body.current, rows.length);
    setRange((seen) => (seen[0] === next[0] && seen[1] === next[1] ? seen : next));
    if (onEnd && next[1] >= rows.length) onEnd();
  };
  const latest = useRef(look);
  latest.current = look;
  useEffect(() => {
    let frame = 0;
    const later = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => latest.current());
    };
    addEventListener('scroll', later, { passive: true });
    addEventListener('resize', later);
    return () => {
      cancelAnimationFrame(frame);
      removeEventListener('scroll', later);
      removeEventListener('resize', later);
    };
  }, []);
  useLayoutEffect(look, [rows.length]);

  const move = (by) => {
    if (rows.length === 0) return;
    const next = Math.max(0, Math.min(rows.length - 1, active + by));
    setActive(next);
    const top = body.current.getBoundingClientRect().top + scrollY + next * ROW_PX;
    if (top < scrollY + 120) scrollTo(0, Math.max(0, top - 120));
    if (top + ROW_PX > scrollY + innerHeight - 40) scrollTo(0, top + ROW_PX - innerHeight + 40);
    look();
  };
  useLayoutEffect(() => {
    body.current?.querySelector('tr.active')?.focus({ preventScroll: true });
  }, [active, first]);
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    Enter: (event) => {
      // A focused link or button has its own Enter.
      if (active < 0 || !rows[active] || event.target.closest('a, button, input, summary')) return false;
      onOpen(rows[active]);
      return true;
    },
    x: () => active >= 0 && rows[active] && onMark?.(rows[active]),
  });

  const row = (each, i) => html`<tr key=${each.id} aria-rowindex=${first + i + 2}
      class=${`${first + i === active ? 'active' : ''} ${marked?.has(each.id) ? 'marked' : ''}`}
      tabindex=${first + i === active ? 0 : -1}
      onClick=${(event) => { if (!event.target.closest('a, button, input')) setActive(first + i); }}>
    ${columns.map((column) => html`<td class=${column.class || ''}>${column.cell(each)}</td>`)}</tr>`;
  return html`<table class="long" aria-rowcount=${(total ?? rows.length) + 1}>
    <caption class="unseen">${caption}</caption>
    <thead><tr aria-rowindex="1">${columns.map((column) =>
      html`<th scope="col" class=${column.class || ''}>${column.name}</th>`)}</tr></thead>
    <tbody ref=${body}>
      ${first > 0 ? html`<tr key="above" aria-hidden="true" class="space"><td colspan=${columns.length}
        style=${{ height: `${first * ROW_PX}px` }}></td></tr>` : null}
      ${rows.slice(first, end).map(row)}
      ${end < rows.length ? html`<tr key="below" aria-hidden="true" class="space"><td colspan=${columns.length}
        style=${{ height: `${(rows.length - end) * ROW_PX}px` }}></td></tr>` : null}
    </tbody></table>`;
}
