// The address is the page's state: path and parameters, which links carry to others.
import { shared } from './dom.js';

const read = () => ({ path: location.pathname, query: new URLSearchParams(location.search) });

export const route = shared(read());
// How many addresses of ours lie behind this one.
let behind = 0;

export function go(address, { replace = false } = {}) {
  const here = location.pathname + location.search;
  if (address === here) return;
  history[replace ? 'replaceState' : 'pushState'](null, '', address);
  if (!replace) ++behind;
  route.set(read());
}

// Where this page was come from; `otherwise` where it was opened by itself.
export function goBack(otherwise) {
  if (behind === 0) {
    go(otherwise);
    return;
  }
  --behind;
  history.back();
}

// Sets parameters of this address; an empty value removes one.
export function setQuery(values) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    if (value === '' || value === null || value === undefined) query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString().replaceAll('%2C', ',').replaceAll('%3A', ':');
  go(location.pathname + (text ? `?${text}` : ''), { replace: true });
}

export const jobLink = (name, view = '') =>
  `/jobs/${encodeURIComponent(name.slice(name.lastIndexOf('/') + 1))}${view ? `?view=${view}` : ''}`;

export function startRouter() {
  addEventListener('popstate', () => route.set(read()));
  document.addEventListener('click', (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const link = event.target.closest('a[href^="/"]');
    if (!link || link.target || link.hasAttribute('download')) return;
    event.preventDefault();
    go(link.getAttribute('href'));
    scrollTo(0, 0);
  });
}
