#include "server/store/jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/spec/job_json.h"
#include "server/store/feed.h"
#include "server/store/schedules.h"
#include "server/store/states.h"
#include "server/store/tallies.h"
#include "server/store/webhook_events.h"
#include "server/store/webhooks.h"

namespace sft::server::store {
namespace {

#define SFT_JOB_COLUMNS_WITH(reason, warnings, verdict, metadata)                                 \
  "sequence, id, project, owner, kind, state, " reason                                            \
  ", display_name, variant, gpu_type, "                                                           \
  "gpus_per_node, nodes, model, file_name, " warnings                                             \
  ", request_id, request_hash, "                                                                  \
  "cancel_requested, cancel_reason, attempt, " verdict                                            \
  ", created_us, started_us, ended_us, "                                                          \
  "cancel_checkpoint, restarts, unknown_restarts, idle_restarts, quick_restarts, furthest_step, " \
  "saved_step, not_before_us, avoid_node, resumed_from, resumed_step, resume_changed, protocol, " \
  "newer_keys, priority, " metadata
#define SFT_JOB_COLUMNS SFT_JOB_COLUMNS_WITH("reason", "warnings", "verdict", "metadata")
// One statement whatever is asked for, as statements are kept: a column whose value is not needed
// is not read, nor the pages that it lies on.
#define SFT_ASKED_JOB_COLUMNS                                                                 \
  SFT_JOB_COLUMNS_WITH("iif(?, reason, '')", "iif(?, warnings, '[]')", "iif(?, verdict, '')", \
                       "iif(?, metadata, '{}')")

// Ids that clients choose are unique in a project, the column is in the database: those of other
// projects than the default one are stored with theirs, after a sign that no id has.
constexpr char kAfterProject = '\n';

std::string StoredRequestId(const std::string& project, const std::string& id) {
  return project == kDefaultProject || id.empty() ? id : project + kAfterProject + id;
}

std::string GivenRequestId(const std::string& stored) {
  const size_t at = stored.find(kAfterProject);
  return at == stored.npos ? stored : stored.substr(at + 1);
}

// Most texts are plain, and there are hundreds of each job.
void AppendQuoted(const std::string& text, std::string& json) {
  const bool plain = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return c >= ' ' && c < 0x7f && c != '"' && c != '\\';
  });
  if (plain) {
    json.append(1, '"').append(text).append(1, '"');
  } else {
    json += DumpJson(nlohmann::json(text));
  }
}

// [[key, value, origin], ...]
std::string ToJson(const std::vector<ResolvedRecord>& values) {
  std::string json = "[";
  for (const auto& value : values) {
    json += json.size() > 1 ? ",[" : "[";
    AppendQuoted(value.key, json);
    json += ',';
    AppendQuoted(value.value, json);
    json += ',';
    AppendQuoted(value.origin, json);
    json += ']';
  }
  return json + "]";
}

// [[key, line, message], ...]
std::string ToJson(const std::vector<WarningRecord>& warnings) {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& warning : warnings) {
    json.push_back({warning.key, warning.line, warning.message});
  }
  return DumpJson(json);
}

// Written by this server; a list that cannot be read is left out.
std::vector<ResolvedRecord> ReadResolved(const std::string& text) {
  std::vector<ResolvedRecord> values;
  const nlohmann::json list = ParseJson(text);
  for (const auto& value : list.is_array() ? list : nlohmann::json::array()) {
    values.push_back({value.at(0).get<std::string>(), value.at(1).get<std::string>(),
                      value.at(2).get<std::string>()});
  }
  return values;
}

std::vector<WarningRecord> ReadWarnings(const std::string& text) {
  std::vector<WarningRecord> warnings;
  if (text == "[]") return warnings;  // of nearly all
  const nlohmann::json list = ParseJson(text);
  for (const auto& warning : list.is_array() ? list : nlohmann::json::array()) {
    warnings.push_back({warning.at(0).get<std::string>(), warning.at(1).get<int>(),
                        warning.at(2).get<std::string>()});
  }
  return warnings;
}

std::string ToJson(const std::map<std::string, std::string>& metadata) {
  return metadata.empty() ? "{}" : DumpJson(nlohmann::json(metadata));
}

std::map<std::string, std::string> ReadMetadata(const std::string& text) {
  std::map<std::string, std::string> metadata;
  if (text == "{}") return metadata;  // of nearly all
  const nlohmann::json values = ParseJson(text);
  for (const auto& item : values.items()) {
    if (item.value().is_string()) metadata[item.key()] = item.value().get<std::string>();
  }
  return metadata;
}

JobRecord ReadJob(const Statement& row) {
  JobRecord job;
  int c = 0;
  job.sequence = row.Int(c++);
  job.id = row.Text(c++);
  job.project = row.Text(c++);
  job.owner = row.Text(c++);
  job.kind = static_cast<int>(row.Int(c++));
  job.state = static_cast<JobState>(row.Int(c++));
  job.reason = row.Text(c++);
  job.display_name = row.Text(c++);
  job.variant = row.Text(c++);
  job.gpu_type = row.Text(c++);
  job.gpus_per_node = static_cast<int>(row.Int(c++));
  job.nodes = static_cast<int>(row.Int(c++));
  job.model = row.Text(c++);
  job.file_name = row.Text(c++);
  job.warnings = ReadWarnings(row.Text(c++));
  job.request_id = GivenRequestId(row.Text(c++));
  job.request_hash = row.Text(c++);
  job.cancel_requested = row.Bool(c++);
  job.cancel_reason = row.Text(c++);
  job.attempt = static_cast<int>(row.Int(c++));
  job.verdict = VerdictFromJson(row.Text(c++));
  job.created_us = row.Int(c++);
  job.started_us = row.Int(c++);
  job.ended_us = row.Int(c++);
  job.cancel_checkpoint = row.Bool(c++);
  job.restart.restarts = static_cast<int>(row.Int(c++));
  job.restart.unknown_restarts = static_cast<int>(row.Int(c++));
  job.restart.idle = static_cast<int>(row.Int(c++));
  job.restart.quick = static_cast<int>(row.Int(c++));
  job.restart.furthest_step = row.Int(c++);
  job.restart.saved_step = row.Int(c++);
  job.not_before_us = row.Int(c++);
  job.avoid_node = row.Text(c++);
  job.resumed_from = row.Text(c++);
  job.resumed_step = row.Int(c++);
  job.resume_changed = row.Bool(c++);
  job.protocol = static_cast<int>(row.Int(c++));
  job.newer_keys = row.Text(c++);
  job.priority = static_cast<int>(row.Int(c++));
  job.metadata = ReadMetadata(row.Text(c++));
  return job;
}

absl::StatusOr<std::vector<JobRecord>> ReadJobs(Statement& statement) {
  std::vector<JobRecord> jobs;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, statement.Step());
    if (!row) return jobs;
    jobs.push_back(ReadJob(statement));
  }
}

absl::Status AskForNotices(Database& db, const JobRecord& job) {
  if (!job.spec.has_value()) return absl::OkStatus();
  const spec::JobSpec::Notify& notify = job.spec->notify;
  for (const std::string& address : notify.mail) {
    SFT_RETURN_IF_ERROR(
        AskToBeTold(db, job, fmt::format("{}{}", kMailScheme, address), notify.events));
  }
  return notify.webhook.empty() ? absl::OkStatus()
                                : AskToBeTold(db, job, notify.webhook, notify.events);
}

}  // namespace

absl::Status NoJob(const std::string& id) {
  return NotFound(fmt::format("no job \"{}\": `sftctl list` shows them", id));
}

JobTexts TextsOf(const JobRecord& job) {
  return {job.spec.has_value() ? SpecText(*job.spec) : "", ToJson(job.resolved_values),
          ToJson(job.warnings)};
}

std::string SpecText(const spec::JobSpec& spec) { return DumpJson(spec::ToJson(spec)); }

absl::Status InsertTexts(Database& db, const JobRecord& job, const JobTexts& texts) {
  SFT_ASSIGN_OR_RETURN(Statement insert,
                       db.Prepare("INSERT INTO job_texts (sequence, source_text, resolved_json, "
                                  "resolved_values) VALUES (?, ?, ?, ?)"));
  insert.Bind(job.sequence).Bind(job.source_text).Bind(texts.spec);
  return insert.Bind(texts.resolved_values).Run();
}

absl::Status InsertJob(Database& db, JobRecord& job, const std::vector<JobFileRecord>& files) {
  return InsertJob(db, job, TextsOf(job), files);
}

absl::Status InsertJob(Database& db, JobRecord& job, const JobTexts& texts,
                       const std::vector<JobFileRecord>& files) {
  if (texts.spec.empty()) return Internal(fmt::format("job {} has no settings", job.id));
  SFT_ASSIGN_OR_RETURN(
      Statement insert,
      db.Prepare(
          "INSERT INTO jobs (id, project, owner, kind, state, reason, display_name, variant, "
          "gpu_type, gpus_per_node, nodes, model, source_text, file_name, resolved_json, "
          "resolved_values, warnings, request_id, request_hash, created_us, resumed_from, "
          "resumed_step, resume_changed, protocol, newer_keys, priority, metadata) VALUES (?, ?, "
          "?, "
          "?, ?, ?, ?, ?, ?, ?, ?, ?, '', ?, '', '', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  insert.Bind(job.id).Bind(job.project).Bind(job.owner).Bind(job.kind);
  insert.Bind(static_cast<int>(job.state)).Bind(job.reason).Bind(job.display_name);
  insert.Bind(job.variant).Bind(job.gpu_type).Bind(job.gpus_per_node).Bind(job.nodes);
  insert.Bind(job.model).Bind(job.file_name).Bind(texts.warnings);
  if (job.request_id.empty()) {
    insert.BindNull();
  } else {
    insert.Bind(StoredRequestId(job.project, job.request_id));
  }
  insert.Bind(job.request_hash).Bind(job.created_us);
  insert.Bind(job.resumed_from).Bind(job.resumed_step).Bind(job.resume_changed);
  insert.Bind(job.protocol).Bind(job.newer_keys).Bind(job.priority).Bind(ToJson(job.metadata));
  SFT_RETURN_IF_ERROR(insert.Run());
  job.sequence = db.last_insert_rowid();
  SFT_RETURN_IF_ERROR(InsertTexts(db, job, texts));
  SFT_RETURN_IF_ERROR(InsertSchedule(db, job.id, job.schedule));
  for (const JobFileRecord& file : files) {
    SFT_ASSIGN_OR_RETURN(Statement add,
                         db.Prepare("INSERT INTO job_files (job_id, key, sha256, size, "
                                    "client_path, node_path) VALUES (?, ?, ?, ?, ?, ?)"));
    add.Bind(job.id).Bind(file.key).Bind(file.sha256).Bind(file.size);
    add.Bind(file.client_path).Bind(file.node_path);
    SFT_RETURN_IF_ERROR(add.Run());
  }
  SFT_RETURN_IF_ERROR(AskForNotices(db, job));
  return TellJob(db, "job.queued", job, Verdict(), job.created_us);
}

absl::StatusOr<JobRecord> GetJob(Database& db, const std::string& id) {
  SFT_ASSIGN_OR_RETURN(Statement get,
                       db.Prepare("SELECT " SFT_JOB_COLUMNS " FROM jobs WHERE id = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(id).Step());
  if (!row) return NoJob(id);
  return ReadJob(get);
}

absl::StatusOr<JobRecord> GetJob(Database& db, const std::string& id, const JobColumns& columns) {
  SFT_ASSIGN_OR_RETURN(Statement get,
                       db.Prepare("SELECT " SFT_ASKED_JOB_COLUMNS " FROM jobs WHERE id = ?"));
  get.Bind(columns.reason).Bind(columns.warnings).Bind(columns.verdict).Bind(columns.metadata);
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(id).Step());
  if (!row) return NoJob(id);
  return ReadJob(get);
}

absl::Status ReadTexts(Database& db, JobRecord& job) {
  SFT_ASSIGN_OR_RETURN(
      Statement get,
      db.Prepare(
          "SELECT coalesce(t.source_text, j.source_text), coalesce(t.resolved_values, "
          "j.resolved_values) FROM jobs j LEFT JOIN job_texts t ON t.sequence = j.sequence WHERE "
          "j.sequence = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(job.sequence).Step());
  if (!row) return NoJob(job.id);
  job.source_text = get.Text(0);
  job.resolved_values = ReadResolved(get.Text(1));
  return absl::OkStatus();
}

absl::StatusOr<spec::JobSpec> ReadSpec(Database& db, const JobRecord& job) {
  SFT_ASSIGN_OR_RETURN(const std::string text, ReadSpecText(db, job));
  JsonProblem problem;
  const nlohmann::json json = ParseJson(text, {}, &problem);
  if (json.is_discarded()) return DataLoss(problem.text);
  absl::StatusOr<spec::JobSpec> spec = spec::FromJson(json);
  return spec.ok() ? spec : DataLoss(Message(spec.status()));
}

absl::StatusOr<std::string> ReadSpecText(Database& db, const JobRecord& job) {
  SFT_ASSIGN_OR_RETURN(
      Statement get,
      db.Prepare(
          "SELECT coalesce(t.resolved_json, j.resolved_json) FROM jobs j LEFT JOIN job_texts "
          "t ON t.sequence = j.sequence WHERE j.sequence = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(job.sequence).Step());
  if (!row) return NoJob(job.id);
  return get.Text(0);
}

absl::StatusOr<JobRecord> FindJob(Database& db, const JobRef& name) {
  SFT_ASSIGN_OR_RETURN(JobRecord job, GetJob(db, name.id));
  if (name.project.empty() || name.project == job.project) return job;
  return NotFound(
      fmt::format("no job \"{}\" in project {}: `sftctl list` shows them", name.id, name.project));
}

absl::StatusOr<std::optional<JobRecord>> FindByRequestId(Database& db, const std::string& project,
                                                         const std::string& request) {
  SFT_ASSIGN_OR_RETURN(Statement get,
                       db.Prepare("SELECT " SFT_JOB_COLUMNS " FROM jobs WHERE request_id = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(StoredRequestId(project, request)).Step());
  if (!row) return std::optional<JobRecord>();
  return std::optional<JobRecord>(ReadJob(get));
}

absl::StatusOr<std::optional<JobRecord>> FindSameRequest(Database& db, const JobRecord& job,
                                                         int64_t since_us) {
  // Those alone that this owner has submitted last: there is no index of what they asked for.
  SFT_ASSIGN_OR_RETURN(
      Statement get,
      db.Prepare("SELECT id FROM (SELECT id, sequence, project, request_hash, created_us FROM jobs "
                 "WHERE owner = ? ORDER BY sequence DESC LIMIT 1000) WHERE request_hash = ? AND "
                 "project = ? AND created_us >= ? ORDER BY sequence DESC LIMIT 1"));
  get.Bind(job.owner).Bind(job.request_hash).Bind(job.project).Bind(since_us);
  SFT_ASSIGN_OR_RETURN(const bool row, get.Step());
  if (!row) return std::optional<JobRecord>();
  return GetJob(db, get.Text(0));
}

absl::StatusOr<std::vector<JobFileRecord>> FilesOfJob(Database& db, const std::string& id) {
  SFT_ASSIGN_OR_RETURN(Statement get,
                       db.Prepare("SELECT key, sha256, size, client_path, node_path FROM job_files "
                                  "WHERE job_id = ? ORDER BY key LIMIT 16"));
  get.Bind(id);
  std::vector<JobFileRecord> files;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, get.Step());
    if (!row) return files;
    files.push_back({get.Text(0), get.Text(1), get.Int(2), get.Text(3), get.Text(4)});
  }
}

absl::StatusOr<std::vector<JobRecord>> PendingJobs(Database& db, int limit_per_line) {
  std::vector<JobRecord> jobs;
  std::string type, project;
  while (true) {
    // One look at the index for each line; DISTINCT would read all of it.
    SFT_ASSIGN_OR_RETURN(
        Statement next,
        db.Prepare("SELECT gpu_type, project FROM jobs WHERE state " SFT_IS_PENDING " AND "
                   "(gpu_type, project) > (?, ?) ORDER BY gpu_type, project "
                   "LIMIT 1"));
    SFT_ASSIGN_OR_RETURN(const bool row, next.Bind(type).Bind(project).Step());
    if (!row) break;
    type = next.Text(0);
    project = next.Text(1);
    SFT_ASSIGN_OR_RETURN(Statement list, db.Prepare("SELECT " SFT_JOB_COLUMNS
                                                    " FROM jobs WHERE state " SFT_IS_PENDING
                                                    " AND gpu_type = ? AND project = ? "
                                                    "ORDER BY priority DESC, sequence LIMIT ?"));
    SFT_ASSIGN_OR_RETURN(std::vector<JobRecord> some,
                         ReadJobs(list.Bind(type).Bind(project).Bind(limit_per_line)));
    std::move(some.begin(), some.end(), std::back_inserter(jobs));
  }
  const auto earlier = [](const JobRecord& a, const JobRecord& b) {
    return a.sequence < b.sequence;
  };
  // As a rule they are: records are large to move.
  if (!std::is_sorted(jobs.begin(), jobs.end(), earlier)) {
    std::sort(jobs.begin(), jobs.end(), earlier);
  }
  return jobs;
}

absl::StatusOr<std::vector<JobRecord>> LiveJobs(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement list, db.Prepare("SELECT " SFT_JOB_COLUMNS
                                                  " FROM jobs WHERE state " SFT_HAS_LIVE_ATTEMPT
                                                  " ORDER BY sequence"));
  return ReadJobs(list);
}

absl::StatusOr<JobState> StateOf(Database& db, const std::string& id) {
  SFT_ASSIGN_OR_RETURN(Statement get, db.Prepare("SELECT state FROM jobs WHERE id = ?"));
  SFT_ASSIGN_OR_RETURN(const bool row, get.Bind(id).Step());
  if (!row) return NoJob(id);
  return static_cast<JobState>(get.Int(0));
}

absl::StatusOr<std::vector<int64_t>> CountJobsByState(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement count,
                       db.Prepare("SELECT state, count(*) FROM jobs GROUP BY state"));
  std::vector<int64_t> counts(8, 0);
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, count.Step());
    if (!row) return counts;
    counts.at(static_cast<size_t>(count.Int(0))) = count.Int(1);
  }
}

absl::Status TakeEdge(Database& db, JobRecord& job, JobState to, const std::string& reason,
                      int64_t now_us, int64_t happened_us) {
  if (!IsLegal(job.state, to)) {
    return FailedPrecondition(fmt::format("job {}: {} to {} is not a legal change of state", job.id,
                                          ToString(job.state), ToString(to)));
  }
  if (happened_us == 0) happened_us = now_us;
  if (to == JobState::kRunning) job.started_us = happened_us;
  if (IsTerminal(to)) job.ended_us = happened_us;
  SFT_ASSIGN_OR_RETURN(
      Statement update,
      db.Prepare("UPDATE jobs SET state = ?, reason = ?, attempt = ?, verdict = ?, "
                 "started_us = ?, ended_us = ? WHERE id = ? AND state = ?"));
  update.Bind(static_cast<int>(to)).Bind(reason).Bind(job.attempt).Bind(ToJson(job.verdict));
  update.Bind(job.started_us).Bind(job.ended_us).Bind(job.id).Bind(static_cast<int>(job.state));
  SFT_RETURN_IF_ERROR(update.Run());
  if (db.changes() != 1) {
    return FailedPrecondition(
        fmt::format("job {} is not {} any more", job.id, ToString(job.state)));
  }
  EventRecord event{0, now_us, "state", fmt::format("{} -> {}", ToString(job.state), ToString(to)),
                    job.attempt};
  if (!reason.empty()) event.message += ": " + reason;
  job.state = to;
  job.reason = reason;
  if (IsTerminal(to)) {
    const std::string domain(ToString(job.verdict.domain));
    SFT_RETURN_IF_ERROR(AddTally(db, {Tally::kJobsEnded, job.verdict.code, domain, 1}));
  }
  SFT_RETURN_IF_ERROR(TellEdge(db, job, now_us));
  return AddEvent(db, job.id, std::move(event));
}

absl::StatusOr<bool> SetReason(Database& db, const std::string& id, JobState state,
                               const std::string& reason, int64_t now_us, bool write_event) {
  SFT_ASSIGN_OR_RETURN(
      Statement update,
      db.Prepare("UPDATE jobs SET reason = ? WHERE id = ? AND state = ? AND reason != ?"));
  update.Bind(reason).Bind(id).Bind(static_cast<int>(state)).Bind(reason);
  SFT_RETURN_IF_ERROR(update.Run());
  if (db.changes() == 0) return false;
  if (write_event) SFT_RETURN_IF_ERROR(AddEvent(db, id, {0, now_us, "reason", reason, 0}));
  return true;
}

absl::Status RequestCancel(Database& db, const std::string& id, const std::string& reason,
                           bool checkpoint) {
  SFT_ASSIGN_OR_RETURN(Statement update,
                       db.Prepare("UPDATE jobs SET cancel_requested = 1, cancel_reason = ?, "
                                  "cancel_checkpoint = ? WHERE id = ?"));
  return update.Bind(reason).Bind(checkpoint).Bind(id).Run();
}

absl::Status SetRestart(Database& db, const JobRecord& job) {
  SFT_ASSIGN_OR_RETURN(
      Statement update,
      db.Prepare("UPDATE jobs SET restarts = ?, unknown_restarts = ?, idle_restarts = ?, "
                 "quick_restarts = ?, furthest_step = ?, saved_step = ?, not_before_us = ?, "
                 "avoid_node = ? WHERE id = ?"));
  const RestartState& state = job.restart;
  update.Bind(state.restarts).Bind(state.unknown_restarts).Bind(state.idle).Bind(state.quick);
  update.Bind(state.furthest_step).Bind(state.saved_step).Bind(job.not_before_us);
  return update.Bind(job.avoid_node).Bind(job.id).Run();
}

absl::Status AddEvent(Database& db, const std::string& job_id, EventRecord event) {
  SFT_ASSIGN_OR_RETURN(
      Statement insert,
      db.Prepare(
          "INSERT INTO events (job_id, sequence, time_us, type, message, attempt) SELECT ?, "
          "coalesce(max(sequence), 0) + 1, ?, ?, ?, ? FROM events WHERE job_id = ? RETURNING "
          "sequence"));
  insert.Bind(job_id).Bind(event.time_us).Bind(event.type).Bind(event.message).Bind(event.attempt);
  SFT_RETURN_IF_ERROR(insert.Bind(job_id).Step().status());
  const int64_t sequence = insert.Int(0);
  SFT_RETURN_IF_ERROR(insert.Run());
  return FeedJobEvent(db, job_id, sequence, event.time_us);
}

absl::StatusOr<std::vector<EventRecord>> ListEvents(Database& db, const std::string& job_id,
                                                    int64_t after, int limit) {
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT sequence, time_us, type, message, attempt FROM events WHERE "
                 "job_id = ? AND sequence > ? ORDER BY sequence LIMIT ?"));
  list.Bind(job_id).Bind(after).Bind(std::clamp(limit, 1, kMaxPage));
  std::vector<EventRecord> events;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return events;
    events.push_back(
        {list.Int(0), list.Int(1), list.Text(2), list.Text(3), static_cast<int>(list.Int(4))});
  }
}

}  // namespace sft::server::store
