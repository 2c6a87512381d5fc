// What every page is written with: templates, hooks, and values shared by pages.
import { h, htm, useEffect, useState } from '../vendor/vendor.js';

export { Fragment, render, uPlot, useEffect, useLayoutEffect, useMemo, useRef, useState } from '../vendor/vendor.js';

export const html = htm.bind(h);

// A value that components follow: `use()` in a component, `get()` and `set()` anywhere.
export function shared(value) {
  const followers = new Set();
  const cell = {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const follower of [...followers]) follower(value);
    },
    follow(follower) {
      followers.add(follower);
      return () => followers.delete(follower);
    },
    use() {
      const [seen, show] = useState(value);
      useEffect(() => {
        show(() => value);
        return cell.follow((next) => show(() => next));
      }, []);
      return seen;
    },
  };
  return cell;
}

// Runs `work` now and every `seconds`, but not while the page is hidden.
export function useEvery(seconds, work, inputs) {
  useEffect(() => {
    let ended = false;
    let timer = 0;
    const run = async () => {
      clearTimeout(timer);
      if (!document.hidden) await work(() => ended);
      if (!ended) timer = setTimeout(run, seconds * 1000);
    };
    const shown = () => { if (!document.hidden) run(); };
    document.addEventListener('visibilitychange', shown);
    run();
    return () => {
      ended = true;
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', shown);
    };
  }, inputs);
}
