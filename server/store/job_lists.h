#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/database/sqlite.h"
#include "server/state/records.h"
#include "server/store/jobs.h"

// Lists of jobs: filters, orders and counts. As jobs.h.

namespace sft::server::store {

// What jobs are ordered by; those that are equal in it by their submits.
enum class JobOrder { kSubmitted, kStarted, kEnded, kName };

// A job's place in an order, which stays where it is however many jobs are added or removed.
struct JobPlace {
  int64_t sequence = 0;
  int64_t time_us = 0;  // kStarted, kEnded
  std::string name;     // kName
};
JobPlace PlaceOf(const JobRecord& job, JobOrder order);

// Which jobs a listing shows.
struct JobFilter {
  std::vector<JobState> states;  // empty: all
  std::string project;           // empty: all
  std::string owner;             // empty: all
  std::string sweep;             // empty: all
  std::string group;             // empty: all
  // Text in the id or the name, ASCII letters of either case; empty: all.
  std::string query;
  // Each of these in the id, the name, the owner, the variant or the reason; case as in `query`.
  // Few: statements are kept by their number.
  std::vector<std::string> words;
  std::map<std::string, std::string> metadata;  // all of these; empty: whatever they have
  bool without_metadata = false;                // in place of that: none
  std::vector<int> kinds;                       // sft.v1.Job.Kind; empty: all
  // Of `states` and `kinds` those that are here too; empty: all.
  std::vector<JobState> states_among;
  std::vector<int> kinds_among;
  // Projects whose jobs may be seen; absent: all.
  std::optional<std::vector<std::string>> visible;
  JobOrder order = JobOrder::kSubmitted;
  bool descending = true;
  std::optional<JobPlace> after;  // absent: from the first
  int limit = 50;
};
absl::StatusOr<std::vector<JobRecord>> ListJobs(Database& db, const JobFilter& filter,
                                                const JobColumns& columns = {});

// Names of projects as a JSON array, for json_each; empty: all.
std::string VisibleJson(const std::optional<std::vector<std::string>>& projects);

// Those that the filter lets through, whatever its place and limit: `most` at most.
absl::StatusOr<int> CountJobs(Database& db, const JobFilter& filter, int most);

}  // namespace sft::server::store
