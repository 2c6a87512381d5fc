// The page's one stream of changes (/api/v1/feed). It is closed while the page is hidden and goes on
// from its cursor afterwards, so that nothing is missed and nothing comes twice.
import { call } from './api.js';
import { shared } from './dom.js';

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10000;
// The server says something every 15 s; after three of them the connection is dead.
const SILENCE_MS = 45000;

// "off" (no stream on this page), "live", "reconnecting", "ended".
export const feedState = shared('off');
// When the last point or change came, in milliseconds of the page's clock; 0: none yet.
export const feedTime = shared(0);

// Opens the stream: `query` as the server takes it ({job, metrics, log: [...], jobs, nodes}),
// `handlers` a function for each type of event, given its data. Returns what closes it.
export function openFeed(query, handlers) {
  let source = null;
  let cursor = '';
  let wait = FIRST_WAIT_MS;
  let timer = 0;
  let closed = false;

  const address = () => {
    const parameters = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) {
      for (const each of Array.isArray(value) ? value : [value]) parameters.append(name, each);
    }
    if (cursor) parameters.set('cursor', cursor);
    return `/api/v1/feed?${parameters}`;
  };
  const stop = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  const later = () => {
    stop();
    if (closed) return;
    feedState.set('reconnecting');
    timer = setTimeout(async () => {
      // An event source does not say why it failed; this call does, and asks for a login where one is needed.
      await call('AuthService/WhoAmI').catch(() => undefined);
      open();
    }, wait);
    wait = Math.min(2 * wait, LONGEST_WAIT_MS);
  };
  const watch = () => {
    clearTimeout(timer);
    timer = setTimeout(later, SILENCE_MS);
  };
  const took = (event) => {
    if (event.lastEventId) cursor = event.lastEventId;
    wait = FIRST_WAIT_MS;
    feedTime.set(Date.now());
    watch();
  };
  function open() {
    stop();
    if (closed || document.hidden) return;
    source = new EventSource(address());
    source.onopen = () => { feedState.set('live'); watch(); };
    source.onerror = later;
    source.addEventListener('ping', watch);
    for (const [type, handler] of Object.entries(handlers)) {
      source.addEventListener(type, (event) => {
        took(event);
        handler(JSON.parse(event.data));
      });
    }
    source.addEventListener('end', (event) => {
      took(event);
      close();
      feedState.set('ended');
    });
  }
  const shown = () => (document.hidden ? stop() : open());
  function close() {
    closed = true;
    stop();
    document.removeEventListener('visibilitychange', shown);
    feedState.set('off');
  }
  document.addEventListener('visibilitychange', shown);
  feedState.set('reconnecting');
  open();
  return close;
}
