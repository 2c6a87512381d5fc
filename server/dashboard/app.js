// The shell: navigation, pages by address, keys, login.
import { call, loginWanted } from './lib/api.js';
import { html, render, shared, useEffect, useRef, useState } from './lib/dom.js';
import { feedState, feedTime } from './lib/feed.js';
import { duration, oneLine } from './lib/format.js';
import { startKeys, useKeys } from './lib/keys.js';
import { go, goBack, route, setQuery, startRouter } from './lib/router.js';
import { AuditPage } from './pages/audit.js';
import { ComparePage } from './pages/compare.js';
import { FleetPage } from './pages/fleet.js';
import { JobPage } from './pages/job.js';
import { JobsPage } from './pages/jobs.js';
import { endSession, LoginPage, startSession } from './pages/login.js';
import { QueuePage } from './pages/queue.js';
import { StatsPage } from './pages/stats.js';
import { StoragePage } from './pages/storage.js';
import { SubmitPage } from './pages/submit.js';
import { ActionDialog } from './parts/actions.js';
import { notice, spoken, useNow } from './parts/bits.js';
import { HelpDialog, helpOpen } from './parts/help.js';

const PAGES = [
  { path: '/jobs', title: 'Jobs', key: 'g j', page: JobsPage },
  { path: '/queue', title: 'Queue', key: 'g q', page: QueuePage },
  { path: '/fleet', title: 'Fleet', key: 'g f', page: FleetPage },
  { path: '/compare', title: 'Compare', key: 'g c', page: ComparePage },
  { path: '/submit', title: 'Submit', key: 'g n', page: SubmitPage },
  { path: '/storage', title: 'Storage', key: 'g t', page: StoragePage },
  { path: '/stats', title: 'Stats', key: 'g s', page: StatsPage },
  { path: '/audit', title: 'Audit', key: 'g a', page: AuditPage },
];
const VIEW_KEYS = ['', 'log', 'timeline', 'checkpoints', 'results', 'settings'];
const THEMES = { auto: 'light dark', light: 'light', dark: 'dark' };
const THEME = 'sft-theme';
const NOTICE_MS = 6000;

const me = shared(null);

const jobOf = (path) => {
  const match = /^\/jobs\/([^/]+)\/?$/.exec(path);
  return match ? decodeURIComponent(match[1]) : '';
};
const pageOf = (path) => PAGES.find((each) => each.path === (path === '/' ? '/jobs' : path.replace(/\/$/, '')));

function setTheme(name) {
  document.documentElement.style.colorScheme = THEMES[name] || THEMES.auto;
  dispatchEvent(new Event('sft-theme'));
}

// Whether what is seen is of now: the stream's state, and the age of what came last.
function Live() {
  const state = feedState.use();
  const time = feedTime.use();
  const now = useNow();
  if (state === 'off') return null;
  const age = time > 0 && state !== 'ended' ? `last change ${duration(Math.max(0, (now - time) / 1000))} ago` : '';
  return html`<span class="feed ${state}"><span class="dot" aria-hidden="true"></span> ${state} <span class="age">
    ${age}</span></span>`;
}

function ThemeChoice() {
  const [theme, choose] = useState(localStorage.getItem(THEME) || 'auto');
  const change = (event) => {
    localStorage.setItem(THEME, event.target.value);
    choose(event.target.value);
    setTheme(event.target.value);
  };
  return html`<label>theme <select value=${theme} onChange=${change}>
    ${Object.keys(THEMES).map((name) => html`<option value=${name}>${name}</option>`)}</select></label>`;
}

function Who() {
  const identity = me.use();
  if (!identity) return null;
  const leave = async () => {
    await endSession();
    loginWanted.set(true);
  };
  return html`<span>${oneLine(identity.user?.name)}${identity.user?.admin ? ' (admin)' : ''}</span>
    ${identity.token_id ? html` <button type="button" class="small" onClick=${leave}>Log out</button>` : null}`;
}

function Notice() {
  const text = notice.use();
  useEffect(() => {
    const timer = text ? setTimeout(() => notice.set(''), NOTICE_MS) : 0;
    return () => clearTimeout(timer);
  }, [text]);
  return text ? html`<p class="notice" aria-hidden="true">${oneLine(text)}</p>` : null;
}

const Spoken = () => html`<p class="unseen" role="status" aria-live="polite">${spoken.use()}</p>`;

function Shell() {
  const { path } = route.use();
  const login = loginWanted.use();
  const job = jobOf(path);
  const found = pageOf(path);
  useKeys({
    ...Object.fromEntries(PAGES.map((page) => [page.key, () => go(page.path)])),
    ...Object.fromEntries(VIEW_KEYS.map((view, i) =>
      [String(i + 1), () => (jobOf(route.get().path) ? setQuery({ view, jump: '', find: '' }) : false)])),
    '?': () => helpOpen.set(true),
    Escape: () => goBack('/jobs'),
  });
  const seen = useRef(path);
  // Whoever went to another page goes on from its beginning, by keyboard and by ear.
  useEffect(() => {
    if (seen.current !== path) document.getElementById('main').focus({ preventScroll: true });
    seen.current = path;
  }, [path]);
  useEffect(() => {
    if (found) document.title = `${found.title} · sft`;
  }, [found]);
  useEffect(() => {
    if (login) me.set(null);
    else call('AuthService/WhoAmI').then(me.set, () => undefined);
  }, [login]);
  const link = (page) => html`<a key=${page.path} href=${page.path}
    aria-current=${page === found || (job && page.path === '/jobs') ? 'page' : null}
    title="${page.key}">${page.title}</a>`;
  const content = () => {
    if (login) return html`<${LoginPage} />`;
    if (job) return html`<${JobPage} key=${job} name=${job} />`;
    if (found) return html`<${found.page} key=${found.path} />`;
    return html`<h1>There is no such page</h1><p><a href="/jobs">Jobs</a></p>`;
  };
  return html`<a class="skip" href="#main">To the content</a>
    <header><a class="brand" href="/jobs">sft</a><nav aria-label="Pages">${PAGES.map(link)}</nav><span class="push">
      </span><${Live} /></header>
    <main id="main" tabindex="-1">${content()}</main>
    <footer><${Who} /><span class="push"></span><${ThemeChoice} /><button type="button" class="small"
      onClick=${() => helpOpen.set(true)} aria-keyshortcuts="?">Keys</button></footer>
    <${Notice} /><${Spoken} /><${ActionDialog} /><${HelpDialog} />`;
}

// A link of `sftctl web` carries its one-time code behind the "#", which no server and no log sees.
async function redeemCode() {
  const code = new URLSearchParams(location.hash.slice(1)).get('code');
  if (!code) return;
  history.replaceState(null, '', location.pathname + location.search);
  await startSession({ code }).catch(() => loginWanted.set(true));
}

setTheme(localStorage.getItem(THEME));
startRouter();
startKeys();
await redeemCode();
render(html`<${Shell} />`, document.getElementById('app'));
