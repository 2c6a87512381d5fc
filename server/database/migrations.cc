#include "server/database/migration_lists.h"

namespace sft::server {
namespace {

// The first part of the list, which is full; migrations_from_23.cc goes on with it. What stands in
// it is never changed, and its order is the database's history. Times are microseconds since the
// Unix epoch. States are the numbers of server/state/job_state.h.
constexpr Migration kMigrations[] = {{1, R"sql(
CREATE TABLE variants (
  name TEXT NOT NULL PRIMARY KEY,
  gpu_type TEXT NOT NULL,
  gpus_per_node INTEGER NOT NULL CHECK (gpus_per_node > 0),
  UNIQUE (gpu_type, gpus_per_node)
) STRICT;
INSERT INTO variants VALUES ('H100-4x', 'H100', 4), ('H100-8x', 'H100', 8);

CREATE TABLE nodes (
  name TEXT NOT NULL PRIMARY KEY,
  state INTEGER NOT NULL CHECK (state IN (1, 2)),
  reason TEXT NOT NULL,
  hostname TEXT NOT NULL,
  address TEXT NOT NULL,
  incarnation TEXT NOT NULL,
  version TEXT NOT NULL,
  simulated INTEGER NOT NULL,
  has_shared_folder INTEGER NOT NULL,
  cpus INTEGER NOT NULL,
  memory_bytes INTEGER NOT NULL,
  last_seen_us INTEGER NOT NULL
) STRICT;

-- Slots: GPUs, or shares of a node's CPUs. present = 0: the node does not report it any more.
CREATE TABLE gpus (
  node TEXT NOT NULL REFERENCES nodes (name),
  slot INTEGER NOT NULL,
  gpu_type TEXT NOT NULL,
  product_name TEXT NOT NULL,
  uuid TEXT NOT NULL,
  memory_bytes INTEGER NOT NULL,
  healthy INTEGER NOT NULL,
  health_reason TEXT NOT NULL,
  present INTEGER NOT NULL,
  PRIMARY KEY (node, slot)
) STRICT;

CREATE TABLE models (
  node TEXT NOT NULL REFERENCES nodes (name),
  id TEXT NOT NULL,
  path TEXT NOT NULL,
  config_json TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  hash TEXT NOT NULL,
  problem TEXT NOT NULL,
  PRIMARY KEY (node, id, path)
) STRICT;

CREATE TABLE jobs (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  project TEXT NOT NULL,
  owner TEXT NOT NULL,
  kind INTEGER NOT NULL,
  state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 7),
  reason TEXT NOT NULL,
  display_name TEXT NOT NULL,
  variant TEXT NOT NULL,
  gpu_type TEXT NOT NULL,
  gpus_per_node INTEGER NOT NULL CHECK (gpus_per_node > 0),
  nodes INTEGER NOT NULL CHECK (nodes > 0),
  model TEXT NOT NULL,
  source_text TEXT NOT NULL,
  file_name TEXT NOT NULL,
  resolved_json TEXT NOT NULL,
  resolved_values TEXT NOT NULL,
  warnings TEXT NOT NULL,
  request_id TEXT UNIQUE,
  request_hash TEXT NOT NULL,
  cancel_requested INTEGER NOT NULL DEFAULT 0,
  cancel_reason TEXT NOT NULL DEFAULT '',
  attempt INTEGER NOT NULL DEFAULT 0,
  verdict TEXT NOT NULL DEFAULT '',
  created_us INTEGER NOT NULL,
  started_us INTEGER NOT NULL DEFAULT 0,
  ended_us INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX jobs_live ON jobs (state, sequence) WHERE state <= 4;
CREATE INDEX jobs_by_project ON jobs (project, sequence);

CREATE TABLE job_files (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  key TEXT NOT NULL,
  sha256 TEXT NOT NULL,
  size INTEGER NOT NULL,
  client_path TEXT NOT NULL,
  node_path TEXT NOT NULL,
  PRIMARY KEY (job_id, key)
) STRICT;

CREATE TABLE attempts (
  uid TEXT NOT NULL PRIMARY KEY,
  job_id TEXT NOT NULL REFERENCES jobs (id),
  number INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  state INTEGER NOT NULL CHECK (state BETWEEN 1 AND 7),
  reason TEXT NOT NULL,
  rendezvous TEXT NOT NULL DEFAULT '',
  verdict TEXT NOT NULL DEFAULT '',
  progress BLOB NOT NULL DEFAULT x'',
  created_us INTEGER NOT NULL,
  ended_us INTEGER NOT NULL DEFAULT 0,
  UNIQUE (job_id, number),
  UNIQUE (job_id, epoch)
) STRICT;
CREATE INDEX attempts_live ON attempts (uid) WHERE state <= 4;

-- The part of an attempt on one node: what it was given, and what it last reported.
CREATE TABLE attempt_nodes (
  attempt_uid TEXT NOT NULL REFERENCES attempts (uid),
  node_rank INTEGER NOT NULL,
  node TEXT NOT NULL REFERENCES nodes (name),
  first_rank INTEGER NOT NULL,
  slots TEXT NOT NULL,
  state INTEGER NOT NULL DEFAULT 0,
  seen INTEGER NOT NULL DEFAULT 0,
  reason TEXT NOT NULL DEFAULT '',
  verdict TEXT NOT NULL DEFAULT '',
  stuck INTEGER NOT NULL DEFAULT 0,
  forgotten INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (attempt_uid, node_rank),
  UNIQUE (attempt_uid, node)
) STRICT;
CREATE INDEX attempt_nodes_held ON attempt_nodes (node) WHERE forgotten = 0;

-- Who holds which slot. A row is live until freed_us is set.
CREATE TABLE allocations (
  id INTEGER PRIMARY KEY,
  node TEXT NOT NULL,
  slot INTEGER NOT NULL,
  job_id TEXT NOT NULL REFERENCES jobs (id),
  attempt_uid TEXT NOT NULL REFERENCES attempts (uid),
  created_us INTEGER NOT NULL,
  freed_us INTEGER,
  FOREIGN KEY (node, slot) REFERENCES gpus (node, slot)
) STRICT;
CREATE UNIQUE INDEX allocations_live ON allocations (node, slot) WHERE freed_us IS NULL;
CREATE INDEX allocations_by_attempt ON allocations (attempt_uid);

CREATE TABLE events (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  sequence INTEGER NOT NULL,
  time_us INTEGER NOT NULL,
  type TEXT NOT NULL,
  message TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  PRIMARY KEY (job_id, sequence)
) STRICT, WITHOUT ROWID;

-- How far a rank's event file is taken in, and whether its log has ended.
CREATE TABLE rank_streams (
  attempt_uid TEXT NOT NULL REFERENCES attempts (uid),
  rank INTEGER NOT NULL,
  node TEXT NOT NULL,
  events_offset INTEGER NOT NULL DEFAULT 0,
  log_ended INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (attempt_uid, rank, node)
) STRICT, WITHOUT ROWID;

CREATE TABLE datasets (
  sha256 TEXT NOT NULL PRIMARY KEY,
  size INTEGER NOT NULL,
  rows INTEGER NOT NULL,
  display_name TEXT NOT NULL,
  owner TEXT NOT NULL,
  created_us INTEGER NOT NULL,
  last_used_us INTEGER NOT NULL
) STRICT;

CREATE TABLE artifacts (
  id TEXT NOT NULL PRIMARY KEY,
  job_id TEXT NOT NULL REFERENCES jobs (id),
  attempt_uid TEXT NOT NULL REFERENCES attempts (uid),
  kind TEXT NOT NULL,
  node TEXT NOT NULL,
  node_path TEXT NOT NULL,
  files TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  created_us INTEGER NOT NULL,
  UNIQUE (attempt_uid, kind)
) STRICT;
CREATE INDEX artifacts_by_job ON artifacts (job_id, created_us);
)sql"},
                                     {2, R"sql(
-- Tells a restart of a node's worker from a second worker of its name.
ALTER TABLE nodes ADD COLUMN data_dir_id TEXT NOT NULL DEFAULT '';

-- Rows in none of the known forms, and the first of them with its line.
ALTER TABLE datasets ADD COLUMN odd_rows INTEGER NOT NULL DEFAULT 0;
ALTER TABLE datasets ADD COLUMN first_odd_row INTEGER NOT NULL DEFAULT 0;
ALTER TABLE datasets ADD COLUMN first_odd TEXT NOT NULL DEFAULT '';
)sql"},
                                     {3, R"sql(
-- Restarts: what was used up, how far the job came, and when and where it is tried next.
ALTER TABLE jobs ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN unknown_restarts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN idle_restarts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN quick_restarts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN furthest_step INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN saved_step INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN not_before_us INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN avoid_node TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN resumed_from TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN resumed_step INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN resume_changed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN cancel_checkpoint INTEGER NOT NULL DEFAULT 0;
CREATE INDEX jobs_resumed ON jobs (resumed_from) WHERE resumed_from != '';

-- The checkpoint an attempt went on from (empty: from the start), and the ones it was asked for.
ALTER TABLE attempts ADD COLUMN resume_uid TEXT NOT NULL DEFAULT '';
ALTER TABLE attempts ADD COLUMN resume_step INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN checkpoints_asked INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN checkpoint_request TEXT NOT NULL DEFAULT '';

-- The node was given up for this attempt. Its slots stay held until it says what became of them.
ALTER TABLE attempt_nodes ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;

-- Training state. Committed when each of the gang's nodes has registered its part.
CREATE TABLE checkpoints (
  attempt_uid TEXT NOT NULL REFERENCES attempts (uid),
  step INTEGER NOT NULL CHECK (step > 0),
  job_id TEXT NOT NULL REFERENCES jobs (id),
  attempt INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  reason TEXT NOT NULL,
  metric REAL,
  best INTEGER NOT NULL,
  bytes INTEGER NOT NULL DEFAULT 0,
  problem TEXT NOT NULL DEFAULT '',
  created_us INTEGER NOT NULL,
  committed_us INTEGER NOT NULL DEFAULT 0,
  deleted_us INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (attempt_uid, step)
) STRICT, WITHOUT ROWID;
CREATE INDEX checkpoints_by_job ON checkpoints (job_id, step);
CREATE INDEX checkpoints_kept ON checkpoints (deleted_us);

-- place: 1 blobs, 2 a folder on the node, 3 below the shared folder.
CREATE TABLE checkpoint_parts (
  attempt_uid TEXT NOT NULL,
  step INTEGER NOT NULL,
  node_rank INTEGER NOT NULL,
  node TEXT NOT NULL,
  place INTEGER NOT NULL CHECK (place BETWEEN 1 AND 3),
  path TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  PRIMARY KEY (attempt_uid, step, node_rank),
  FOREIGN KEY (attempt_uid, step) REFERENCES checkpoints (attempt_uid, step)
) STRICT, WITHOUT ROWID;

-- Blobs of kept checkpoints; rows go with the checkpoint, a blob with its last row.
CREATE TABLE checkpoint_files (
  attempt_uid TEXT NOT NULL,
  step INTEGER NOT NULL,
  path TEXT NOT NULL,
  sha256 TEXT NOT NULL,
  size INTEGER NOT NULL,
  PRIMARY KEY (attempt_uid, step, path),
  FOREIGN KEY (attempt_uid, step) REFERENCES checkpoints (attempt_uid, step)
) STRICT, WITHOUT ROWID;
CREATE INDEX checkpoint_files_by_blob ON checkpoint_files (sha256);

-- Failures of gangs that blame a node.
CREATE TABLE node_faults (
  node TEXT NOT NULL,
  time_us INTEGER NOT NULL,
  job_id TEXT NOT NULL,
  code TEXT NOT NULL
) STRICT;
CREATE INDEX node_faults_by_node ON node_faults (node, time_us);
)sql"},
                                     {4, R"sql(
-- The oldest waiting jobs of each slot type.
CREATE INDEX jobs_pending ON jobs (gpu_type, sequence) WHERE state = 1;

-- The wire protocol that a job needs, a worker speaks, and the worker spoke that got a part.
ALTER TABLE jobs ADD COLUMN protocol INTEGER NOT NULL DEFAULT 1;
ALTER TABLE jobs ADD COLUMN newer_keys TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN protocol INTEGER NOT NULL DEFAULT 1;
ALTER TABLE attempt_nodes ADD COLUMN protocol INTEGER NOT NULL DEFAULT 1;

-- Checkpoints of several nodes: the step that is collected, and how far each node is.
ALTER TABLE attempts ADD COLUMN collecting INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempt_nodes ADD COLUMN checkpoint_newest INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempt_nodes ADD COLUMN checkpoint_settled INTEGER NOT NULL DEFAULT 0;
)sql"},
                                     {5, R"sql(
-- What the scheduler goes by, beside the job's row; read whole for all waiting jobs.
CREATE TABLE job_schedules (
  job_id TEXT NOT NULL PRIMARY KEY REFERENCES jobs (id),
  after_jobs TEXT NOT NULL DEFAULT '',
  held INTEGER NOT NULL DEFAULT 0,
  hold_reason TEXT NOT NULL DEFAULT '',
  time_limit_us INTEGER NOT NULL DEFAULT 0,
  warn_before_us INTEGER NOT NULL DEFAULT 0,
  deadline_us INTEGER NOT NULL DEFAULT 0,
  exclusive INTEGER NOT NULL DEFAULT 0,
  preemptible INTEGER NOT NULL DEFAULT 1,
  planned_us INTEGER NOT NULL DEFAULT 0,
  planned_steps INTEGER NOT NULL DEFAULT 0,
  used_us INTEGER NOT NULL DEFAULT 0,
  warned INTEGER NOT NULL DEFAULT 0,
  sweep TEXT NOT NULL DEFAULT '',
  sweep_limit INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX job_schedules_sweep ON job_schedules (sweep) WHERE sweep != '';
INSERT INTO job_schedules (job_id) SELECT id FROM jobs WHERE state <= 4;

-- The first of the line of each slot type and project.
ALTER TABLE jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 1;
DROP INDEX jobs_pending;
CREATE INDEX jobs_pending ON jobs (gpu_type, project, priority DESC, sequence) WHERE state = 1;

-- Why an attempt was told to stop that is to go on later, or ends at its limit: a verdict's code.
ALTER TABLE attempts ADD COLUMN stop_code TEXT NOT NULL DEFAULT '';
ALTER TABLE attempts ADD COLUMN stop_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE attempts ADD COLUMN stop_us INTEGER NOT NULL DEFAULT 0;
-- From which step on its pace is measured, and since when.
ALTER TABLE attempts ADD COLUMN paced_step INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN paced_us INTEGER NOT NULL DEFAULT 0;

-- Parts and limits of projects; one without a row has the defaults. usage_us: GPU time of ended
-- attempts, decayed to usage_at_us.
CREATE TABLE project_limits (
  project TEXT NOT NULL PRIMARY KEY,
  share REAL NOT NULL DEFAULT 1 CHECK (share > 0),
  max_gpus INTEGER NOT NULL DEFAULT 0,
  max_running INTEGER NOT NULL DEFAULT 0,
  max_pending INTEGER NOT NULL DEFAULT 0,
  max_priority INTEGER NOT NULL DEFAULT 2,
  usage_us REAL NOT NULL DEFAULT 0,
  usage_at_us INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- What was expected of a job and what happened. start_us and end_us: as of its submit; end50_us: as
-- of its 50th step, at at50_us. begun_us and ended_us: what happened; ended_us of success alone.
CREATE TABLE estimates (
  job_id TEXT NOT NULL PRIMARY KEY REFERENCES jobs (id),
  project TEXT NOT NULL,
  gpu_type TEXT NOT NULL,
  gpus INTEGER NOT NULL,
  submitted_us INTEGER NOT NULL,
  start_us INTEGER NOT NULL DEFAULT 0,
  end_us INTEGER NOT NULL DEFAULT 0,
  at50_us INTEGER NOT NULL DEFAULT 0,
  end50_us INTEGER NOT NULL DEFAULT 0,
  begun_us INTEGER NOT NULL DEFAULT 0,
  ended_us INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX estimates_begun ON estimates (begun_us) WHERE begun_us > 0;
CREATE INDEX estimates_ended ON estimates (ended_us) WHERE ended_us > 0;
)sql"},
                                     {6, R"sql(
-- An operator's word about a node: 1 cordon, 2 drain. move_us: from then on its jobs are moved; 0:
-- they end by themselves.
CREATE TABLE node_holds (
  node TEXT NOT NULL PRIMARY KEY REFERENCES nodes (name),
  mode INTEGER NOT NULL CHECK (mode IN (1, 2)),
  reason TEXT NOT NULL,
  who TEXT NOT NULL,
  since_us INTEGER NOT NULL,
  move_us INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- What a node's worker found there: a serialized sft.v1.NodeFacts.
CREATE TABLE node_facts (
  node TEXT NOT NULL PRIMARY KEY REFERENCES nodes (name),
  facts BLOB NOT NULL,
  first_seen_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO node_facts SELECT name, x'', last_seen_us FROM nodes;

CREATE INDEX job_files_by_blob ON job_files (sha256) WHERE sha256 != '';

-- Blobs of artifacts that the server keeps.
CREATE TABLE artifact_blobs (
  sha256 TEXT NOT NULL,
  artifact TEXT NOT NULL REFERENCES artifacts (id) ON DELETE CASCADE,
  PRIMARY KEY (sha256, artifact)
) STRICT, WITHOUT ROWID;
CREATE INDEX artifact_blobs_by_artifact ON artifact_blobs (artifact);
INSERT INTO artifact_blobs SELECT DISTINCT json_extract(f.value, '$[1]'), a.id
  FROM artifacts a, json_each(a.files) f WHERE a.node = '';
ALTER TABLE artifacts ADD COLUMN last_used_us INTEGER NOT NULL DEFAULT 0;
UPDATE artifacts SET last_used_us = created_us;

-- Bytes that a project may have of data sets and of artifacts; 0: no limit.
CREATE TABLE storage_quotas (
  project TEXT NOT NULL PRIMARY KEY,
  dataset_bytes INTEGER NOT NULL DEFAULT 0,
  artifact_bytes INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- What was removed of a job, by whom or by which rule. kind: sft.v1.StoredKind. node and path: a
-- full model that lies there until the node has removed it.
CREATE TABLE removals (
  job_id TEXT NOT NULL REFERENCES jobs (id),
  kind INTEGER NOT NULL,
  time_us INTEGER NOT NULL,
  who TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  node TEXT NOT NULL DEFAULT '',
  path TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (job_id, kind, node, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX removals_on_node ON removals (node, time_us) WHERE node != '';

-- For figures over a span of time, and for age limits.
CREATE INDEX jobs_by_end ON jobs (ended_us) WHERE ended_us > 0;
CREATE INDEX attempts_by_end ON attempts (ended_us) WHERE ended_us > 0;
CREATE INDEX attempts_first ON attempts (created_us) WHERE number = 1;
CREATE INDEX allocations_by_end ON allocations (freed_us) WHERE freed_us IS NOT NULL;
)sql"},
                                     {7, R"sql(
-- Who may do what. Roles are the numbers of server/state/access.h.
CREATE TABLE users (
  name TEXT NOT NULL PRIMARY KEY,
  admin INTEGER NOT NULL,
  created_us INTEGER NOT NULL
) STRICT;
CREATE TABLE user_roles (
  user TEXT NOT NULL REFERENCES users (name),
  project TEXT NOT NULL,
  role INTEGER NOT NULL CHECK (role IN (1, 2)),
  PRIMARY KEY (user, project)
) STRICT, WITHOUT ROWID;

-- kind: 1 of a user, 2 to join nodes.
CREATE TABLE tokens (
  id TEXT NOT NULL PRIMARY KEY,
  kind INTEGER NOT NULL CHECK (kind IN (1, 2)),
  secret_sha256 TEXT NOT NULL,
  user TEXT NOT NULL,
  node TEXT NOT NULL,
  comment TEXT NOT NULL,
  created_by TEXT NOT NULL,
  created_us INTEGER NOT NULL,
  expires_us INTEGER NOT NULL,
  revoked_us INTEGER NOT NULL,
  max_uses INTEGER NOT NULL,
  uses INTEGER NOT NULL
) STRICT;

-- The key that a node has joined with, and how long its certificate is good.
CREATE TABLE node_keys (
  node TEXT NOT NULL PRIMARY KEY,
  key_sha256 TEXT NOT NULL,
  token TEXT NOT NULL,
  joined_us INTEGER NOT NULL,
  expires_us INTEGER NOT NULL,
  revoked_us INTEGER NOT NULL
) STRICT;

CREATE TABLE audit (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  time_us INTEGER NOT NULL,
  principal TEXT NOT NULL,
  token TEXT NOT NULL,
  peer TEXT NOT NULL,
  method TEXT NOT NULL,
  object TEXT NOT NULL,
  outcome INTEGER NOT NULL
) STRICT;
CREATE INDEX audit_by_principal ON audit (principal, sequence);

-- Projects that have uploaded a data set. Before there were any, it belongs to those that used it.
CREATE TABLE dataset_owners (
  sha256 TEXT NOT NULL REFERENCES datasets (sha256) ON DELETE CASCADE,
  project TEXT NOT NULL,
  owner TEXT NOT NULL,
  display_name TEXT NOT NULL,
  created_us INTEGER NOT NULL,
  PRIMARY KEY (sha256, project)
) STRICT, WITHOUT ROWID;
INSERT OR IGNORE INTO dataset_owners
  SELECT sha256, 'default', owner, display_name, created_us FROM datasets;
INSERT OR IGNORE INTO dataset_owners
  SELECT d.sha256, j.project, j.owner, d.display_name, d.created_us
  FROM datasets d JOIN job_files f ON f.sha256 = d.sha256 JOIN jobs j ON j.id = f.job_id;
)sql"},
                                     {8, R"sql(
-- The large texts of a job, which change no more and are seldom read, out of the row that is read
-- and written all the time. Jobs from before have theirs in the row.
CREATE TABLE job_texts (
  sequence INTEGER PRIMARY KEY REFERENCES jobs (sequence) ON DELETE CASCADE,
  source_text TEXT NOT NULL,
  resolved_json TEXT NOT NULL,
  resolved_values TEXT NOT NULL
) STRICT;
)sql"},
                                     {9, R"sql(
-- What the scheduler promised to waiting jobs. Names of nodes have commas between them.
CREATE TABLE promises (
  job_id TEXT NOT NULL PRIMARY KEY REFERENCES jobs (id),
  start_us INTEGER NOT NULL,
  nodes TEXT NOT NULL
) STRICT, WITHOUT ROWID;
)sql"},
                                     {10, R"sql(
-- removed = 1: an operator said that the node is gone for good; history refers to the row.
ALTER TABLE nodes ADD COLUMN removed INTEGER NOT NULL DEFAULT 0;
)sql"},
                                     {11, R"sql(
-- Refused and failed calls are counted: a row stands for those of one kind in a minute.
ALTER TABLE audit ADD COLUMN calls INTEGER NOT NULL DEFAULT 1;
)sql"},
                                     {12, R"sql(
-- Which version of the check gave the verdict, and the least protocol whose workers read the file.
ALTER TABLE datasets ADD COLUMN check_version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE datasets ADD COLUMN protocol INTEGER NOT NULL DEFAULT 1;
)sql"},
                                     {13, R"sql(
-- The label that runs which belong together share (job.group).
ALTER TABLE job_schedules ADD COLUMN run_group TEXT NOT NULL DEFAULT '';
CREATE INDEX job_schedules_group ON job_schedules (run_group) WHERE run_group != '';
)sql"},
                                     {14, R"sql(
-- Calls that judges of a job got (evaluate.grader), which max_calls bounds.
CREATE TABLE judge_calls (
  job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  grader TEXT NOT NULL,
  calls INTEGER NOT NULL,
  PRIMARY KEY (job_id, grader)
) STRICT, WITHOUT ROWID;
)sql"},
                                     {15, R"sql(
-- The orders of lists, and the jobs of one owner.
CREATE INDEX jobs_by_owner ON jobs (owner);
CREATE INDEX jobs_by_name ON jobs (display_name COLLATE NOCASE);
CREATE INDEX jobs_by_start ON jobs (started_us);
DROP INDEX jobs_by_end;
CREATE INDEX jobs_by_end ON jobs (ended_us);

-- What happened to jobs, nodes and the server, in one sequence: the newest events. An event of a
-- job is in events; others have their own text here. project: whose members alone see it; empty:
-- everybody.
CREATE TABLE feed (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  time_us INTEGER NOT NULL,
  project TEXT NOT NULL DEFAULT '',
  job_id TEXT NOT NULL DEFAULT '',
  job_sequence INTEGER NOT NULL DEFAULT 0,
  subject TEXT NOT NULL DEFAULT '',
  type TEXT NOT NULL DEFAULT '',
  message TEXT NOT NULL DEFAULT ''
) STRICT;
)sql"},
                                     {16, R"sql(
-- Figures for operators, counted since there is this table (server/store/tallies.h).
CREATE TABLE tallies (
  name TEXT NOT NULL,
  label TEXT NOT NULL,
  second TEXT NOT NULL,
  value REAL NOT NULL,
  PRIMARY KEY (name, label, second)
) STRICT, WITHOUT ROWID;
)sql"},
                                     {17, R"sql(
-- Addresses that are told of events. project: whose; empty: of the whole server. Their secrets are
-- files beside the database. format: 1 standard, 2 slack. events: names with commas between them;
-- empty: all. off_us: when it was put off; 0: it is on. failures: in a row. tried_us: the last try.
-- told: its deliveries so far.
CREATE TABLE webhooks (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL,
  url TEXT NOT NULL,
  format INTEGER NOT NULL CHECK (format IN (1, 2)),
  events TEXT NOT NULL,
  created_by TEXT NOT NULL,
  created_us INTEGER NOT NULL,
  off_us INTEGER NOT NULL DEFAULT 0,
  off_reason TEXT NOT NULL DEFAULT '',
  failures INTEGER NOT NULL DEFAULT 0,
  rest_until_us INTEGER NOT NULL DEFAULT 0,
  delivered_us INTEGER NOT NULL DEFAULT 0,
  tried_us INTEGER NOT NULL DEFAULT 0,
  told INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX webhooks_by_project ON webhooks (project);

-- What they are told, written in the transaction of what it tells. state: 1 waiting, 2 delivered,
-- 3 failed, 4 dropped. next_us: of the next try; last_us: of the last one; status: HTTP's, 0: none.
CREATE TABLE webhook_deliveries (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  hook TEXT NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
  type TEXT NOT NULL,
  body TEXT NOT NULL,
  created_us INTEGER NOT NULL,
  state INTEGER NOT NULL DEFAULT 1 CHECK (state BETWEEN 1 AND 4),
  tries INTEGER NOT NULL DEFAULT 0,
  next_us INTEGER NOT NULL,
  last_us INTEGER NOT NULL DEFAULT 0,
  status INTEGER NOT NULL DEFAULT 0,
  error TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX webhook_deliveries_of_hook ON webhook_deliveries (hook, state, sequence);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (hook, next_us) WHERE state = 1;
)sql"},
                                     {18, R"sql(
-- One row: which of the servers that have had the fleet's data this database is of, and which has
-- taken its place (0: none).
CREATE TABLE server_generation (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  number INTEGER NOT NULL,
  replaced_by INTEGER NOT NULL,
  replaced_at TEXT NOT NULL
) STRICT;
INSERT INTO server_generation (id, number, replaced_by, replaced_at) VALUES (1, 1, 0, '');
)sql"},
                                     {19, R"sql(
-- What a job's submitter has attached to it: a JSON object of texts.
ALTER TABLE jobs ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}';

-- Data sets by ids and names that their users give. A file ends with its data set, or when its
-- project has that no more.
CREATE TABLE files (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  project TEXT NOT NULL,
  owner TEXT NOT NULL,
  sha256 TEXT NOT NULL,
  name TEXT NOT NULL,
  purpose TEXT NOT NULL,
  created_us INTEGER NOT NULL,
  FOREIGN KEY (sha256, project) REFERENCES dataset_owners (sha256, project) ON DELETE CASCADE
) STRICT;
CREATE INDEX files_of_project ON files (project, sequence);
CREATE INDEX files_by_dataset ON files (sha256, project);
)sql"},
                                     {20, R"sql(
-- What an hour of a slot costs from a time on. gpu_type: empty: of each type of GPU without a price
-- of its own. Amounts are in millionths of the currency, which is the same for all.
CREATE TABLE prices (
  gpu_type TEXT NOT NULL,
  start_us INTEGER NOT NULL,
  micros_per_hour INTEGER NOT NULL CHECK (micros_per_hour >= 0),
  currency TEXT NOT NULL,
  set_by TEXT NOT NULL,
  PRIMARY KEY (gpu_type, start_us)
) STRICT, WITHOUT ROWID;

-- What a project's slots may cost. period: 1 a month, 2 without end. on_reached: 1 nothing more
-- starts, 2 what runs stops too. begin_us: of the period that what follows is about. freed_*: the
-- cost of slots that were freed in it, whole and beyond that in millionths times microseconds of an
-- hour. warned, reached: it was told.
CREATE TABLE budgets (
  project TEXT NOT NULL PRIMARY KEY,
  amount_micros INTEGER NOT NULL CHECK (amount_micros > 0),
  period INTEGER NOT NULL CHECK (period IN (1, 2)),
  warn_percent INTEGER NOT NULL CHECK (warn_percent BETWEEN 1 AND 100),
  on_reached INTEGER NOT NULL CHECK (on_reached IN (1, 2)),
  begin_us INTEGER NOT NULL,
  freed_micros INTEGER NOT NULL DEFAULT 0,
  freed_rest INTEGER NOT NULL DEFAULT 0,
  warned INTEGER NOT NULL DEFAULT 0,
  reached INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- Webhooks of format 3: mail, whose url is mailto:. of_jobs: of jobs that ask for it (job_mail)
-- alone. The tables are made anew, because a CHECK cannot be changed.
CREATE TABLE new_webhooks (
  id TEXT NOT NULL PRIMARY KEY,
  project TEXT NOT NULL,
  url TEXT NOT NULL,
  format INTEGER NOT NULL CHECK (format IN (1, 2, 3)),
  events TEXT NOT NULL,
  created_by TEXT NOT NULL,
  created_us INTEGER NOT NULL,
  off_us INTEGER NOT NULL DEFAULT 0,
  off_reason TEXT NOT NULL DEFAULT '',
  failures INTEGER NOT NULL DEFAULT 0,
  rest_until_us INTEGER NOT NULL DEFAULT 0,
  delivered_us INTEGER NOT NULL DEFAULT 0,
  tried_us INTEGER NOT NULL DEFAULT 0,
  told INTEGER NOT NULL DEFAULT 0,
  of_jobs INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
INSERT INTO new_webhooks SELECT id, project, url, format, events, created_by, created_us, off_us,
  off_reason, failures, rest_until_us, delivered_us, tried_us, told, 0 FROM webhooks;
CREATE TABLE new_deliveries (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  hook TEXT NOT NULL REFERENCES new_webhooks (id) ON DELETE CASCADE,
  type TEXT NOT NULL,
  body TEXT NOT NULL,
  created_us INTEGER NOT NULL,
  state INTEGER NOT NULL DEFAULT 1 CHECK (state BETWEEN 1 AND 4),
  tries INTEGER NOT NULL DEFAULT 0,
  next_us INTEGER NOT NULL,
  last_us INTEGER NOT NULL DEFAULT 0,
  status INTEGER NOT NULL DEFAULT 0,
  error TEXT NOT NULL DEFAULT ''
) STRICT;
INSERT INTO new_deliveries SELECT sequence, id, hook, type, body, created_us, state, tries, next_us,
  last_us, status, error FROM webhook_deliveries;
DROP TABLE webhook_deliveries;
DROP TABLE webhooks;
ALTER TABLE new_webhooks RENAME TO webhooks;
ALTER TABLE new_deliveries RENAME TO webhook_deliveries;
CREATE INDEX webhooks_by_project ON webhooks (project);
CREATE INDEX webhook_deliveries_of_hook ON webhook_deliveries (hook, state, sequence);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (hook, next_us) WHERE state = 1;

-- Jobs that ask for mail (notify.mail): to which of these webhooks. events: as webhooks.events.
CREATE TABLE job_mail (
  job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  hook TEXT NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
  events TEXT NOT NULL,
  PRIMARY KEY (job_id, hook)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_mail_by_hook ON job_mail (hook);
)sql"},
                                     // Users for whom an issuer vouches; ID tokens in use.
                                     {21, R"sql(
ALTER TABLE users ADD COLUMN issuer TEXT NOT NULL DEFAULT '';
ALTER TABLE users ADD COLUMN subject TEXT NOT NULL DEFAULT '';
CREATE UNIQUE INDEX users_of_identity ON users (issuer, subject) WHERE issuer <> '';
CREATE TABLE used_id_tokens (
  id_sha256 TEXT PRIMARY KEY,
  expires_us INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX used_id_tokens_end ON used_id_tokens (expires_us);
)sql"},
                                     {22, R"sql(
CREATE INDEX attempt_nodes_by_node ON attempt_nodes (node);
CREATE INDEX allocations_by_slot ON allocations (node, slot);
)sql"}};

}  // namespace

std::span<const Migration> MigrationsTo22() { return kMigrations; }

}  // namespace sft::server
