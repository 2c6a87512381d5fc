// Who changed what, and whose calls were refused.
import { call } from '../lib/api.js';
import { html, useEffect, useRef, useState } from '../lib/dom.js';
import { number, oneLine, whole } from '../lib/format.js';
import { useKeys } from '../lib/keys.js';
import { route, setQuery } from '../lib/router.js';
import { Command, Failure, Table, Time } from '../parts/bits.js';

const PAGE = 200;
const HOURS = { '1h': 1, '24h': 24, '7d': 168, '30d': 720 };

export function AuditPage() {
  const query = route.use().query;
  const since = HOURS[query.get('since')] ? query.get('since') : '24h';
  const user = query.get('user') || '';
  const [state, setState] = useState({ records: null, token: '', error: null });
  const field = useRef(null);
  useKeys({ '/': () => field.current.focus() });
  const read = async (token, before, ended) => {
    try {
      const page = await call('AuthService/ListAuditRecords', { page_size: PAGE, page_token: token, principal: user,
        since: new Date(Date.now() - HOURS[since] * 3600e3).toISOString() });
      if (!ended()) setState({ records: [...before, ...page.records], token: page.next_page_token, error: null });
    } catch (error) {
      if (!ended()) setState((seen) => ({ ...seen, error }));
    }
  };
  useEffect(() => {
    let ended = false;
    const timer = setTimeout(() => read('', [], () => ended), user ? 250 : 0);
    return () => { ended = true; clearTimeout(timer); };
  }, [since, user]);
  const { records, token, error } = state;
  return html`<div class="head"><h1>Audit</h1><div class="tools">
      <label>user <input ref=${field} type="search" value=${user} placeholder="all" aria-keyshortcuts="/"
        onInput=${(event) => setQuery({ user: event.target.value.trim() })} /></label>
      <label>the last <select value=${since} onChange=${(event) =>
        setQuery({ since: event.target.value === '24h' ? '' : event.target.value })}>
        ${Object.keys(HOURS).map((name) => html`<option value=${name}>${name}</option>`)}</select></label></div></div>
    <${Failure} error=${error} />
    <${Table} caption="Changes and refusals, newest first"
      head=${['Time', 'Who', 'Call', 'On', { name: 'Outcome', class: 'once' }, { name: 'Calls', right: true }, 'From']}
      rows=${(records || []).map((record) => ({ key: record.sequence, class: record.outcome === 'OK'
        ? '' : 'refused', cells: [html`<${Time} time=${record.time} />`, oneLine(record.principal),
        html`<code>${oneLine(record.method)}</code>`, oneLine(record.object), oneLine(record.outcome),
          number(record.calls) > 1 ? whole(record.calls) : '',
            html`<span class="dim">${oneLine(record.peer)}</span>`] }))}
      empty=${records ? 'nothing in this time' : error ? '' : 'loading'} />
    ${token ? html`<p><button type="button" onClick=${() =>
      read(token, records, () => false)}>Show older ones</button></p>` : null}
    <p><${Command} text=${`sftctl admin audit --since ${since}${user ? ` --user ${user}` : ''}`} /></p>`;
}
