// The page's feed over followers of the test's own.

#include "server/http/feed.h"

#include <gtest/gtest.h>

#include <thread>

#include "sft/v1/job_service.pb.h"
#include "tests/unit/server/http/http_client.h"

namespace sft::server {
namespace {

// Has news at each look.
class RestlessJob final : public Follower {
 public:
  absl::StatusOr<Next> Look(Exchange& exchange) override {
    exchange.Write(v1::Job());
    return Next::kWait;
  }
  std::vector<std::string> keys() const override { return {}; }
};

// A log without end.
class EndlessLog final : public Follower {
 public:
  absl::StatusOr<Next> Look(Exchange& exchange) override {
    v1::ReadLogResponse answer;
    answer.set_attempt(1);
    answer.set_offset(offset_);
    answer.set_data(std::string(Feed::kMostLogBytes, 'x'));
    offset_ += static_cast<int64_t>(answer.data().size());
    exchange.Write(answer);
    return Next::kAgain;
  }
  std::vector<std::string> keys() const override { return {}; }

 private:
  int64_t offset_ = 0;
};

struct FakeJobs {
  absl::StatusOr<std::unique_ptr<Follower>> WatchJob(CallContext&, const v1::WatchJobRequest&) {
    return std::make_unique<RestlessJob>();
  }
  absl::StatusOr<std::unique_ptr<Follower>> ReadLog(CallContext&, const v1::ReadLogRequest&) {
    return std::make_unique<EndlessLog>();
  }
};

class FeedTest : public testing::Test {
 protected:
  FeedTest() {
    const auto rule = [](const char* method) {
      return Rule{method, Caller::kUser, Role::kViewer, Place::kAny};
    };
    methods_.Follow(rule("JobService.WatchJob"), &jobs_, &FakeJobs::WatchJob);
    methods_.Follow(rule("JobService.ReadLog"), &jobs_, &FakeJobs::ReadLog);
    calls_.lookers.Start();
  }
  ~FeedTest() override {
    server_.reset();
    while (calls_.live > 0) std::this_thread::yield();
    calls_.lookers.Stop();
  }

  Clock& clock_ = Clock::Real();
  const std::unique_ptr<Store> store_ =
      Store::Open({.path = ":memory:", .own_thread = false}).value();
  const std::unique_ptr<Access> access_ = Access::Load(*store_, clock_, std::nullopt).value();
  Gate gate_{*access_, *store_, clock_, /*open=*/true};
  Door door_{gate_};
  ChangeHub hub_;
  WebSessions sessions_{clock_};
  FakeJobs jobs_;
  Methods methods_;
  EventCalls calls_{door_, hub_, sessions_, clock_};
  FakeHandler handler_{[this](std::shared_ptr<HttpStream> stream) {
    const FeedQuery query = ReadFeedQuery(stream->request().query, "", "life").value();
    Feed::Start(calls_, methods_, std::move(stream), {}, query, "life");
  }};
  std::unique_ptr<HttpServer> server_ = HttpServer::Start({"127.0.0.1", 0}, handler_).value();
};

// As many bytes as it was one log's would make a look of 16 logs 4 MiB, and six times that of
// control characters.
TEST_F(FeedTest, ALookSendsSoMuchOfAllLogsTogetherAndEachHasItsTurn) {
  const io::UniqueFd feed = Dial(server_->port());
  Send(feed, Get("/api/v1/feed?job=job-x&log=0:0&log=1:0&log=2:0"));
  std::string told;
  const auto count = [&](std::string_view text) {
    int found = 0;
    for (size_t at = 0; (at = told.find(text, at)) != told.npos; ++at) ++found;
    return found;
  };
  std::string looks, ranks;
  while (count("\"next\":") < 4) {
    const std::string more = ReadThrough(feed, "\n");
    if (more.empty()) break;
    told += more;
  }
  for (size_t at = 0; (at = told.find("event: ", at)) != told.npos; ++at) {
    looks += told.substr(at + 7, 1);
  }
  for (size_t at = 0; (at = told.find("\"rank\":", at)) != told.npos; ++at) {
    ranks += told.substr(at + 7, 1);
  }
  EXPECT_EQ(looks.substr(0, 8), "jljljljl");  // the job's news, which each look has, and a log
  EXPECT_EQ(ranks.substr(0, 4), "0120");
}

}  // namespace
}  // namespace sft::server
