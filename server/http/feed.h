#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/http/event_call.h"
#include "server/http/feed_query.h"

namespace sft::server {

// The one stream of a page: a job, its curve and its logs, and changes of the lists of jobs and
// nodes, in one call that counts as one stream. It is made of the followers of WatchJob,
// ReadMetrics and ReadLog, admitted as those are.
class Feed final : public Follower {
 public:
  // A message carries all points that are there, and a look all bytes of logs, up to these; the
  // logs that it has no room for are the first ones of the next look.
  static constexpr int kMostPoints = 5000;
  static constexpr size_t kMostLogBytes = 256 << 10;
  // Between two messages of a feed, on average, and between two that a list has changed.
  static constexpr std::chrono::milliseconds kPause{250};
  static constexpr std::chrono::seconds kListPause{1};

  // Starts one for a request. `life` names this life of the server.
  static void Start(EventCalls& calls, const Methods& methods, std::shared_ptr<HttpStream> stream,
                    WebCaller caller, FeedQuery query, const std::string& life);

  absl::StatusOr<Next> Look(Exchange& exchange) override;
  std::vector<std::string> keys() const override;

 private:
  // One follower of the job.
  struct Part {
    enum class Kind { kJob, kMetrics, kLog } kind = Kind::kJob;
    size_t log = 0;  // of FeedQuery::logs
    std::unique_ptr<Follower> follower;
    bool ended = false;
    std::string cut;  // the first bytes of a character of a log, whose others have not come
  };
  struct Told {
    MonoTime at{};
  };

  Feed(ChangeHub& hub, Store& store, CallContext& call, EventCall::Sink sink, FeedQuery query,
       std::string life)
      : hub_(hub),
        store_(store),
        call_(call),
        sink_(sink),
        query_(std::move(query)),
        life_(std::move(life)) {}
  absl::Status AddParts(const Methods& methods, Door& door);

  absl::StatusOr<Next> LookAt(Part& part);
  absl::StatusOr<Next> LookAtJob(Part& part);
  absl::StatusOr<Next> LookAtCurve(Part& part);
  absl::StatusOr<Next> LookAtLog(Part& part);
  void WriteLog(const FeedQuery::Log& log, std::string_view text, std::string_view more);
  absl::Status LookAtList(const char* list, FeedQuery::List& at, Told& told);
  absl::StatusOr<bool> Sees(const std::string& key) const;
  void Write(std::string_view name, std::string_view data);

  ChangeHub& hub_;
  Store& store_;
  CallContext& call_;
  EventCall::Sink sink_;
  FeedQuery query_;
  const std::string life_;
  std::vector<Part> parts_;  // those of logs are the last ones
  size_t log_bytes_ = 0;     // of this look
  Told jobs_, nodes_;
};

}  // namespace sft::server
