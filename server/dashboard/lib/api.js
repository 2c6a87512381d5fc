// Calls of the service: POST /api/v1/{Service}/{Method} with the request as JSON.
import { shared } from './dom.js';

// Set while the server wants a login; the shell then shows the form.
export const loginWanted = shared(false);

const UNREACHABLE = 'the server cannot be reached';

export class CallError extends Error {
  constructor(status, body) {
    super(body.message || `the server answered ${status}`);
    this.status = status;
    this.code = body.code || 'UNKNOWN';
    this.details = body.details || [];
  }
}

// True where a later try may succeed: the server is away or busy.
export const isPassing = (error) => !(error instanceof CallError) || error.code === 'UNAVAILABLE' ||
  [429, 502, 503, 504].includes(error.status);

async function post(path, request, signal) {
  let response;
  try {
    response = await fetch(path, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify(request),
      signal,
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Error(UNREACHABLE);
  }
  if (response.ok) return response;
  if (response.status === 401) loginWanted.set(true);
  let body = {};
  try {
    body = await response.json();
  } catch {
    // What is not JSON comes from a proxy; its status says all that is of use.
  }
  throw new CallError(response.status, body);
}

// One answer: `call('JobService/GetJob', {name})`.
export async function call(method, request = {}, signal = undefined) {
  return (await post(`/api/v1/${method}`, request, signal)).json();
}

// Sends the bytes of a Blob, which the browser reads as they go: only XMLHttpRequest says how many have gone.
export function upload(method, query, blob, signal, onSent) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const stop = () => request.abort();
    const end = (settle, value) => {
      signal.removeEventListener('abort', stop);
      settle(value);
    };
    request.open('POST', `/api/v1/${method}?${new URLSearchParams(query)}`);
    request.setRequestHeader('Content-Type', 'application/octet-stream');
    request.upload.onprogress = (event) => onSent(event.loaded);
    request.onerror = () => end(reject, new Error(UNREACHABLE));
    request.onabort = () => end(reject, new DOMException('cancelled', 'AbortError'));
    request.onload = () => {
      let body = {};
      try {
        body = JSON.parse(request.responseText);
      } catch {
        // As below: of a proxy.
      }
      if (request.status === 200) return end(resolve, body);
      if (request.status === 401) loginWanted.set(true);
      return end(reject, new CallError(request.status, body));
    };
    signal.addEventListener('abort', stop);
    request.send(blob);
  });
}

// Every page of a list, up to `most` items.
export async function callAll(method, request, member, most = 100000) {
  const items = [];
  let token = '';
  do {
    const page = await call(method, { ...request, page_token: token });
    items.push(...(page[member] || []));
    token = page.next_page_token || '';
  } while (token && items.length < most);
  return items;
}

// The fields of one server-sent event, or null for a comment.
function parseEvent(block) {
  const event = { type: 'message', data: '' };
  let seen = false;
  for (const line of block.split('\n')) {
    if (line.startsWith(':') || line === '') continue;
    const colon = line.indexOf(':');
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
    seen = true;
    if (name === 'event') event.type = value;
    if (name === 'data') event.data += event.data === '' ? value : `\n${value}`;
  }
  return seen ? event : null;
}

// The messages of a method that sends several.
export async function* stream(method, request, signal) {
  const response = await post(`/api/v1/${method}`, request, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) throw new Error('the connection was cut before the end');
      const blocks = (rest + value.replaceAll('\r', '')).split('\n\n');
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parseEvent(block);
        if (!event) continue;
        if (event.type === 'end') return;
        if (event.type === 'error') throw new CallError(500, JSON.parse(event.data));
        yield JSON.parse(event.data);
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

export const bytesOf = (base64) => Uint8Array.from(atob(base64 || ''), (letter) => letter.charCodeAt(0));

// A request id, which makes a repeated call safe.
export function requestId() {
  return `web-${Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) =>
    byte.toString(16).padStart(2, '0')).join('')}`;
}
