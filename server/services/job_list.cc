#include "server/services/job_list.h"

#include <absl/strings/escaping.h>
#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "server/door/page_token.h"
#include "server/services/job_words.h"
#include "server/store/jobs.h"

namespace sft::server {
namespace {

using store::JobFilter;
using store::JobOrder;
using store::JobPlace;

constexpr size_t kMaxQuery = 200;

struct OrderName {
  std::string_view name;
  JobOrder order;
  char letter;  // of its page tokens; a capital one where it descends
};
constexpr OrderName kOrders[] = {{"submitted", JobOrder::kSubmitted, 's'},
                                 {"started", JobOrder::kStarted, 't'},
                                 {"ended", JobOrder::kEnded, 'e'},
                                 {"name", JobOrder::kName, 'n'}};

absl::Status SetOrder(std::string_view text, JobFilter& filter) {
  constexpr std::string_view kDescending = " desc", kAscending = " asc";
  if (text.empty()) return absl::OkStatus();
  std::string_view name = text;
  filter.descending = name.ends_with(kDescending);
  if (filter.descending) {
    name.remove_suffix(kDescending.size());
  } else if (name.ends_with(kAscending)) {
    name.remove_suffix(kAscending.size());
  }
  for (const OrderName& each : kOrders) {
    if (each.name != name) continue;
    filter.order = each.order;
    return absl::OkStatus();
  }
  return InvalidArgument(
      fmt::format("order_by \"{}\": must be submitted, started, ended or name, with \" desc\" "
                  "behind it for the other direction",
                  text.substr(0, 80)));
}

char LetterOf(const JobFilter& filter) {
  for (const OrderName& each : kOrders) {
    if (each.order == filter.order) {
      return static_cast<char>(filter.descending ? each.letter - 'a' + 'A' : each.letter);
    }
  }
  return 0;
}

bool IsNewestFirst(const JobFilter& filter) {
  return filter.order == JobOrder::kSubmitted && filter.descending;
}

// "T2f.63a1": the order's letter, the sequence and what the order is by.
absl::StatusOr<JobPlace> ParsePlace(const std::string& token, const JobFilter& filter) {
  const absl::Status refused =
      InvalidArgument("page_token: pass on the token of the page before, with the same order_by");
  const auto read = [](std::string_view text, int64_t& number) {
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
    return error == std::errc() && stop == text.data() + text.size() && number >= 0;
  };
  JobPlace place;
  const size_t dot = token.find('.');
  if (token[0] != LetterOf(filter) || dot == token.npos ||
      !read(std::string_view(token).substr(1, dot - 1), place.sequence)) {
    return refused;
  }
  const std::string key = token.substr(dot + 1);
  if (filter.order == JobOrder::kName) {
    if (key.size() % 2 != 0 || key.find_first_not_of("0123456789abcdef") != key.npos) {
      return refused;
    }
    place.name = absl::HexStringToBytes(key);
  } else if (!read(key, place.time_us)) {
    return refused;
  }
  return place;
}

}  // namespace

absl::StatusOr<JobFilter> FilterOf(const v1::ListJobsRequest& request,
                                   std::optional<std::vector<std::string>> visible) {
  JobFilter filter;
  SFT_ASSIGN_OR_RETURN(filter.limit, PageSize(request.page_size(), store::kMaxPage));
  SFT_RETURN_IF_ERROR(SetOrder(request.order_by(), filter));
  if (IsNewestFirst(filter)) {
    SFT_ASSIGN_OR_RETURN(const int64_t sequence, FromToken(request.page_token()));
    if (sequence > 0) filter.after = JobPlace{.sequence = sequence, .name = ""};
  } else if (!request.page_token().empty()) {
    SFT_ASSIGN_OR_RETURN(filter.after, ParsePlace(request.page_token(), filter));
  }
  if (request.query().size() > kMaxQuery) {
    return InvalidArgument(fmt::format("query: has {} bytes; at most {} are taken",
                                       request.query().size(), kMaxQuery));
  }
  filter.query = request.query();
  filter.project = request.project();
  filter.owner = request.owner();
  filter.sweep = request.sweep();
  filter.group = request.group();
  filter.metadata.insert(request.metadata().begin(), request.metadata().end());
  filter.without_metadata = request.without_metadata();
  if (filter.without_metadata && !filter.metadata.empty()) {
    return InvalidArgument("without_metadata: no job has metadata and has none");
  }
  if (!request.after().empty() && !request.page_token().empty()) {
    return InvalidArgument("after: a page begins behind a job or at a page_token, not both");
  }
  for (const int kind : request.kinds()) {
    if (!v1::Job::Kind_IsValid(kind)) {
      return InvalidArgument(fmt::format("kinds: {} is no kind of job", kind));
    }
    filter.kinds.push_back(kind);
  }
  filter.visible = std::move(visible);
  SFT_RETURN_IF_ERROR(AddWords(request.filter(), filter));
  for (const int state : request.states()) {
    if (!v1::Job::State_IsValid(state)) {
      return InvalidArgument(fmt::format("states: {} is no state of a job", state));
    }
    filter.states.push_back(static_cast<JobState>(state));
  }
  return filter;
}

std::string TokenOf(const JobFilter& filter, const std::optional<JobPlace>& next) {
  if (!next.has_value()) return "";
  if (IsNewestFirst(filter)) return ToToken(next->sequence);
  const std::string key = filter.order == JobOrder::kName ? absl::BytesToHexString(next->name)
                                                          : fmt::format("{:x}", next->time_us);
  return fmt::format("{}{:x}.{}", LetterOf(filter), next->sequence, key);
}

}  // namespace sft::server
