#include "server/http/feed.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "common/base/utf8.h"
#include "server/http/rest_json.h"
#include "server/store/tenancy.h"
#include "sft/v1/cluster_service.pb.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {
namespace {

constexpr char kWatchJob[] = "JobService.WatchJob", kReadMetrics[] = "JobService.ReadMetrics",
               kReadLog[] = "JobService.ReadLog", kListJobs[] = "JobService.ListJobs",
               kListNodes[] = "ClusterService.ListNodes";

// A call within this process: its request is there, and what is written is kept.
template <typename Answer>
class Within final : public Exchange {
 public:
  explicit Within(const google::protobuf::Message* request = nullptr) : request_(request) {}
  const CallOrigin& origin() const override { return origin_; }
  absl::StatusOr<bool> Read(google::protobuf::Message& message) override {
    message.CopyFrom(*request_);
    return true;
  }
  bool Write(const google::protobuf::Message& message) override {
    answers.push_back(static_cast<const Answer&>(message));
    return true;
  }
  bool Gone() const override { return false; }

  std::vector<Answer> answers;

 private:
  const google::protobuf::Message* const request_;
  const CallOrigin origin_;
};

// How many bytes at the end of a text begin a character whose others have not come.
size_t CutOff(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return 0;
    if (byte < 0xc0) continue;  // inside of one
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    return length > back ? back : 0;
  }
  return 0;
}

template <typename Request>
absl::StatusOr<std::unique_ptr<Follower>> Follow(const Methods& methods, const char* method,
                                                 Door& door, CallContext& call,
                                                 const Request& request) {
  Within<Request> within(&request);
  return methods.Find(method)->follow(door, call, within);
}

}  // namespace

void Feed::Start(EventCalls& calls, const Methods& methods, std::shared_ptr<HttpStream> stream,
                 WebCaller caller, FeedQuery query, const std::string& life) {
  // What the caller is asked for first; admission of the parts asks for theirs.
  const char* const first = !query.job.empty()       ? kWatchJob
                            : query.jobs.has_value() ? kListJobs
                                                     : kListNodes;
  const auto make = [&](EventCall::Sink sink) {
    Method method{methods.Find(first)->rule, Method::Kind::kFollow, nullptr, nullptr};
    method.follow = [&calls, &methods, query, life, sink](
                        Door& door, CallContext& call,
                        Exchange&) -> absl::StatusOr<std::unique_ptr<Follower>> {
      std::unique_ptr<Feed> feed(new Feed(calls.hub, door.gate().store(), call, sink, query, life));
      SFT_RETURN_IF_ERROR(feed->AddParts(methods, door));
      return feed;
    };
    return method;
  };
  EventCall::Start(calls, std::move(stream), std::move(caller), make, kPause);
}

absl::Status Feed::AddParts(const Methods& methods, Door& door) {
  for (FeedQuery::List* list :
       {query_.jobs ? &*query_.jobs : nullptr, query_.nodes ? &*query_.nodes : nullptr}) {
    // From now on: who shows a list asks for it after this.
    if (list != nullptr && !list->place) list->place = hub_.ChangesSince("", UINT64_MAX).place;
  }
  if (query_.job.empty()) {
    const v1::ListJobsRequest request;
    return door.AdmitRequest(call_, true, request, request);
  }
  v1::WatchJobRequest watch;
  watch.set_name(query_.job);
  parts_.emplace_back();
  SFT_ASSIGN_OR_RETURN(parts_.back().follower, Follow(methods, kWatchJob, door, call_, watch));
  if (query_.metrics.has_value()) {
    v1::ReadMetricsRequest request;
    request.set_name(query_.job);
    request.set_index(*query_.metrics);
    request.set_follow(true);
    Part& part = parts_.emplace_back();
    part.kind = Part::Kind::kMetrics;
    SFT_ASSIGN_OR_RETURN(part.follower, Follow(methods, kReadMetrics, door, call_, request));
  }
  for (size_t i = 0; i < query_.logs.size(); ++i) {
    v1::ReadLogRequest request;
    request.set_name(query_.job);
    request.set_rank(query_.logs[i].rank);
    request.set_attempt(query_.logs[i].attempt);
    request.set_offset(query_.logs[i].offset);
    request.set_follow(true);
    request.set_next_attempts(true);
    Part& part = parts_.emplace_back();
    part.kind = Part::Kind::kLog;
    part.log = i;
    SFT_ASSIGN_OR_RETURN(part.follower, Follow(methods, kReadLog, door, call_, request));
  }
  return absl::OkStatus();
}

std::vector<std::string> Feed::keys() const {
  std::vector<std::string> keys;
  for (const Part& part : parts_) {
    if (part.ended) continue;
    for (std::string& key : part.follower->keys()) keys.push_back(std::move(key));
  }
  if (query_.jobs.has_value()) keys.emplace_back(ChangeHub::kJobs);
  if (query_.nodes.has_value()) keys.emplace_back(ChangeHub::kNodes);
  std::ranges::sort(keys);
  keys.erase(std::ranges::unique(keys).begin(), keys.end());
  return keys;
}

absl::StatusOr<Follower::Next> Feed::Look(Exchange&) {
  Next next = Next::kWait;
  log_bytes_ = 0;
  auto left_out = parts_.end();
  for (auto part = parts_.begin(); part != parts_.end(); ++part) {
    if (part->ended) continue;
    if (part->kind == Part::Kind::kLog && log_bytes_ >= kMostLogBytes) {
      left_out = std::min(left_out, part);
      continue;
    }
    SFT_ASSIGN_OR_RETURN(const Next of_part, LookAt(*part));
    part->ended = of_part == Next::kEnd;
    if (of_part == Next::kAgain) next = Next::kAgain;
  }
  if (left_out != parts_.end()) {
    std::rotate(std::ranges::find(parts_, Part::Kind::kLog, &Part::kind), left_out, parts_.end());
    next = Next::kAgain;
  }
  if (!parts_.empty() && std::ranges::all_of(parts_, &Part::ended)) return Next::kEnd;
  if (query_.jobs.has_value()) {
    SFT_RETURN_IF_ERROR(LookAtList(ChangeHub::kJobs, *query_.jobs, jobs_));
  }
  if (query_.nodes.has_value()) {
    SFT_RETURN_IF_ERROR(LookAtList(ChangeHub::kNodes, *query_.nodes, nodes_));
  }
  return next;
}

absl::StatusOr<Follower::Next> Feed::LookAt(Part& part) {
  switch (part.kind) {
    case Part::Kind::kMetrics:
      return LookAtCurve(part);
    case Part::Kind::kLog:
      return LookAtLog(part);
    default:
      return LookAtJob(part);
  }
}

absl::StatusOr<Follower::Next> Feed::LookAtJob(Part& part) {
  Within<v1::Job> within;
  SFT_ASSIGN_OR_RETURN(const Next next, part.follower->Look(within));
  if (!within.answers.empty()) Write("job", JsonOf(within.answers.back()));
  return next;
}

absl::StatusOr<Follower::Next> Feed::LookAtCurve(Part& part) {
  Within<v1::ReadMetricsResponse> within;
  Next next = Next::kAgain;
  std::string points;
  for (int count = 0; next == Next::kAgain && count < kMostPoints;) {
    SFT_ASSIGN_OR_RETURN(next, part.follower->Look(within));
    for (const v1::ReadMetricsResponse& answer : within.answers) {
      query_.metrics = answer.next_index();
      for (const v1::Metric& point : answer.metrics()) {
        points += (points.empty() ? "" : ",") + JsonOf(point);
        ++count;
      }
    }
    if (within.answers.empty()) break;
    within.answers.clear();
  }
  if (!points.empty()) {
    Write("metrics", fmt::format(R"({{"points":[{}],"next":{}}})", points, *query_.metrics));
  }
  return next;
}

absl::StatusOr<Follower::Next> Feed::LookAtLog(Part& part) {
  FeedQuery::Log& at = query_.logs[part.log];
  Within<v1::ReadLogResponse> within;
  Next next = Next::kAgain;
  std::string text = std::move(part.cut), gap;
  at.offset += static_cast<int64_t>(text.size());
  while (next == Next::kAgain && log_bytes_ < kMostLogBytes && gap.empty()) {
    const auto looked = part.follower->Look(within);
    if (absl::IsNotFound(looked.status()) || absl::IsOutOfRange(looked.status())) {
      // Of a rank that this attempt has not, or a log that was removed: the others go on.
      WriteLog(at, text, fmt::format(R"(,"error":{})", QuotedJson(Message(looked.status()))));
      return Next::kEnd;
    }
    SFT_RETURN_IF_ERROR(looked.status());
    next = *looked;
    if (within.answers.empty()) break;
    const v1::ReadLogResponse answer = within.answers.back();
    within.answers.clear();
    if (answer.attempt() != at.attempt && !text.empty()) WriteLog(at, std::exchange(text, ""), "");
    if (answer.has_gap()) {
      gap = fmt::format(R"(,"gap":{{"begin":{},"end":{}}})", answer.gap().begin(),
                        answer.gap().end());
    }
    text += answer.data();
    log_bytes_ += answer.data().size();
    at.attempt = answer.attempt();
    at.offset = answer.offset() + static_cast<int64_t>(answer.data().size());
  }
  const size_t cut = next == Next::kEnd ? 0 : CutOff(text);
  part.cut = text.substr(text.size() - cut);
  text.erase(text.size() - cut);
  at.offset -= static_cast<int64_t>(cut);  // the cursor stands before what is kept back
  if (!text.empty() || !gap.empty()) WriteLog(at, text, gap);
  return next;
}

void Feed::WriteLog(const FeedQuery::Log& log, std::string_view text, std::string_view more) {
  Write("log", fmt::format(R"({{"rank":{},"attempt":{},"text":{},"next":{}{}}})", log.rank,
                           log.attempt, QuotedJson(ToUtf8(text)), log.offset, more));
}

absl::Status Feed::LookAtList(const char* list, FeedQuery::List& at, Told& told) {
  if (told.at != MonoTime() && sink_.now() < told.at + kListPause) {
    sink_.LookAt(told.at + kListPause);
    return absl::OkStatus();
  }
  const ChangeHub::Changes changes = hub_.ChangesSince(list, *at.place);
  bool all = std::exchange(at.lost, false) || !changes.complete;
  at.place = changes.place;
  std::vector<std::string> seen;
  for (const std::string& key : changes.keys) {
    all = all || key == ChangeHub::kSomeNode;  // one that nobody has named
    SFT_ASSIGN_OR_RETURN(const bool sees, Sees(key));
    if (sees) seen.push_back(QuotedJson(key));
  }
  if (!all && seen.empty()) return absl::OkStatus();
  if (all) seen.clear();  // whatever there is may have changed
  told.at = sink_.now();
  Write(list, fmt::format(R"({{"changed":[{}]}})", fmt::join(seen, ",")));
  return absl::OkStatus();
}

absl::StatusOr<bool> Feed::Sees(const std::string& key) const {
  if (key.starts_with("nodes/") || call_.caller().admin) return true;
  std::string project;
  const absl::Status found = store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(project, store::ProjectOfJob(db, key));
    return absl::OkStatus();
  });
  if (absl::IsNotFound(found)) return false;
  SFT_RETURN_IF_ERROR(found);
  return call_.caller().RoleIn(project) >= Role::kViewer;
}

void Feed::Write(std::string_view name, std::string_view data) {
  sink_.Write(name, CursorOf(query_, life_), data);
}

}  // namespace sft::server
