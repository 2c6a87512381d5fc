// The feed of events (server/store/feed.h): a page of it, and who follows it.

#include "server/core/change_hub.h"
#include "server/core/convert.h"
#include "server/door/page_token.h"
#include "server/services/cluster_service.h"
#include "server/state/names.h"
#include "server/store/feed.h"
#include "server/store/jobs.h"

namespace sft::server {
namespace {

v1::ListClusterEventsResponse ToProto(const store::FeedPage& page) {
  v1::ListClusterEventsResponse response;
  response.set_last_sequence(page.last);
  response.set_more(page.more);
  if (page.gap_last > 0) {
    response.mutable_gap()->set_first(page.gap_first);
    response.mutable_gap()->set_last(page.gap_last);
  }
  for (const store::FeedEvent& event : page.events) {
    v1::ClusterEvent& added = *response.add_events();
    added.set_sequence(event.sequence);
    *added.mutable_time() = ToTimestamp(event.time_us);
    added.set_subject(event.job_id.empty() ? event.subject : JobName(event.project, event.job_id));
    added.set_type(event.type);
    added.set_message(event.message);
    added.set_attempt(event.attempt);
    added.set_job_sequence(event.job_sequence);
  }
  return response;
}

absl::StatusOr<store::FeedPage> Read(Store& store, const store::FeedFilter& filter) {
  store::FeedPage page;
  SFT_RETURN_IF_ERROR(store.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(page, store::ReadFeed(db, filter));
    return absl::OkStatus();
  }));
  return page;
}

// All events from one on, without an end.
class FeedFollower final : public Follower {
 public:
  FeedFollower(Store& store, const CallContext& call, store::FeedFilter filter)
      : store_(store), call_(call), filter_(std::move(filter)) {}

  absl::StatusOr<Next> Look(Exchange& exchange) override {
    filter_.visible = call_.Visible();  // roles may have changed
    SFT_ASSIGN_OR_RETURN(const store::FeedPage page, Read(store_, filter_));
    filter_.after = page.last;
    if (!told_ || !page.events.empty() || page.gap_last > 0) exchange.Write(ToProto(page));
    told_ = true;
    return page.more ? Next::kAgain : Next::kWait;
  }
  std::vector<std::string> keys() const override { return {kFeedKey}; }

 private:
  Store& store_;
  const CallContext& call_;
  store::FeedFilter filter_;  // moves on
  bool told_ = false;
};

absl::Status CheckAfter(int64_t after) {
  if (after >= 0) return absl::OkStatus();
  return InvalidArgument("after: is the sequence of an event, or 0");
}

}  // namespace

absl::StatusOr<v1::ListClusterEventsResponse> ClusterService::ListClusterEvents(
    CallContext& call, const v1::ListClusterEventsRequest& request) {
  SFT_RETURN_IF_ERROR(CheckAfter(request.after()));
  store::FeedFilter filter;
  SFT_ASSIGN_OR_RETURN(filter.limit, PageSize(request.page_size(), store::kMaxPage));
  filter.after = request.after();
  filter.project = request.project();
  filter.visible = call.Visible();
  SFT_ASSIGN_OR_RETURN(const store::FeedPage page, Read(store_, filter));
  return ToProto(page);
}

absl::StatusOr<std::unique_ptr<Follower>> ClusterService::WatchClusterEvents(
    CallContext& call, const v1::WatchClusterEventsRequest& request) {
  SFT_RETURN_IF_ERROR(CheckAfter(request.after()));
  store::FeedFilter filter;
  filter.after = request.after();
  filter.project = request.project();
  filter.limit = store::kMaxPage;
  if (!request.has_after()) {
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(filter.after, store::LastInFeed(db));
      return absl::OkStatus();
    }));
  }
  return std::make_unique<FeedFollower>(store_, call, std::move(filter));
}

}  // namespace sft::server
