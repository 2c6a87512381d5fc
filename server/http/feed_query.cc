#include "server/http/feed_query.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "server/http/percent.h"

namespace sft::server {
namespace {

constexpr size_t kMostCursor = 2048;

// Reads numbers that `sign` separates, one for each of `into`. False: they are none.
template <typename... Numbers>
bool ReadNumbers(std::string_view text, char sign, Numbers&... into) {
  const char* at = text.data();
  const char* const end = at + text.size();
  bool first = true;
  const auto read = [&](auto& number) {
    if (!std::exchange(first, false) && (at == end || *at++ != sign)) return false;
    const auto [stop, error] = std::from_chars(at, end, number);
    at = stop;
    return error == std::errc() && number >= 0;
  };
  return (read(into) && ...) && at == end;
}

absl::Status Bad(std::string_view what, std::string_view value, std::string_view form) {
  return InvalidArgument(fmt::format("{}={}: {}", what, value.substr(0, 80), form));
}

absl::Status TakeName(const std::string& name, const std::string& value, FeedQuery& feed) {
  if (name == "job") {
    feed.job = value;
  } else if (name == "metrics") {
    if (!ReadNumbers(value, ':', feed.metrics.emplace())) {
      return Bad(name, value, "the index of the first point, 0 or more");
    }
  } else if (name == "log") {
    FeedQuery::Log& log = feed.logs.emplace_back(FeedQuery::Log());
    if (!ReadNumbers(value, ':', log.rank, log.offset)) {
      return Bad(name, value, "a rank and the offset of the first byte, as 0:0");
    }
    const auto same = [&](const FeedQuery::Log& each) { return each.rank == log.rank; };
    if (std::ranges::count_if(feed.logs, same) > 1) {
      return Bad(name, value, "each rank is named once");
    }
    if (feed.logs.size() > kMostFeedLogs) {
      return InvalidArgument(fmt::format("a feed follows up to {} logs", kMostFeedLogs));
    }
  } else if (name == "jobs" || name == "nodes") {
    if (value != "1" && value != "0") return Bad(name, value, "1 or 0");
    if (value == "1") (name == "jobs" ? feed.jobs : feed.nodes) = FeedQuery::List();
  } else if (name != "cursor") {
    return InvalidArgument(fmt::format(
        "\"{}\": there are job, metrics, log, jobs, nodes and cursor", name.substr(0, 80)));
  }
  return absl::OkStatus();
}

// "17@LIFE"
bool TakePlace(std::string_view text, std::string_view life, std::optional<FeedQuery::List>& list) {
  const size_t at = text.find('@');
  uint64_t place = 0;
  if (at == text.npos || !ReadNumbers(text.substr(0, at), ':', place)) return false;
  if (!list.has_value()) return true;
  list->place = place;
  list->lost = text.substr(at + 1) != life;
  return true;
}

bool TakeLog(std::string_view text, FeedQuery& feed) {
  FeedQuery::Log log;
  if (!ReadNumbers(text, ':', log.rank, log.attempt, log.offset)) return false;
  const auto named = std::ranges::find(feed.logs, log.rank, &FeedQuery::Log::rank);
  if (named != feed.logs.end()) *named = log;
  return true;
}

// What a cursor names and the query does not is left out: the page follows something else now.
absl::Status TakeCursor(std::string_view cursor, std::string_view life, FeedQuery& feed) {
  bool good = cursor.size() <= kMostCursor;
  while (good && !cursor.empty()) {
    const size_t end = cursor.find(';');
    const std::string_view part = cursor.substr(0, end);
    cursor.remove_prefix(end == cursor.npos ? cursor.size() : end + 1);
    const std::string_view value = part.substr(part.empty() ? 0 : 1);
    int64_t index = 0;
    switch (part.empty() ? '\0' : part.front()) {
      case 'm':
        good = ReadNumbers(value, ':', index);
        if (good && feed.metrics.has_value()) feed.metrics = index;
        break;
      case 'l':
        good = TakeLog(value, feed);
        break;
      case 'j':
        good = TakePlace(value, life, feed.jobs);
        break;
      case 'n':
        good = TakePlace(value, life, feed.nodes);
        break;
      default:
        good = false;
    }
  }
  if (good) return absl::OkStatus();
  return InvalidArgument("the cursor is none: pass on the id of the last message, unchanged");
}

}  // namespace

absl::StatusOr<FeedQuery> ReadFeedQuery(std::string_view query, std::string_view cursor,
                                        std::string_view life) {
  const auto values = ReadQuery(query);
  if (!values.has_value()) return InvalidArgument("the query cannot be read");
  FeedQuery feed;
  std::string given;
  for (const auto& [name, value] : *values) {
    SFT_RETURN_IF_ERROR(TakeName(name, value, feed));
    if (name == "cursor") given = value;
  }
  // Of the browser's own, which is newer.
  SFT_RETURN_IF_ERROR(TakeCursor(cursor.empty() ? given : cursor, life, feed));
  if (feed.job.empty() && (feed.metrics.has_value() || !feed.logs.empty())) {
    return InvalidArgument("metrics and log are of a job: name it, job=ID");
  }
  if (feed.job.empty() && !feed.jobs.has_value() && !feed.nodes.has_value()) {
    return InvalidArgument("say what to follow: job=ID, jobs=1 or nodes=1");
  }
  return feed;
}

std::string CursorOf(const FeedQuery& feed, std::string_view life) {
  std::string cursor;
  const auto add = [&](const std::string& part) { cursor += (cursor.empty() ? "" : ";") + part; };
  if (feed.metrics.has_value()) add(fmt::format("m{}", *feed.metrics));
  for (const FeedQuery::Log& log : feed.logs) {
    add(fmt::format("l{}:{}:{}", log.rank, log.attempt, log.offset));
  }
  if (feed.jobs.has_value()) add(fmt::format("j{}@{}", feed.jobs->place.value_or(0), life));
  if (feed.nodes.has_value()) add(fmt::format("n{}@{}", feed.nodes->place.value_or(0), life));
  return cursor;
}

}  // namespace sft::server
