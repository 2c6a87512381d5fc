#include "server/store/feed.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/store/job_lists.h"
#include "server/store/jobs.h"

namespace sft::server::store {
namespace {

// After each event: removes the oldest, some at once.
absl::Status Trim(Database& db) {
  db.NoteFeedChange();
  const int64_t newest = db.last_insert_rowid();
  if (newest % kFeedTrimmed != 0) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(Statement trim, db.Prepare("DELETE FROM feed WHERE sequence <= ?"));
  return trim.Bind(newest - kFeedKept).Run();
}

// 0: the feed is empty.
absl::StatusOr<int64_t> FirstInFeed(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement first, db.Prepare("SELECT min(sequence) FROM feed"));
  SFT_RETURN_IF_ERROR(first.Step().status());
  return first.Int(0);
}

}  // namespace

absl::Status FeedJobEvent(Database& db, const std::string& job_id, int64_t job_sequence,
                          int64_t time_us) {
  SFT_ASSIGN_OR_RETURN(Statement insert,
                       db.Prepare("INSERT INTO feed (time_us, project, job_id, job_sequence) "
                                  "SELECT ?, project, id, ? FROM jobs WHERE id = ?"));
  SFT_RETURN_IF_ERROR(insert.Bind(time_us).Bind(job_sequence).Bind(job_id).Run());
  return Trim(db);
}

absl::Status FeedOther(Database& db, const FeedEvent& event) {
  SFT_ASSIGN_OR_RETURN(Statement insert,
                       db.Prepare("INSERT INTO feed (time_us, project, subject, type, message) "
                                  "VALUES (?, ?, ?, ?, ?)"));
  insert.Bind(event.time_us).Bind(event.project).Bind(event.subject).Bind(event.type);
  SFT_RETURN_IF_ERROR(insert.Bind(event.message).Run());
  return Trim(db);
}

absl::StatusOr<int64_t> LastInFeed(Database& db) {
  SFT_ASSIGN_OR_RETURN(Statement last,
                       db.Prepare("SELECT seq FROM sqlite_sequence WHERE name = 'feed'"));
  SFT_ASSIGN_OR_RETURN(const bool row, last.Step());
  return row ? last.Int(0) : 0;
}

absl::StatusOr<FeedPage> ReadFeed(Database& db, const FeedFilter& filter) {
  FeedPage page;
  SFT_ASSIGN_OR_RETURN(page.last, LastInFeed(db));
  if (filter.after > page.last) {
    return absl::OutOfRangeError(
        fmt::format("after {}: the last event is {}; the server's database is another than that "
                    "which was read, begin anew",
                    filter.after, page.last));
  }
  SFT_ASSIGN_OR_RETURN(const int64_t first, FirstInFeed(db));
  if (filter.after > 0 && filter.after + 1 < first) {
    page.gap_first = filter.after + 1;
    page.gap_last = first - 1;
  }
  SFT_ASSIGN_OR_RETURN(
      Statement list,
      db.Prepare("SELECT f.sequence, f.time_us, f.project, f.job_id, f.job_sequence, f.subject, "
                 "coalesce(e.type, f.type), coalesce(e.message, f.message), coalesce(e.attempt, 0) "
                 "FROM feed f LEFT JOIN events e ON e.job_id = f.job_id AND e.sequence = "
                 "f.job_sequence WHERE f.sequence > ? AND (? = '' OR f.project = ?) AND (? = '' OR "
                 "f.project = '' OR f.project IN (SELECT value FROM json_each(?))) ORDER BY "
                 "f.sequence LIMIT ?"));
  const std::string visible = VisibleJson(filter.visible);
  const int limit = std::clamp(filter.limit, 1, kMaxPage);
  list.Bind(filter.after).Bind(filter.project).Bind(filter.project);
  list.Bind(visible).Bind(visible).Bind(limit);
  while (true) {
    SFT_ASSIGN_OR_RETURN(const bool row, list.Step());
    if (!row) break;
    page.events.push_back({list.Int(0), list.Int(1), list.Text(2), list.Text(3), list.Int(4),
                           list.Text(5), list.Text(6), list.Text(7),
                           static_cast<int>(list.Int(8))});
  }
  page.more = static_cast<int>(page.events.size()) == limit;
  if (page.more) page.last = page.events.back().sequence;
  return page;
}

}  // namespace sft::server::store
