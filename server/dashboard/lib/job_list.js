// The jobs of a filter: the first page of the server at once, further ones as they are asked for, kept up
// to date by the stream.
import { call } from './api.js';
import { openFeed } from './feed.js';
import { number, shortName } from './format.js';

const FIRST_PAGE = 100;
// The server's limit.
const NEXT_PAGES = 500;
const MOST_ASKED_ALONE = 30;
// Jobs that run change all the time.
const LOOK_AGAIN_MS = 2000;
const LOSSES = 40;

const searched = (job) => [shortName(job.name), job.display_name, job.owner, job.variant, job.reason, job.project,
  job.group, job.state].join(' ').toLowerCase();

export class JobList {
  // `request` is ListJobs's; `show(list)` is called when something has changed.
  constructor(request, show) {
    this.request = request;
    this.show = show;
    // Newest first; null until the first answer. Beside what the server says: id, the text to search, and
    // the last losses of a running job as the list saw them.
    this.jobs = null;
    this.token = '';
    this.error = null;
    this.busy = false;
    this.losses = new Map();
    this.waiting = new Set();
    this.timer = 0;
    this.closed = false;
    this.begin();
    this.closeFeed = openFeed(() => ({ jobs: 1 }), {
      open: () => this.begin(),
      jobs: ({ changed }) => this.changed(changed || []),
    });
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.closeFeed();
  }

  keep(job) {
    const seen = this.losses.get(job.name) || [];
    const step = job.progress?.step;
    if (job.state === 'RUNNING' && number(step) > 0 && seen.at(-1)?.step !== step) {
      this.losses.set(job.name, [...seen.slice(1 - LOSSES), { step, loss: number(job.progress.loss) }]);
    }
    return { ...job, id: job.name, losses: this.losses.get(job.name) || [], text: searched(job) };
  }

  async guarded(work) {
    try {
      await work();
      this.error = null;
    } catch (error) {
      this.error = error;
      this.jobs = this.jobs || [];
    }
    this.busy = false;
    if (!this.closed) this.show(this);
  }

  list(size, token) {
    return call('JobService/ListJobs', { ...this.request, page_size: size, page_token: token });
  }

  begin() {
    return this.guarded(async () => {
      const page = await this.list(FIRST_PAGE, '');
      this.fresh = new Set(page.jobs.map((job) => job.name));
      const older = page.next_page_token ? (this.jobs || []).filter((job) => !this.fresh.has(job.name)) : [];
      this.jobs = [...page.jobs.map((job) => this.keep(job)), ...older];
      // What was loaded beyond the first page stays, and so does the place to go on from.
      if (older.length === 0) this.token = page.next_page_token;
    });
  }

  more() {
    if (this.busy || !this.token) return;
    this.busy = true;
    this.guarded(async () => {
      const page = await this.list(NEXT_PAGES, this.token);
      const names = new Set(this.jobs.map((job) => job.name));
      this.jobs = [...this.jobs, ...page.jobs.filter((job) => !names.has(job.name)).map((job) => this.keep(job))];
      this.token = page.next_page_token;
    });
  }

  // Changes of a while together: the first page anew, and what lies beyond it by name.
  changed(ids) {
    for (const id of ids) this.waiting.add(shortName(id));
    if (this.timer !== 0 || this.closed) return;
    this.timer = setTimeout(async () => {
      const changed = this.waiting;
      this.waiting = new Set();
      await this.begin();
      await this.lookBeyond(changed);
      this.timer = 0;
      if (this.waiting.size > 0) this.changed([]);
    }, LOOK_AGAIN_MS);
  }

  lookBeyond(changed) {
    const states = this.request.states || [];
    const beyond = (this.jobs || []).filter((job) => changed.has(shortName(job.name)) && !this.fresh?.has(job.name));
    return this.guarded(async () => {
      const asked = beyond.slice(0, MOST_ASKED_ALONE).map(({ name }) => call('JobService/GetJob', { name }));
      const now = new Map((await Promise.all(asked)).map((job) => [job.name, this.keep(job)]));
      this.jobs = this.jobs.map((job) => now.get(job.name) || job)
        .filter((job) => !now.has(job.name) || states.length === 0 || states.includes(job.state));
    });
  }
}
