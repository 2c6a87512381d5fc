#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/base/connection.h"
#include "client/top/calls.h"
#include "sft/v1/cluster_service.pb.h"
#include "sft/v1/job_service.pb.h"

namespace sft::client::top {

enum class Page { kJobs, kNodes, kQueue, kJob };
// What of a job is in sight.
enum class Tab { kCurve, kRanks, kLog, kEvents };

// What a page asks the server for.
struct Query {
  Page page = Page::kJobs;
  // For jobs, ListJobsRequest.filter; for nodes, text that is in their names.
  std::string filter;
  // Lists have all fields of jobs, not only those that the pages show.
  bool whole = false;
  std::string order = "submitted desc";
  // Of a job.
  std::string job;
  Tab tab = Tab::kCurve;
  std::string value = "loss";
  std::optional<double> begin, end;  // steps
  int parts = 200;                   // of a curve, as many as a terminal has columns

  bool operator==(const Query&) const = default;
};

// What the server has answered.
struct Snapshot {
  Query query;
  // Not OK: the server cannot be reached or refuses; the rest is what it answered before.
  absl::Status status = absl::UnknownError("not asked yet");
  WallTime time{};  // of the last answer

  std::vector<v1::Job> jobs;      // active ones first, then those that have ended
  int64_t active = 0, ended = 0;  // that match, beyond those that are listed
  std::vector<v1::Node> nodes;
  std::string warning;  // the server's, for operators

  std::optional<v1::Job> job;
  v1::Curve curve;
  std::vector<std::string> log;  // its last lines
  std::vector<v1::JobEvent> events;
};

// Jobs that a page lists at most, and lines of a log and events.
inline constexpr int kMaxJobs = 200, kMaxLines = 200;

// What the list of a page asks for.
v1::ListJobsRequest RequestOf(const Query& query);

// Asks for what `query` names, into `snapshot`. On an error `snapshot` is as before, but for its
// status.
void Fetch(Calls& calls, const Query& query, Snapshot& snapshot);

// Something that changes a job.
struct Action {
  enum class Kind { kNone, kCancel, kHold, kRelease, kCheckpoint } kind = Kind::kNone;
  std::string job;  // its name

  // "sftctl cancel job-abc"
  std::string Command() const;
};
absl::Status Do(Calls& calls, const Action& action);

}  // namespace sft::client::top
