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

// What the list shows of a job.
const FIELDS = ['state', 'reason', 'display_name', 'owner', 'project', 'kind', 'variant', 'nodes', 'progress',
  'outlook', 'create_time', 'end_time'];

export class JobList {
  // `request` is ListJobs's; `show(list)` is called when something has changed.
  constructor(request, show) {
    this.request = request;
    this.show = show;
    // Newest first; null until the first answer. Beside what the server says: id, and the last losses of a
    // running job as the list saw them.
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
    return { ...job, id: job.name, losses: this.losses.get(job.name) || [] };
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

  async list(size, place) {
    const page = await call('JobService/ListJobs', { ...this.request, fields: FIELDS, page_size: size, ...place });
    return { jobs: page.jobs || [], next: page.next_page_token || '' };
  }

  begin() {
    return this.guarded(async () => {
      const page = await this.list(FIRST_PAGE, {});
      this.fresh = new Set(page.jobs.map((job) => job.name));
      const older = page.next ? (this.jobs || []).filter((job) => !this.fresh.has(job.name)) : [];
      this.jobs = [...page.jobs.map((job) => this.keep(job)), ...older];
      // What was loaded beyond the first page stays, and so does the place to go on from.
      if (older.length === 0) this.token = page.next;
    });
  }

  more() {
    if (this.busy || !this.token) return;
    this.busy = true;
    this.guarded(async () => {
      const page = await this.list(NEXT_PAGES, { page_token: this.token });
      const names = new Set(this.jobs.map((job) => job.name));
      this.jobs = [...this.jobs, ...page.jobs.filter((job) => !names.has(job.name)).map((job) => this.keep(job))];
      this.token = page.next;
    });
  }

  // Changes of a while together: the first page anew, and what lies beyond it one by one.
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

  // The server says whether they are still as the filter asks: each is what comes after the one before it.
  lookBeyond(changed) {
    const jobs = this.jobs || [];
    const beyond = [...jobs.keys()].filter((at) => at > 0 && changed.has(shortName(jobs[at].name)) &&
      !this.fresh?.has(jobs[at].name)).slice(0, MOST_ASKED_ALONE);
    return this.guarded(async () => {
      const pages = await Promise.all(beyond.map((at) => this.list(1, { after: jobs[at - 1].name })));
      const now = new Map(beyond.map((at, i) => [jobs[at].name, pages[i].jobs[0]]));
      this.jobs = this.jobs.map((job) => {
        if (!now.has(job.name)) return job;
        return now.get(job.name)?.name === job.name ? this.keep(now.get(job.name)) : null;
      }).filter(Boolean);
    });
  }
}
