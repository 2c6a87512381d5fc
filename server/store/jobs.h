#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/names.h"
#include "server/state/records.h"

// Rows of jobs, their files and events. Functions run on the store's thread, inside Store::Write or
// Store::Read. NOT_FOUND when a named row is not there.

namespace sft::server::store {

// Rows that a list returns at most, whatever was asked for.
inline constexpr int kMaxPage = 500;

// What a job has as JSON, as it is stored.
struct JobTexts {
  std::string spec;
  std::string resolved_values;
  std::string warnings;
};
JobTexts TextsOf(const JobRecord& job);
// Fills in sequence. INTERNAL for a job without its spec.
absl::Status InsertJob(Database& db, JobRecord& job, const JobTexts& texts,
                       const std::vector<JobFileRecord>& files);
absl::Status InsertJob(Database& db, JobRecord& job, const std::vector<JobFileRecord>& files);

// All below without what is large: source_text, spec, resolved_values.
absl::StatusOr<JobRecord> GetJob(Database& db, const std::string& id);
// Of the texts that a row has, those that are read; the others are empty.
struct JobColumns {
  bool reason = true, verdict = true, warnings = true, metadata = true;
};
absl::StatusOr<JobRecord> GetJob(Database& db, const std::string& id, const JobColumns& columns);
// Fills in source_text and resolved_values.
absl::Status ReadTexts(Database& db, JobRecord& job);
// The resolved job. DATA_LOSS says why it cannot be read: it is damaged, or of a newer server.
absl::StatusOr<spec::JobSpec> ReadSpec(Database& db, const JobRecord& job);
// Its JSON as it is stored, for the wire.
absl::StatusOr<std::string> ReadSpecText(Database& db, const JobRecord& job);
// JSON as it is stored.
std::string SpecText(const spec::JobSpec& spec);
// The NOT_FOUND of a job that is not there, or not to be seen.
absl::Status NoJob(const std::string& id);
// NOT_FOUND also for a job of another project than the one named.
absl::StatusOr<JobRecord> FindJob(Database& db, const JobRef& name);
absl::StatusOr<std::optional<JobRecord>> FindByRequestId(Database& db, const std::string& project,
                                                         const std::string& request);
// The newest job that the same request of the same owner has made since then.
absl::StatusOr<std::optional<JobRecord>> FindSameRequest(Database& db, const JobRecord& job,
                                                         int64_t since_us);
absl::StatusOr<std::vector<JobFileRecord>> FilesOfJob(Database& db, const std::string& id);

// PENDING jobs, of each slot type and project those of the highest classes and of these the oldest;
// all in order of submission.
absl::StatusOr<std::vector<JobRecord>> PendingJobs(Database& db, int limit_per_line);

// Jobs with an attempt that is not over.
absl::StatusOr<std::vector<JobRecord>> LiveJobs(Database& db);

// NOT_FOUND.
absl::StatusOr<JobState> StateOf(Database& db, const std::string& id);

// Jobs by state, for metrics: index is the state's number.
absl::StatusOr<std::vector<int64_t>> CountJobsByState(Database& db);

// Takes a legal edge: FAILED_PRECONDITION when the job is not in `job.state` any more or the edge
// is not in the table. Writes state, reason, attempt, verdict and times of `job`, and one event.
// Updates job.state. The only function that changes a job's state. `happened_us`: when a start or
// an end was that is heard of now; 0: now.
absl::Status TakeEdge(Database& db, JobRecord& job, JobState to, const std::string& reason,
                      int64_t now_us, int64_t happened_us = 0);

// Changes the reason alone of a job that is in `state`; an event is written when the text is new.
// Returns whether it was.
absl::StatusOr<bool> SetReason(Database& db, const std::string& id, JobState state,
                               const std::string& reason, int64_t now_us, bool write_event);

absl::Status RequestCancel(Database& db, const std::string& id, const std::string& reason,
                           bool checkpoint);
// Stores what DecideRestart said, with the time and the node that follow from it.
absl::Status SetRestart(Database& db, const JobRecord& job);

// Also to the feed (feed.h).
absl::Status AddEvent(Database& db, const std::string& job_id, EventRecord event);
// Events with a sequence above `after`.
absl::StatusOr<std::vector<EventRecord>> ListEvents(Database& db, const std::string& job_id,
                                                    int64_t after, int limit);

}  // namespace sft::server::store
