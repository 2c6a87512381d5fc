// The page's one stream of changes (/api/v1/feed). It is closed while the page is hidden. Opened again
// it goes on from the cursor of its last message, so that nothing is missed and nothing comes twice.
import { call } from './api.js';
import { shared } from './dom.js';

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10000;

// "off" (no stream on this page), "live", "reconnecting", "ended".
export const feedState = shared('off');
// When the last point or change came, in milliseconds of the page's clock; 0: none yet.
export const feedTime = shared(0);

// Opens the stream. `query()` says what to ask for ({job, metrics, log, jobs, nodes}), `handlers`
// has a function for each type of event, given its data, and `open`, called when the stream stands.
// Returns what closes it.
export function openFeed(query, handlers) {
  let source = null;
  let cursor = '';
  let wait = FIRST_WAIT_MS;
  let timer = 0;
  let closed = false;

  const address = () => {
    const parameters = new URLSearchParams();
    for (const [name, value] of Object.entries(query())) parameters.append(name, value);
    if (cursor) parameters.append('cursor', cursor);
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
  const took = (event) => {
    if (event.lastEventId) cursor = event.lastEventId;
    wait = FIRST_WAIT_MS;
    feedTime.set(Date.now());
  };
  function open() {
    stop();
    if (closed || document.hidden) return;
    source = new EventSource(address());
    source.onopen = () => {
      feedState.set('live');
      handlers.open?.();
    };
    source.onerror = later;
    for (const [type, handler] of Object.entries(handlers)) {
      if (type === 'open') continue;
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

// In place of a stream where nothing comes any more.
export function endedFeed() {
  feedState.set('ended');
  return () => feedState.set('off');
}
