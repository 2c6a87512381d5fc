#include "server/store/job_lists.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "server/store/jobs.h"

namespace sft::server::store {
namespace {

// All that is asked for is there; none of it is missing.
std::string_view WithMetadata(const JobFilter& filter) {
  if (filter.without_metadata) return " AND metadata = '{}'";
  if (filter.metadata.empty()) return "";
  return " AND NOT EXISTS (SELECT 1 FROM json_each(?) asked WHERE NOT EXISTS (SELECT 1 FROM "
         "json_each(jobs.metadata) has WHERE has.key = asked.key AND has.value = asked.value))";
}

// Each word in one of them. A clause for each is four times as fast as to look through a list.
constexpr int kSearched = 5;
std::string WithWords(const JobFilter& filter) {
  std::string clauses;
  for (size_t i = 0; i < filter.words.size(); ++i) {
    clauses +=
        " AND (id LIKE ? ESCAPE '\\' OR display_name LIKE ? ESCAPE '\\' OR owner LIKE ? "
        "ESCAPE '\\' OR variant LIKE ? ESCAPE '\\' OR reason LIKE ? ESCAPE '\\')";
  }
  return clauses;
}

// Bits of states or kinds; none: all.
template <typename Number>
int64_t MaskOf(const std::vector<Number>& numbers) {
  int64_t mask = numbers.empty() ? -1 : 0;
  for (const Number number : numbers) mask |= int64_t{1} << static_cast<int>(number);
  return mask;
}

// What can be looked up in an index is in the statement where it is asked for alone; the rest
// always is, so that there are few statements.
std::string Conditions(const JobFilter& filter) {
  return fmt::format(
      "{}{}(? = '' OR project IN (SELECT value FROM json_each(?))) AND ((1 << state) & ?) != 0 AND "
      "(? = '' OR id IN (SELECT job_id FROM job_schedules WHERE sweep = ? AND sweep != '')) AND "
      "(? = '' OR id IN (SELECT job_id FROM job_schedules WHERE run_group = ? AND run_group != "
      "'')) "
      "AND (? = '' OR id LIKE ? ESCAPE '\\' OR display_name LIKE ? ESCAPE '\\') AND "
      "((1 << kind) & ?) != 0{}{}",
      filter.owner.empty() ? "" : "owner = ? AND ",
      filter.project.empty() ? "" : "project = ? AND ", WithMetadata(filter), WithWords(filter));
}

// A pattern of LIKE for a text anywhere.
std::string Anywhere(const std::string& text) {
  std::string pattern = "%";
  for (const char c : text) {
    if (c == '%' || c == '_' || c == '\\') pattern += '\\';
    pattern += c;
  }
  return pattern + "%";
}

void Bind(const JobFilter& filter, Statement& list) {
  if (!filter.owner.empty()) list.Bind(filter.owner);
  if (!filter.project.empty()) list.Bind(filter.project);
  const std::string visible = VisibleJson(filter.visible);
  list.Bind(visible).Bind(visible).Bind(MaskOf(filter.states) & MaskOf(filter.states_among));
  list.Bind(filter.sweep).Bind(filter.sweep).Bind(filter.group).Bind(filter.group);
  const std::string pattern = Anywhere(filter.query);
  list.Bind(filter.query).Bind(pattern).Bind(pattern);
  list.Bind(MaskOf(filter.kinds) & MaskOf(filter.kinds_among));
  if (!filter.without_metadata && !filter.metadata.empty()) {
    list.Bind(DumpJson(nlohmann::json(filter.metadata)));
  }
  for (const std::string& word : filter.words) {
    const std::string text = Anywhere(word);
    for (int i = 0; i < kSearched; ++i) list.Bind(text);
  }
}

const char* ColumnOf(JobOrder order) {
  switch (order) {
    case JobOrder::kStarted:
      return "started_us";
    case JobOrder::kEnded:
      return "ended_us";
    case JobOrder::kName:
      return "display_name COLLATE NOCASE";
    default:
      return nullptr;  // the sequence alone
  }
}

// "(started_us, sequence) < (?, ?)"; the whole list where there is no place yet.
std::string Behind(const JobFilter& filter) {
  if (!filter.after.has_value()) return "";
  const char* const column = ColumnOf(filter.order);
  const char* const sign = filter.descending ? "<" : ">";
  return column == nullptr ? fmt::format("sequence {} ? AND ", sign)
                           : fmt::format("({}, sequence) {} (?, ?) AND ", column, sign);
}

}  // namespace

std::string VisibleJson(const std::optional<std::vector<std::string>>& projects) {
  if (!projects.has_value()) return "";
  // Names of projects need no escapes (IsValidLabel).
  return projects->empty() ? "[]" : fmt::format("[\"{}\"]", fmt::join(*projects, "\",\""));
}

JobPlace PlaceOf(const JobRecord& job, JobOrder order) {
  JobPlace place{.sequence = job.sequence, .name = ""};
  if (order == JobOrder::kStarted) place.time_us = job.started_us;
  if (order == JobOrder::kEnded) place.time_us = job.ended_us;
  if (order == JobOrder::kName) place.name = job.display_name;
  return place;
}

absl::StatusOr<std::vector<JobRecord>> ListJobs(Database& db, const JobFilter& filter,
                                                const JobColumns& columns) {
  const char* const column = ColumnOf(filter.order);
  const char* const direction = filter.descending ? " DESC" : "";
  const std::string order = column == nullptr
                                ? fmt::format("sequence{}", direction)
                                : fmt::format("{}{}, sequence{}", column, direction, direction);
  const std::string sql = fmt::format("SELECT id FROM jobs WHERE {}{} ORDER BY {} LIMIT ?",
                                      Behind(filter), Conditions(filter), order);
  SFT_ASSIGN_OR_RETURN(Statement list, db.Prepare(sql.c_str()));
  if (filter.after.has_value()) {
    if (filter.order == JobOrder::kName) {
      list.Bind(filter.after->name);
    } else if (column != nullptr) {
      list.Bind(filter.after->time_us);
    }
    list.Bind(filter.after->sequence);
  }
  Bind(filter, list);
  list.Bind(std::clamp(filter.limit, 1, kMaxPage));
  std::vector<JobRecord> jobs;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) return jobs;
    SFT_ASSIGN_OR_RETURN(JobRecord job, GetJob(db, list.Text(0), columns));
    jobs.push_back(std::move(job));
  }
}

absl::StatusOr<int> CountJobs(Database& db, const JobFilter& filter, int most) {
  const std::string sql =
      fmt::format("SELECT count(*) FROM (SELECT 1 FROM jobs WHERE {} LIMIT ?)", Conditions(filter));
  SFT_ASSIGN_OR_RETURN(Statement count, db.Prepare(sql.c_str()));
  Bind(filter, count);
  SFT_RETURN_IF_ERROR(count.Bind(most).Step().status());
  return static_cast<int>(count.Int(0));
}

}  // namespace sft::server::store
