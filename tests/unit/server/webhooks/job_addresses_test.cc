#include "server/webhooks/job_addresses.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/io/file.h"
#include "server/store/webhooks.h"
#include "tests/unit/server/webhooks/webhook_fixture.h"

namespace sft::server {
namespace {

constexpr char kUrl[] = "https://example.com/mine";

// Jobs that name an address (notify.webhook), whose receiver a test plays.
class JobAddressesTest : public WebhookTest {
 protected:
  static JobRecord Naming(const std::string& url, const std::vector<std::string>& events,
                          const std::string& id, const std::string& owner = "ann") {
    JobRecord job;
    job.id = id;
    job.project = "default";
    job.owner = owner;
    job.gpu_type = "CPU";
    job.gpus_per_node = job.nodes = 1;
    job.spec.emplace();
    job.spec->notify.webhook = url;
    job.spec->notify.events = events;
    return job;
  }
  v1::Job SubmitNaming(const std::vector<std::string>& events = {}, const std::string& url = kUrl,
                       const std::string& owner = "ann") {
    const auto job = naming_.Submit(
        Naming(url, events, "job-" + std::to_string(++submitted_), owner), {}, owner.c_str());
    EXPECT_TRUE(job.ok()) << job.status();
    return job.value_or(v1::Job());
  }
  std::vector<std::string> Kept() { return secrets_.List().value(); }

  using Found = absl::StatusOr<std::vector<AddressGuard::Address>>;
  int looked_up_ = 0;
  JobAddresses addresses_{*store_, clock_, secrets_,
                          AddressGuard::Make({}, [this](const std::string& host) -> Found {
                            ++looked_up_;
                            if (host == "slow.example.com") return Unavailable("not in time");
                            AddressGuard::Address address;
                            address.bytes[10] = address.bytes[11] = 0xff;
                            address.bytes[12] = host == "inside.example.com" ? 10 : 8;
                            return std::vector{address};
                          }).value()};
  JobManager naming_{*store_, clock_, hub_, [] {}, nullptr, &addresses_};
};

TEST_F(JobAddressesTest, AJobsWebhookHearsOfItAloneSignedWithTheSecretOfItsSubmit) {
  const v1::Job job = SubmitNaming({"job.queued"});
  Submit("CPU", 1);
  ASSERT_EQ(job.hooks_size(), 1);
  const v1::JobHook& hook = job.hooks(0);
  EXPECT_EQ(hook.url(), kUrl);
  EXPECT_EQ(hook.events(0), "job.queued");
  EXPECT_EQ(hook.secret().find("whsec_"), 0u);
  EXPECT_EQ(Send(), 1);
  ASSERT_EQ(receiver_.posts.size(), 1u);
  const WebhookPost& post = receiver_.posts[0];
  EXPECT_EQ(post.url, kUrl);
  EXPECT_EQ(Header(post, "webhook-signature"),
            SignWebhook({hook.secret()}, Header(post, "webhook-id"),
                        std::stoll(Header(post, "webhook-timestamp")), post.body));
  const v1::Job later = naming_.Get(job.name()).value();
  ASSERT_EQ(later.hooks_size(), 1);
  EXPECT_EQ(later.hooks(0).webhook(), hook.webhook());
  EXPECT_EQ(later.hooks(0).secret(), "") << "said once";
  EXPECT_TRUE(later.hooks(0).has_last_delivery_time());
  EXPECT_TRUE(Hook(hook.webhook()).of_jobs());
  EXPECT_EQ(Hook(hook.webhook()).url(), kUrl);
}

TEST_F(JobAddressesTest, JobsOfOneOwnerShareTheirWebhookAndOthersDoNot) {
  const v1::JobHook first = SubmitNaming().hooks(0), second = SubmitNaming().hooks(0);
  EXPECT_EQ(second.webhook(), first.webhook());
  EXPECT_EQ(second.secret(), "") << "it was said with the first";
  const v1::JobHook of_bob = SubmitNaming({}, kUrl, "bob").hooks(0);
  EXPECT_NE(of_bob.webhook(), first.webhook());
  EXPECT_NE(of_bob.secret(), "");
  EXPECT_EQ(Kept().size(), 2u) << "what no job took is withdrawn";
  EXPECT_EQ(Send(), 3);
  // Removed by somebody between the look and the submit.
  const JobRecord late = Naming("https://example.com/gone", {}, "job-1");
  const absl::Status asked = store_->Write(
      [&](Database& db) { return store::AskToBeTold(db, late, "https://example.com/gone", {}); });
  EXPECT_TRUE(absl::IsAborted(asked)) << asked;
}

TEST_F(JobAddressesTest, ASweepOrARepeatIsToldTheSecretOnce) {
  std::vector<JobRecord> jobs;
  for (int i = 0; i < 3; ++i) jobs.push_back(Naming(kUrl, {}, fmt::format("job-{}", i)));
  jobs.push_back(Naming("https://example.com/other", {}, "job-3"));
  const auto sweep = naming_.SubmitSweep(std::move(jobs), {}, "text", "ann");
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  std::vector<bool> secrets;
  for (const v1::Job& job : *sweep) secrets.push_back(!job.hooks(0).secret().empty());
  EXPECT_EQ(secrets, (std::vector<bool>{true, false, false, true}));
  EXPECT_EQ(sweep->at(2).hooks(0).webhook(), sweep->at(0).hooks(0).webhook());
  JobRecord asked = Naming("https://example.com/third", {}, "job-4");
  asked.request_id = "r1";
  asked.request_hash = "h";
  const auto first = naming_.Submit(asked, {}, "ann");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_NE(first->hooks(0).secret(), "");
  asked.id = "job-5";
  const auto again = naming_.Submit(asked, {}, "ann");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->name(), first->name());
  EXPECT_EQ(again->hooks(0).webhook(), first->hooks(0).webhook());
  EXPECT_EQ(again->hooks(0).secret(), "");
  EXPECT_EQ(Kept().size(), 3u);
}

TEST_F(JobAddressesTest, AJobThatIsNotStoredLeavesNoSecret) {
  JobRecord job = Naming(kUrl, {}, "job-1");
  job.request_id = "r1";
  job.request_hash = "h";
  ASSERT_TRUE(naming_.Submit(job, {}, "ann").ok());
  job.id = "job-2";
  job.request_hash = "another";
  job.spec->notify.webhook = "https://example.com/other";
  EXPECT_EQ(naming_.Submit(job, {}, "ann").status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Kept().size(), 1u);
}

TEST_F(JobAddressesTest, OnlyWhoseJobsSendToItGetsAnotherSecret) {
  const v1::JobHook hook = SubmitNaming().hooks(0);
  const auto of_bob = webhooks_.Rotate("default", hook.webhook(), "bob");
  EXPECT_EQ(of_bob.status().code(), absl::StatusCode::kPermissionDenied) << of_bob.status();
  EXPECT_EQ(webhooks_.Rotate("other", hook.webhook(), "ann").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Kept().size(), 1u);
  EXPECT_EQ(secrets_.Get(hook.webhook(), 0)->size(), 1u) << "nothing was made for bob";
  ASSERT_TRUE(webhooks_.Rotate("default", hook.webhook(), "ann").ok());
  EXPECT_EQ(secrets_.Get(hook.webhook(), 0)->size(), 2u);
  v1::ReplayWebhookRequest replay;
  replay.set_id(hook.webhook());
  EXPECT_EQ(webhooks_.Replay("other", replay, "eve").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(JobAddressesTest, AnAddressGoesAMonthAfterTheLastOfItsJobs) {
  const auto worker = Join("a", "CPU", 1);
  const std::string project_hook = Add("default", {"job.preempted"});
  const v1::Job job = SubmitNaming({"job.failed"});
  const std::string id = job.name().substr(job.name().rfind('/') + 1);
  const auto tidy = [&] {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(addresses_.Tidy().ok());
  };
  Tick();
  Say("a", worker, id, S::RUNNING);
  clock_.Advance(2 * JobAddresses::kKeep);
  tidy();
  EXPECT_EQ(Kept().size(), 2u) << "it runs";
  Say("a", worker, id, S::DONE, v1::Verdict::USER, "bad_data");
  clock_.Advance(2 * JobAddresses::kKeep);
  tidy();
  EXPECT_EQ(webhooks_.List("default")->webhooks_size(), 2) << "it has something to be told yet";
  EXPECT_EQ(Send(), 1);
  clock_.Advance(JobAddresses::kKeep - hours(1));
  tidy();
  EXPECT_EQ(webhooks_.List("default")->webhooks_size(), 2);
  clock_.Advance(hours(2));
  tidy();
  EXPECT_EQ(webhooks_.List("default")->webhooks_size(), 1);
  EXPECT_EQ(naming_.Get(job.name())->hooks_size(), 0);
  EXPECT_EQ(Kept(), std::vector<std::string>{project_hook});
  const auto offer = addresses_.Make();
  ASSERT_TRUE(offer.ok()) << offer.status();
  ASSERT_TRUE(addresses_.Tidy().ok());
  EXPECT_EQ(Kept().size(), 2u) << "it may be just being taken";
  ASSERT_TRUE(addresses_.Tidy().ok());
  EXPECT_EQ(Kept(), std::vector<std::string>{project_hook});
}

TEST_F(JobAddressesTest, ThousandsOfJobsHaveNoMoreAddressesThanAProjectMay) {
  for (int i = 0; i < 1000; ++i) SubmitNaming({"job.failed"});
  EXPECT_EQ(webhooks_.List("default")->webhooks_size(), 1);
  for (int i = 1; i < store::kMaxJobAddresses; ++i) {
    SubmitNaming({"job.failed"}, fmt::format("https://example.com/{}", i));
  }
  const auto more = naming_.Submit(Naming("https://example.com/more", {}, "job-more"), {}, "ann");
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted) << more.status();
  EXPECT_EQ(Kept().size(), static_cast<size_t>(store::kMaxJobAddresses));
}

TEST_F(JobAddressesTest, AnAddressIsLookedUpOnceForManyJobsAndNotForEver) {
  EXPECT_EQ(addresses_.Problem(kUrl), "");
  for (int i = 0; i < 100; ++i) EXPECT_EQ(addresses_.Problem(kUrl), "");
  EXPECT_EQ(looked_up_, 1);
  clock_.Advance(JobAddresses::kHolds + seconds(1));
  EXPECT_EQ(addresses_.Problem(kUrl), "");
  EXPECT_EQ(looked_up_, 2);
  EXPECT_NE(addresses_.Problem("https://inside.example.com/x").find("--webhook-allow"),
            std::string::npos);
  EXPECT_NE(addresses_.Problem("http://example.com/x"), "") << "only https";
  looked_up_ = 0;
  for (int i = 0; i < 2; ++i) EXPECT_NE(addresses_.Problem("https://slow.example.com/x"), "");
  EXPECT_EQ(looked_up_, 2) << "it may be found the next time";
}

TEST_F(JobAddressesTest, AJobThatGoesOnTellsForWhoResumedIt) {
  const auto worker = Join("a", "CPU", 1);
  const v1::Job job = SubmitNaming({"job.failed"});
  const std::string id = job.name().substr(job.name().rfind('/') + 1);
  Tick();
  Say("a", worker, id, S::RUNNING);
  ASSERT_TRUE(Commit(id, 10));
  Say("a", worker, id, S::DONE, v1::Verdict::USER, "bad_data");
  v1::ResumeJobRequest request;
  request.set_name(id);
  const auto mine = naming_.Resume(request, "ann");
  ASSERT_TRUE(mine.ok()) << mine.status();
  EXPECT_EQ(mine->hooks(0).webhook(), job.hooks(0).webhook());
  EXPECT_EQ(mine->hooks(0).secret(), "");
  const auto of_bob = naming_.Resume(request, "bob");
  ASSERT_TRUE(of_bob.ok()) << of_bob.status();
  EXPECT_NE(of_bob->hooks(0).webhook(), job.hooks(0).webhook());
  EXPECT_NE(of_bob->hooks(0).secret(), "");
  EXPECT_EQ(Kept().size(), 2u);
}

// The three events of OpenAI's API.

TEST_F(WebhookTest, OpenAisFormatTellsOfTheEndOfTrainingAlone) {
  const std::string hook = Add("default", {}, v1::Webhook::OPENAI);
  const std::string all = Add("default");
  EXPECT_EQ(Hook(hook).format(), v1::Webhook::OPENAI);
  EXPECT_EQ(Hook(hook).events_size(), 3);
  EXPECT_EQ(Hook(all).format(), v1::Webhook::STANDARD);
  const auto worker = Join("a", "CPU", 1);
  const std::string job = Submit("CPU", 1);
  Tick();
  Say("a", worker, job, S::RUNNING);
  Say("a", worker, job, S::DONE, v1::Verdict::USER, "bad_data");
  Send();
  ASSERT_EQ(Deliveries(hook).size(), 1u);
  const auto body = ParseJson(Deliveries(hook)[0].body());
  EXPECT_EQ(body.at("type"), "fine_tuning.job.failed");
  EXPECT_EQ(body.at("object"), "event");
  EXPECT_EQ(body.at("id").get<std::string>().find("evt_"), 0u);
  EXPECT_TRUE(body.at("created_at").is_number_integer());
  EXPECT_EQ(body.at("data"), (nlohmann::json{{"id", job}}));
  EXPECT_EQ(Deliveries(all).size(), 3u) << "queued, started and failed: each once";
}

TEST_F(WebhookTest, OpenAisFormatTakesItsOwnEventsAlone) {
  v1::AddWebhookRequest request;
  request.set_url("https://example.com/hook");
  request.set_format(v1::Webhook::OPENAI);
  request.add_events("job.failed");
  const auto refused = webhooks_.Add("default", request, "ann");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("fine_tuning.job.cancelled"), absl::string_view::npos);
  request.set_events(0, "fine_tuning.job.failed");
  EXPECT_TRUE(webhooks_.Add("default", request, "ann").ok());
}

}  // namespace
}  // namespace sft::server
