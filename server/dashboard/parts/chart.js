// One chart: drawn when it is in view, of the points that the server gives for it; the same figures as
// a table below it.
import { html, uPlot, useEffect, useLayoutEffect, useMemo, useRef, useState } from '../lib/dom.js';
import { axisFigure, figure, whole } from '../lib/format.js';
import { firstNotBelow, joined } from '../lib/series.js';

// Room for the labels of an axis, in pixels.
const widthOf = (labels) => Math.max(54, 12 + 7 * Math.max(...labels.map((label) => label.length)));

const TABLE_ROWS = 200;

// Colours as the theme has them now: a canvas knows no custom properties.
let probe = null;
function colour(name) {
  if (!probe) {
    probe = document.createElement('span');
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

// True while the element is in sight, or nearly.
function useInView(element) {
  const [seen, setSeen] = useState(false);
  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => setSeen(entry.isIntersecting), { rootMargin: '200px' });
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return seen;
}

// Counts up when the theme changes.
function useTheme() {
  const [theme, setTheme] = useState(0);
  useEffect(() => {
    const query = matchMedia('(prefers-color-scheme: dark)');
    const changed = () => setTheme((count) => count + 1);
    query.addEventListener('change', changed);
    addEventListener('sft-theme', changed);
    return () => {
      query.removeEventListener('change', changed);
      removeEventListener('sft-theme', changed);
    };
  }, []);
  return theme;
}

// What y goes over: a flat line stands in the middle, and all zeros at the foot.
function rangeOf(low, high) {
  if (low === null || (low === 0 && high === 0)) return [0, 1];
  if (low === high) return [low - Math.abs(low) / 10, low + Math.abs(low) / 10];
  return uPlot.rangeNum(low, high, 0.1, true);
}

function makePlot(element, curves, options) {
  const axis = { stroke: colour('dim'), font: '11px system-ui, sans-serif', grid: { stroke: colour('line'), width: 1 },
    ticks: { show: false } };
  return new uPlot({
    width: element.clientWidth,
    height: options.height,
    legend: { show: false },
    tzDate: (at) => uPlot.tzDate(new Date(1000 * at), 'UTC'),
    padding: [8, 8, 0, 0],
    cursor: {
      sync: options.sync ? { key: options.sync, setSeries: false } : undefined,
      drag: { x: true, y: false, setScale: false },
      points: { size: 5 },
    },
    scales: {
      x: { time: !!options.isTime, range: (plot, low, high) => options.range() || [low, high > low ? high : low + 1] },
      y: options.log ? { distr: 3 } : { range: (plot, low, high) => options.yRange || rangeOf(low, high) },
    },
    axes: [
      { ...axis, size: 22, values: (plot, ticks) => ticks.map((tick) => options.tickText(tick)) },
      { ...axis, size: (plot, labels) => widthOf(labels || []),
        values: (plot, ticks) => ticks.map((tick) => (tick === null ? '' : options.axisText(tick))) },
    ],
    series: [{}, ...curves.map((curve) => ({
      label: curve.name,
      stroke: colour(curve.colour),
      width: curve.dots ? 1 : curve.faint ? 0.75 : 1.5,
      alpha: curve.faint ? 0.35 : 1,
      dash: curve.dash,
      spanGaps: curves.length > 1 && !options.isTime,
      points: curve.dots ? { show: true, size: 5, fill: colour(curve.colour) } : { show: false },
    }))],
    hooks: {
      setSelect: [(plot) => {
        const { left, width } = plot.select;
        if (width < 3) return;
        options.onZoom([plot.posToVal(left, 'x'), plot.posToVal(left + width, 'x')]);
        plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }],
      setCursor: [(plot) => options.onCursor(plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, 'x') : null)],
    },
  }, [[], ...curves.map(() => [])], element);
}

// How much of the curves is drawn, in words.
function drawnText(curves) {
  const shown = curves.filter((curve) => !curve.faint);
  const points = shown.reduce((sum, curve) => sum + curve.points, 0);
  const parts = shown.reduce((most, curve) => Math.max(most, curve.parts), 0);
  if (parts === 0) return `all ${whole(points)} points`;
  return `lowest and highest of ${whole(parts)} parts of ${whole(points)} points; zoom in for all`;
}

const near = (curve, x) => {
  const i = firstNotBelow(curve.x, x);
  if (curve.x.length === 0) return NaN;
  if (i === 0) return 0;
  if (i === curve.x.length) return i - 1;
  return x - curve.x[i - 1] < curve.x[i] - x ? i - 1 : i;
};

// More values than these would be more than a line.
const MOST_NAMED = 8;

// The values of the curves at x; at the end without one. Of many the lowest and the highest.
function readOut(curves, x, xText) {
  const shown = curves.filter((curve) => !curve.faint && curve.x.length > 0);
  if (shown.length === 0) return '';
  const at = x ?? Math.max(...shown.map((curve) => curve.x[curve.x.length - 1]));
  const valueOf = (curve) => curve.y[near(curve, at)];
  let named = shown;
  if (shown.length > MOST_NAMED) {
    const sorted = shown.filter((curve) => Number.isFinite(valueOf(curve))).sort((a, b) => valueOf(a) - valueOf(b));
    named = [sorted[0], sorted[sorted.length - 1]].filter(Boolean);
  }
  const values = named.map((curve) => `${curve.name} ${(curve.text || figure)(valueOf(curve))}`);
  return `${xText(at)}: ${values.join(', ')}`;
}

// `curves`: {name, x, y, points, parts, colour, dots, faint, text}, x ascending, as of a CurveSeries;
// `range`: [from, to] of x, or null; `isTime`: x are seconds since 1970, and curves have gaps where they are no
// numbers; `yRange`: of values whose limits are known.
export function Chart({ title, note, curves, xName, xText = whole, text = figure, range, onZoom, version, log, sync,
  isTime, yRange, height = 190 }) {
  const holder = useRef(null);
  const values = useRef(null);
  const plot = useRef(null);
  const latest = useRef(null);
  const inView = useInView(holder);
  const theme = useTheme();
  const [open, setOpen] = useState(false);
  const shape = curves.map((curve) => `${curve.name}/${curve.colour}/${!!curve.faint}`).join(' ');
  latest.current = { range, onZoom, curves, tickText: xText, xText: (x) => `${xName} ${xText(x)}` };

  const data = useMemo(() => {
    if (!inView) return null;
    return joined(curves);
  }, [inView, version, range?.[0], range?.[1], shape]);

  useLayoutEffect(() => {
    if (!inView) return undefined;
    plot.current = makePlot(holder.current, curves, {
      height, log, sync, isTime, yRange, axisText: text === figure ? axisFigure : text,
      tickText: (x) => latest.current.tickText(x),
      range: () => latest.current.range,
      onZoom: (next) => latest.current.onZoom?.(next),
      onCursor: (x) => {
        if (values.current) values.current.textContent = readOut(latest.current.curves, x, latest.current.xText);
      },
    });
    holder.current.uplot = plot.current;
    const observer = new ResizeObserver(() => plot.current.setSize({ width: holder.current.clientWidth, height }));
    observer.observe(holder.current);
    return () => {
      observer.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [inView, theme, log, shape, sync]);
  useLayoutEffect(() => {
    if (!plot.current || !data) return;
    plot.current.setData(data);
    values.current.textContent = readOut(latest.current.curves, null, latest.current.xText);
  }, [data, inView, theme, log, shape, sync]);

  const empty = curves.every((curve) => curve.x.length === 0);
  return html`<figure class="chart">
    <figcaption><strong>${title}</strong> <span class="values" ref=${values}></span></figcaption>
    <div class="plot ${empty ? 'empty' : ''}" ref=${holder} role="img" style=${{ minHeight: `${height}px` }}
      aria-label="${title}: ${empty ? 'no points yet' : readOut(curves, null, latest.current.xText)}"></div>
    ${empty ? html`<p class="dim center">no points yet</p>` : null}
    <p class="dim note">${data && !empty ? drawnText(curves) : ''}${note ? html` · ${note}` : ''}</p>
    <details onToggle=${(event) => setOpen(event.target.open)}><summary>Show as table</summary>
      ${open ? html`<${Figures} title=${title} curves=${curves} xName=${xName} xText=${xText} text=${text}
        range=${range} />` : null}
    </details>
  </figure>`;
}

// At most TABLE_ROWS points of the first curve with the values of the others beside them.
function Figures({ title, curves, xName, xText, text, range }) {
  const [main, ...others] = curves.filter((curve) => !curve.faint);
  const begin = range ? firstNotBelow(main.x, range[0]) : 0;
  const end = range ? firstNotBelow(main.x, range[1]) : main.x.length;
  const every = Math.max(1, Math.ceil((end - begin) / TABLE_ROWS));
  const rows = [];
  for (let i = begin; i < end; i += every) rows.push(i);
  const at = (curve, x) => {
    const i = near(curve, x);
    return Number.isNaN(i) ? NaN : curve.y[i];
  };
  return html`<div class="scroll short" tabindex="0" role="region" aria-label="${title} as a table"><table>
    <caption>${every > 1 ? `every ${whole(every)}th point` : 'all points'}${main.parts > 0
      ? ' of those that are drawn' : ''}</caption>
    <thead><tr><th scope="col" class="right">${xName}</th>
      ${[main, ...others].map((curve) => html`<th scope="col" class="right">${curve.name}</th>`)}</tr></thead>
    <tbody>${rows.map((i) => html`<tr key=${i}><td class="right">${xText(main.x[i])}</td>
      <td class="right">${text(main.y[i])}</td>${others
        .map((curve) => html`<td class="right">${text(at(curve, main.x[i]))}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}
