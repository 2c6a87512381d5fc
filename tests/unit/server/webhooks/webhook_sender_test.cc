#include "server/webhooks/webhook_sender.h"

#include <sys/stat.h>

#include <algorithm>
#include <future>

#include "server/fleet/node_holds.h"
#include "server/store/webhook_events.h"
#include "server/stored/housekeeping.h"
#include "tests/unit/server/webhooks/webhook_fixture.h"

namespace sft::server {
namespace {

// The example of the specification, computed by its Python library.
TEST(SignWebhookTest, SignsAsStandardWebhooksDo) {
  const std::string secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
  const std::string one = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
  const auto sign = [&](const std::vector<std::string>& secrets) {
    return SignWebhook(secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330,
                       "{\"test\": 2432232314}");
  };
  EXPECT_EQ(sign({secret}), one);
  const std::string two = sign({secret, MakeWebhookSecret()});
  EXPECT_EQ(two.find(one + " v1,"), 0u) << two;
  EXPECT_EQ(two.size(), 2 * one.size() + 1);
}

TEST(SignWebhookTest, ASecretIsNewAndLongEach) {
  const std::string secret = MakeWebhookSecret();
  EXPECT_EQ(secret.find("whsec_"), 0u);
  EXPECT_EQ(secret.size(), 6u + 44) << "32 bytes in base64";
  EXPECT_NE(secret, MakeWebhookSecret());
}

TEST_F(WebhookTest, AJobsLifeIsToldInItsOrderAndEachEventOnce) {
  const std::string hook = Add("default");
  Add("other");
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  Say("a", worker, job, S::RUNNING);
  ASSERT_TRUE(Commit(job, 10));
  clock_.Advance(seconds(1));
  ASSERT_TRUE(Commit(job, 10)) << "a repeated call";
  Fail("a", worker, job);
  clock_.Advance(seconds(6));
  Tick();
  Say("a", worker, job, S::RUNNING);
  Say("a", worker, job, S::DONE, v1::Verdict::USER, "bad_data");
  EXPECT_EQ(Send(), 6);
  EXPECT_EQ(Types(), (std::vector<std::string>{"job.queued", "job.started", "checkpoint.committed",
                                               "job.restarted", "job.started", "job.failed"}));
  const auto restarted = ParseJson(receiver_.posts[3].body).at("data");
  EXPECT_EQ(restarted.at("verdict").at("code"), "rank_killed");
  EXPECT_EQ(restarted.at("state"), "PENDING");
  const auto failed = ParseJson(receiver_.posts[5].body);
  EXPECT_EQ(failed.at("data").at("job"), "projects/default/jobs/" + job);
  EXPECT_EQ(failed.at("data").at("verdict"),
            (nlohmann::json{{"code", "bad_data"}, {"domain", "user"}, {"node", "a"}}));
  EXPECT_EQ(failed.at("data").at("attempt"), 2);
  EXPECT_TRUE(ParseUtc(failed.at("timestamp").get<std::string>()).has_value());
  EXPECT_EQ(ParseJson(receiver_.posts[2].body).at("data").at("step"), 10);
  EXPECT_EQ(Send(), 0);
  EXPECT_EQ(Results(), (std::map<std::string, double>{{"delivered", 6}}));
  EXPECT_EQ(Hook(hook).failures(), 0);
  EXPECT_TRUE(Hook(hook).has_last_delivery_time());
}

TEST_F(WebhookTest, AnEventOfATransactionThatFailsIsNotTold) {
  Add("default");
  const std::string job = Submit("CPU", 1);
  const absl::Status failed = store_->Write([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const JobRecord record, store::GetJob(db, job));
    SFT_RETURN_IF_ERROR(store::TellJob(db, "job.failed", record, Verdict(), 1));
    return Internal("no");
  });
  EXPECT_FALSE(failed.ok());
  EXPECT_EQ(Send(), 1);
  EXPECT_EQ(Types(), std::vector<std::string>{"job.queued"});
}

TEST_F(WebhookTest, APreemptedJobAndACancelledOneAreToldAsThat) {
  Add("default", {"job.preempted", "job.cancelled", "job.succeeded"});
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  Say("a", worker, job, S::RUNNING);
  ChangedJobs changed;
  ASSERT_TRUE(store_
                  ->Write([&](Database& db) {
                    return StopAttempt(db, Uid(job), kMoved, "drained", registry_->now_us(),
                                       changed);
                  })
                  .ok());
  Say("a", worker, job, S::DONE, v1::Verdict::NONE, kMoved);
  Tick();
  ASSERT_TRUE(jobs_->Cancel(job, "enough", false).ok());
  const std::string uid = Uid(job);
  for (int i = 0; i < 3 && State(job) != v1::Job::CANCELLED; ++i) {
    Say("a", worker, job, S::DONE, v1::Verdict::USER, "cancelled");
  }
  EXPECT_EQ(State(job), v1::Job::CANCELLED);
  Send();
  EXPECT_EQ(Types(), (std::vector<std::string>{"job.preempted", "job.cancelled"}));
}

TEST_F(WebhookTest, NodesAndTheDiskAreToldToHooksOfTheServer) {
  const std::string project = Add("default"), server = Add("");
  const auto worker = Join("a", "CPU", 1);
  ASSERT_TRUE(store_
                  ->Write([&](Database& db) {
                    return HoldNode(db, {.node = "a", .reason = "fan", .since_us = 1'000'000});
                  })
                  .ok());
  registry_->Disconnect("a", worker.get());
  for (int i = 0; i < 20; ++i) {
    clock_.Advance(seconds(1));
    reconciler_->Beat();
  }
  Tick();
  clock_.Advance(seconds(1));
  Tick();  // still silent: no news
  MetricLog metrics(dir_ + "/metrics");
  TensorBoard board(dir_ + "/tensorboard");
  // More than any disk has must be free.
  io::DiskMarks marks;
  marks.low.bytes = marks.full.bytes = INT64_MAX / 2;
  marks.low.share = marks.full.share = 2;
  DiskWatch disk(dir_, marks, clock_);
  Housekeeping housekeeping(*store_, clock_, metrics, board, Nanos(0), nullptr, &disk);
  housekeeping.LookAround();
  housekeeping.LookAround();
  EXPECT_EQ(Send(), 3);
  EXPECT_EQ(Types(), (std::vector<std::string>{"node.held", "node.suspect", "disk.low"}));
  EXPECT_EQ(ParseJson(receiver_.posts[0].body).at("data"),
            (nlohmann::json{{"node", "a"}, {"reason", "fan"}}));
  EXPECT_TRUE(Deliveries(project).empty());
  EXPECT_EQ(Deliveries(server, "").size(), 3u);
}

TEST_F(WebhookTest, EachTryIsSignedAnewUnderOneId) {
  const std::string hook = Add("default");
  Test(hook);
  Answer(500);
  EXPECT_EQ(Send(), 1);
  clock_.Advance(seconds(6));
  Answer(204);
  EXPECT_EQ(Send(), 1);
  ASSERT_EQ(receiver_.posts.size(), 2u);
  const WebhookPost &first = receiver_.posts[0], &second = receiver_.posts[1];
  EXPECT_EQ(first.url, "https://example.com/hook");
  EXPECT_EQ(Header(first, "webhook-id"), Header(second, "webhook-id"));
  EXPECT_EQ(Header(first, "webhook-id").find('.'), std::string::npos);
  EXPECT_EQ(first.body, second.body);
  const int64_t at = std::stoll(Header(first, "webhook-timestamp"));
  EXPECT_EQ(std::stoll(Header(second, "webhook-timestamp")), at + 6);
  EXPECT_EQ(Header(first, "webhook-signature"),
            SignWebhook({secret_}, Header(first, "webhook-id"), at, first.body));
  EXPECT_EQ(Header(second, "webhook-signature"),
            SignWebhook({secret_}, Header(first, "webhook-id"), at + 6, first.body));
  EXPECT_EQ(Results(), (std::map<std::string, double>{{"delivered", 1}, {"retried", 1}}));
}

TEST_F(WebhookTest, WhatIsNotTakenIsTriedForSeventyFiveHoursAndThenTheHookIsOff) {
  const std::string hook = Add("default");
  Test(hook);
  Answer(503);
  chance_ = 0;
  std::vector<int64_t> tried_at;
  const int64_t begin = registry_->now_us();
  for (int minute = 0; minute < 100 * 60; ++minute) {
    if (Send() > 0) tried_at.push_back((registry_->now_us() - begin) / 60'000'000);
    if (minute == 0) {
      clock_.Advance(seconds(5));
      EXPECT_EQ(Send(), 1) << "after 5 s";
      tried_at.push_back(0);
      clock_.Advance(seconds(55));
    } else {
      clock_.Advance(minutes(1));
    }
  }
  // 5 minutes after the second try, then 30 minutes, 2, 5, 10, 14, 20 and 24 hours.
  EXPECT_EQ(tried_at, (std::vector<int64_t>{0, 0, 6, 36, 156, 456, 1056, 1896, 3096, 4536}));
  const v1::Webhook off = Hook(hook);
  EXPECT_TRUE(off.has_off_time());
  EXPECT_NE(off.off_reason().find("nothing was taken for 75 hours"), std::string::npos)
      << off.off_reason();
  EXPECT_EQ(Deliveries(hook).front().state(), v1::WebhookDelivery::FAILED);
  EXPECT_EQ(Deliveries(hook).front().tries(), 10);
  Submit("CPU", 1);
  EXPECT_EQ(Deliveries(hook).size(), 1u) << "it is told nothing more";
  Answer(200);
  Test(hook);
  EXPECT_EQ(Send(), 1);
  EXPECT_FALSE(Hook(hook).has_off_time()) << "a test turns it on";
  Submit("CPU", 1);
  EXPECT_EQ(Send(), 1);
}

TEST_F(WebhookTest, TriesAreALittleLaterByChance) {
  const std::string hook = Add("default");
  Test(hook);
  Answer(500);
  chance_ = 1;
  Send();
  const auto due = [&] { return Deliveries(hook).front().next_try_time().seconds(); };
  EXPECT_EQ(due() - registry_->now_us() / 1'000'000, 6) << "a fifth of 5 s more";
}

TEST_F(WebhookTest, AReceiverSaysWhenItWantsTheNextTry) {
  const std::string hook = Add("default");
  Test(hook);
  Test(hook);
  Answer(429, /*retry_after_s=*/100);
  EXPECT_EQ(Send(), 1) << "the second waits with the first";
  clock_.Advance(seconds(99));
  EXPECT_EQ(Send(), 0);
  clock_.Advance(seconds(1));
  Answer(200);
  EXPECT_EQ(Send(), 2);
}

TEST_F(WebhookTest, AHookThatFailsRestsAndOthersAreServedMeanwhile) {
  const std::string dead = Add("default"), alive = Add("default");
  receiver_.answer = [&](const WebhookPost& post) -> absl::StatusOr<WebhookAnswer> {
    const std::string id = Header(post, "webhook-id");
    for (const v1::WebhookDelivery& delivery : Deliveries(dead)) {
      if (delivery.id() == id) return Unavailable("nobody answers");
    }
    return WebhookAnswer{200, 0};
  };
  for (int i = 0; i < 10; ++i) {
    Test(dead);
    Test(alive);
  }
  EXPECT_EQ(Send(), 11) << "one try of the dead one";
  EXPECT_EQ(Deliveries(alive).front().state(), v1::WebhookDelivery::DELIVERED);
  const auto tried = [&] {
    const auto all = Deliveries(dead);
    return std::ranges::count_if(all, [](const auto& each) { return each.tries() > 0; });
  };
  EXPECT_EQ(tried(), 1);
  for (int i = 0; i < 3600; ++i) {
    clock_.Advance(seconds(1));
    Send();
  }
  // 5, 10, 20, ... 300 s: few tries, however many wait.
  EXPECT_LE(receiver_.posts.size(), 10u + 20);
  EXPECT_EQ(Deliveries(dead).back().error(), "nobody answers") << "the oldest one";
}

TEST_F(WebhookTest, AnswerFourHundredTenPutsTheHookOff) {
  const std::string hook = Add("default");
  Test(hook);
  Test(hook);
  Answer(410);
  EXPECT_EQ(Send(), 1);
  EXPECT_TRUE(Hook(hook).has_off_time());
  for (const v1::WebhookDelivery& delivery : Deliveries(hook)) {
    EXPECT_EQ(delivery.state(), v1::WebhookDelivery::FAILED);
  }
  EXPECT_EQ(Results(), (std::map<std::string, double>{{"failed", 2}}));
}

TEST_F(WebhookTest, ARedirectIsAFailure) {
  const std::string hook = Add("default");
  Test(hook);
  Answer(308);
  EXPECT_EQ(Send(), 1);
  EXPECT_EQ(Deliveries(hook).front().state(), v1::WebhookDelivery::WAITING);
  EXPECT_EQ(Deliveries(hook).front().error(),
            "it answered with HTTP status 308, which is not followed");
}

TEST_F(WebhookTest, WhatAloneIsNotTakenDoesNotPutTheHookOff) {
  const std::string hook = Add("default");
  Test(hook);
  const std::string bad = Deliveries(hook).front().id();
  receiver_.answer = [&](const WebhookPost& post) {
    return HttpAnswer(Header(post, "webhook-id") == bad ? 400 : 200);
  };
  for (int hour = 0; hour < 100; ++hour) {
    Send();
    Test(hook);
    clock_.Advance(hours(1));
  }
  Send();
  EXPECT_FALSE(Hook(hook).has_off_time()) << Hook(hook).off_reason();
  for (const v1::WebhookDelivery& delivery : Deliveries(hook)) {
    EXPECT_EQ(delivery.state(),
              delivery.id() == bad ? v1::WebhookDelivery::FAILED : v1::WebhookDelivery::DELIVERED);
  }
}

TEST_F(WebhookTest, AReplaySendsTheSameAgain) {
  const std::string hook = Add("default");
  Test(hook);
  Send();
  const std::string id = Deliveries(hook).front().id();
  v1::ReplayWebhookRequest request;
  request.set_id(hook);
  request.set_delivery(id);
  EXPECT_EQ(webhooks_.Replay("default", request, "ann")->deliveries(), 1);
  EXPECT_EQ(Send(), 1);
  ASSERT_EQ(receiver_.posts.size(), 2u);
  EXPECT_EQ(Header(receiver_.posts[0], "webhook-id"), Header(receiver_.posts[1], "webhook-id"));
  EXPECT_EQ(receiver_.posts[0].body, receiver_.posts[1].body);
  request.set_delivery("msg_of_nobody");
  EXPECT_TRUE(absl::IsNotFound(webhooks_.Replay("default", request, "ann").status()));
  // All that failed since then, and nothing else.
  Test(hook);
  Answer(410);
  Send();
  clock_.Advance(hours(1));
  Test(hook);  // turns it on
  Send();      // and off
  request.clear_delivery();
  request.mutable_since()->set_seconds(registry_->now_us() / 1'000'000);
  EXPECT_EQ(webhooks_.Replay("default", request, "ann")->deliveries(), 1);
  request.clear_since();
  Answer(200);
  EXPECT_EQ(webhooks_.Replay("default", request, "ann")->deliveries(), 1) << "the older one";
  EXPECT_EQ(Send(), 0) << "it rests, though it is on again";
  clock_.Advance(seconds(5));
  EXPECT_EQ(Send(), 2);
}

TEST_F(WebhookTest, AfterARotationBothSecretsSignForADay) {
  const std::string hook = Add("default"), old = secret_;
  const auto rotated = webhooks_.Rotate("default", hook, "ann");
  ASSERT_TRUE(rotated.ok()) << rotated.status();
  EXPECT_NE(rotated->secret(), old);
  const auto signature = [&] {
    Test(hook);
    Send();
    const WebhookPost& post = receiver_.posts.back();
    const auto sign = [&](const std::vector<std::string>& secrets) {
      return SignWebhook(secrets, Header(post, "webhook-id"),
                         std::stoll(Header(post, "webhook-timestamp")), post.body);
    };
    const std::string header = Header(post, "webhook-signature");
    return header == sign({rotated->secret(), old}) ? "both"
           : header == sign({rotated->secret()})    ? "new"
                                                    : header;
  };
  EXPECT_EQ(signature(), "both");
  clock_.Advance(hours(25));
  EXPECT_EQ(signature(), "new");
}

TEST_F(WebhookTest, ASecretIsAFileOfThisUserAloneAndGoesWithItsHook) {
  const std::string hook = Add("default");
  struct stat file {};
  const std::string path = dir_ + "/webhooks/" + hook;
  ASSERT_EQ(stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  const std::string database = io::ReadFile(dir_ + "/server.db-wal").value_or("") +
                               io::ReadFile(dir_ + "/server.db").value_or("");
  EXPECT_NE(database.find(hook), std::string::npos);
  EXPECT_EQ(database.find(secret_.substr(6)), std::string::npos) << "it would be in backups";
  Test(hook);
  ASSERT_TRUE(webhooks_.Remove("default", hook, "ann").ok());
  EXPECT_FALSE(io::Exists(path));
  EXPECT_EQ(Send(), 0);
  // As after the restore of a backup.
  const std::string lost = Add("default");
  ASSERT_TRUE(secrets_.Remove(lost).ok());
  Test(lost);
  EXPECT_EQ(Send(), 1);
  EXPECT_TRUE(receiver_.posts.empty());
  EXPECT_NE(Deliveries(lost).front().error().find("sftctl webhook rotate " + lost),
            std::string::npos);
  ASSERT_TRUE(webhooks_.Rotate("default", lost, "ann").ok());
  clock_.Advance(seconds(10));
  EXPECT_EQ(Send(), 1);
  EXPECT_EQ(receiver_.posts.size(), 1u);
}

TEST_F(WebhookTest, SlackGetsOneTextAtAnAddressThatIsKeptAsASecret) {
  const std::string hook = Add("default", {}, v1::Webhook::SLACK);
  EXPECT_EQ(secret_, "");
  EXPECT_EQ(Hook(hook).url(), "https://example.com/...");
  JobRecord job;
  job.id = "job-1";
  job.project = "default";
  job.owner = "ann";
  job.display_name = "a <b> & c";
  job.state = JobState::kFailed;
  job.verdict = {Verdict::Domain::kUser, "bad_data"};
  ASSERT_TRUE(
      store_->Write([&](Database& db) { return store::TellEdge(db, job, 1'000'000); }).ok());
  EXPECT_EQ(Send(), 1);
  EXPECT_EQ(receiver_.posts[0].url, "https://example.com/hook");
  EXPECT_EQ(ParseJson(receiver_.posts[0].body),
            (nlohmann::json{{"text",
                             "job.failed: job-1 a &lt;b&gt; &amp; c of project default, by "
                             "ann: bad_data"}}));
  EXPECT_EQ(Header(receiver_.posts[0], "webhook-signature"), "");
  EXPECT_TRUE(absl::IsFailedPrecondition(webhooks_.Rotate("default", hook, "ann").status()));
}

TEST_F(WebhookTest, AThousandWaitAndAThousandAreKept) {
  const std::string hook = Add("default");
  const auto tell = [&](int count) {
    return store_->Write([&](Database& db) -> absl::Status {
      for (int i = 0; i < count; ++i) {
        SFT_RETURN_IF_ERROR(store::TellTest(db, hook, "default", 1'000'000 + i).status());
      }
      return absl::OkStatus();
    });
  };
  ASSERT_TRUE(tell(1003).ok());
  EXPECT_EQ(Results(), (std::map<std::string, double>())) << "it is not looked at for each";
  ASSERT_TRUE(tell(17 * store::kTrimEvery - 1003).ok());
  EXPECT_EQ(Results(), (std::map<std::string, double>{{"dropped", 88}}));
  EXPECT_EQ(Send(), 1000);
  EXPECT_EQ(Results(), (std::map<std::string, double>{{"delivered", 1000}, {"dropped", 88}}));
  int64_t kept = 0, last = 0;
  while (true) {
    const auto page = webhooks_.Deliveries("default", hook, last, 500, last);
    ASSERT_TRUE(page.ok());
    kept += page->deliveries_size();
    if (page->deliveries_size() < 500) break;
  }
  EXPECT_EQ(kept, 1000);
}

TEST_F(WebhookTest, WhatCannotBeIsRefusedWhenItIsAdded) {
  v1::AddWebhookRequest request;
  request.set_url("https://inside.example.com/");
  EXPECT_TRUE(absl::IsPermissionDenied(webhooks_.Add("default", request, "ann").status()));
  request.set_url("http://example.com/");
  EXPECT_TRUE(absl::IsPermissionDenied(webhooks_.Add("default", request, "ann").status()));
  request.set_url("https://example.com/" + std::string(2000, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(webhooks_.Add("default", request, "ann").status()));
  request.set_url("https://example.com/");
  request.add_events("job.exploded");
  const absl::Status unknown = webhooks_.Add("default", request, "ann").status();
  EXPECT_TRUE(absl::IsInvalidArgument(unknown));
  EXPECT_NE(unknown.message().find("job.queued"), std::string_view::npos) << unknown;
  request.set_events(0, "disk.low");
  EXPECT_TRUE(absl::IsInvalidArgument(webhooks_.Add("default", request, "ann").status()));
  EXPECT_TRUE(webhooks_.Add("", request, "ann").ok());
  request.clear_events();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(webhooks_.Add("default", request, "ann").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(webhooks_.Add("default", request, "ann").status()));
  EXPECT_EQ(io::ListDir(dir_ + "/webhooks")->size(), 21u) << "the secret of the last one is gone";
  EXPECT_TRUE(webhooks_.Add("other", request, "ann").ok());
  const std::string of_other = Add("other");
  EXPECT_TRUE(absl::IsNotFound(webhooks_.Test("default", of_other, "ann").status()));
  EXPECT_TRUE(absl::IsNotFound(webhooks_.Remove("default", of_other, "ann")));
}

TEST_F(WebhookTest, TheThreadSendsWhatIsDueAndEnds) {
  const std::string hook = Add("default");
  Test(hook);
  EXPECT_EQ(woken_, 1);
  std::promise<void> posted;
  receiver_.answer = [&](const WebhookPost&) {
    posted.set_value();
    return WebhookAnswer{200, 0};
  };
  sender_.Start();
  sender_.Wake();
  ASSERT_EQ(posted.get_future().wait_for(minutes(2)), std::future_status::ready);
  sender_.Stop();
  EXPECT_EQ(receiver_.posts.size(), 1u);
  EXPECT_EQ(Deliveries(hook).front().state(), v1::WebhookDelivery::DELIVERED);
}

}  // namespace
}  // namespace sft::server
