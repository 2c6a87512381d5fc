#include "server/webhooks/mail.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <algorithm>

#include "server/webhooks/mail_relay.h"
#include "tests/unit/server/webhooks/webhook_fixture.h"

namespace sft::server {
namespace {

const char* const kFailed =
    R"({"type": "job.failed", "timestamp": "2026-11-27T20:00:00.000Z", "data":
  {"job": "projects/vision/jobs/job-abc", "id": "job-abc", "project": "vision", "owner": "ann",
   "display_name": "my run", "attempt": 2, "state": "FAILED",
   "verdict": {"code": "bad_data", "domain": "user"}}})";

Mail MailWith(const std::string& subject, const std::string& text = "x\n") {
  Mail mail;
  mail.id = "msg_1";
  mail.from = "sft@example.com";
  mail.to = "ann@example.com";
  mail.subject = subject;
  mail.text = text;
  mail.date = *ParseUtc("2026-11-27T20:00:00Z");
  return mail;
}

std::vector<std::string> HeaderLines(const std::string& written) {
  const size_t end = written.find("\r\n\r\n");
  EXPECT_NE(end, std::string::npos) << written;
  return absl::StrSplit(written.substr(0, end), "\r\n");
}

std::string TextOf(const std::string& written) {
  std::string encoded = written.substr(written.find("\r\n\r\n") + 4), text;
  EXPECT_TRUE(absl::Base64Unescape(encoded, &text)) << encoded;
  return text;
}

TEST(MailTextTest, SaysWhatHappenedAndWhatToType) {
  const Mail mail = MailOf(kFailed);
  EXPECT_EQ(mail.subject, "job.failed: my run (job-abc) in project vision");
  EXPECT_NE(mail.text.find("verdict      bad_data\n"), std::string::npos) << mail.text;
  EXPECT_NE(mail.text.find("\nsftctl status job-abc\n"), std::string::npos) << mail.text;
}

TEST(MailTextTest, ABudgetIsTextForPeople) {
  const Mail mail = MailOf(
      R"({"type": "budget.reached", "timestamp": "t", "data": {"project": "vision",
          "currency": "EUR", "spent_micros": 1000010000, "budget_micros": 1000000000}})");
  EXPECT_EQ(mail.subject, "budget.reached: project vision");
  EXPECT_NE(mail.text.find("spent        1000.01 EUR\n"), std::string::npos) << mail.text;
  EXPECT_NE(mail.text.find("budget       1000.00 EUR\n"), std::string::npos) << mail.text;
}

TEST(MailTextTest, WhatIsNoEventMakesAMailAllTheSame) {
  for (const char* body :
       {"", "[]", "{", "{\"data\": 3}", "{\"type\": 1, \"data\": {\"verdict\": 2}}"}) {
    EXPECT_NE(WriteMail(MailWith(MailOf(body).subject)).find("\r\n\r\n"), std::string::npos)
        << body;
  }
}

TEST(WriteMailTest, IsAMailAsRfc5322HasIt) {
  EXPECT_EQ(
      HeaderLines(WriteMail(MailWith("job.failed: my run"))),
      (std::vector<std::string>{
          "Date: Fri, 27 Nov 2026 20:00:00 +0000", "From: sft <sft@example.com>",
          "To: <ann@example.com>", "Message-ID: <msg_1@example.com>", "Subject: job.failed: my run",
          "Auto-Submitted: auto-generated", "MIME-Version: 1.0",
          "Content-Type: text/plain; charset=utf-8", "Content-Transfer-Encoding: base64"}));
}

TEST(WriteMailTest, NothingInASubjectBecomesAHeader) {
  for (const char* subject : {"a\r\nBcc: eve@example.com", "a\nBcc: eve@example.com", "a\rBcc: x",
                              "a\r\n\r\nbody", "a\v\f\x1b[2J", "=?UTF-8?B?Zm9v?=", "\xff\xfe"}) {
    const std::vector<std::string> lines = HeaderLines(WriteMail(MailWith(subject)));
    EXPECT_EQ(lines.size(), 9u) << subject;
    for (const std::string& line : lines) {
      EXPECT_EQ(line.find_first_of("\r\n\v\f\x1b"), std::string::npos) << line;
      EXPECT_EQ(line.find("Bcc"),
                line.starts_with("Subject: a") ? line.find("Bcc") : std::string::npos)
          << line;
    }
    EXPECT_TRUE(lines[4].starts_with("Subject: ")) << lines[4];
    EXPECT_EQ(lines[4].find("=?UTF-8?B?Zm9v?="), std::string::npos) << "it would be decoded";
  }
}

TEST(WriteMailTest, ALongSubjectInOtherLettersIsFoldedBetweenThem) {
  std::string subject;
  for (int i = 0; i < 40; ++i) subject += "模型";
  const std::vector<std::string> lines = HeaderLines(WriteMail(MailWith(subject)));
  std::string decoded;
  for (const std::string& line : lines) {
    EXPECT_LE(line.size(), 90u) << line;
    const size_t begin = line.find("=?UTF-8?B?");
    if (begin == std::string::npos) continue;
    std::string word;
    ASSERT_TRUE(absl::Base64Unescape(line.substr(begin + 10, line.size() - begin - 12), &word))
        << line;
    EXPECT_EQ(word.size() % 3, 0u) << "whole letters";
    decoded += word;
  }
  EXPECT_EQ(decoded, subject);
}

TEST(WriteMailTest, NoTextEndsTheMail) {
  const std::string text = "one\n.\nQUIT\n\r\n.\r\nMAIL FROM:<eve@example.com>\n";
  const std::string written = WriteMail(MailWith("s", text));
  const std::vector<std::string> lines = absl::StrSplit(written, "\r\n");
  for (const std::string& line : lines) {
    EXPECT_FALSE(line.starts_with(".")) << line;
    EXPECT_LE(line.size(), 76u);
  }
  EXPECT_NE(TextOf(written).find("one\r\n.\r\nQUIT\r\n"), std::string::npos);
}

// Takes what a test says, and keeps what came.
class FakeRelay : public MailTransport {
 public:
  absl::StatusOr<WebhookAnswer> Send(const Mail& mail) override {
    mails.push_back(mail);
    return answer;
  }
  std::vector<Mail> mails;
  absl::StatusOr<WebhookAnswer> answer = WebhookAnswer{250};
};

class MailHookTest : public WebhookTest {
 protected:
  absl::StatusOr<std::string> AddMail(const std::string& address,
                                      const std::vector<std::string>& events = {}) {
    v1::AddWebhookRequest request;
    request.set_url("mailto:" + address);
    request.set_format(v1::Webhook::MAIL);
    for (const std::string& event : events) request.add_events(event);
    SFT_ASSIGN_OR_RETURN(const auto added, hooks_.Add("default", request, "ann"));
    EXPECT_EQ(added.secret(), "");
    return added.webhook().id();
  }
  std::string SubmitAsking(const std::vector<std::string>& addresses,
                           const std::vector<std::string>& events,
                           const std::string& owner = "ann") {
    JobRecord job;
    job.id = "job-" + std::to_string(++submitted_);
    job.project = "default";
    job.owner = owner;
    job.gpu_type = "CPU";
    job.gpus_per_node = job.nodes = 1;
    job.spec.emplace();
    job.spec->notify.mail = addresses;
    job.spec->notify.events = events;
    EXPECT_TRUE(jobs_->Submit(job, {}).ok());
    return job.id;
  }
  int SendAll() {
    for (int sent = 0;; ++sent) {
      const absl::StatusOr<bool> stepped = mailer_.Step();
      EXPECT_TRUE(stepped.ok()) << stepped.status();
      if (!stepped.ok() || !*stepped) return sent;
    }
  }

  FakeRelay relay_;
  WebhookSender mailer_{*store_, secrets_, receiver_, clock_, [] { return 0.0; }, &relay_};
  Webhooks hooks_{*store_, clock_, secrets_, PublicNames(), [] {}, {true, {"example.com"}}};
};

TEST_F(MailHookTest, AProjectsMailIsSentLikeItsWebhooks) {
  const auto hook = AddMail("ann@example.com", {"job.queued"});
  ASSERT_TRUE(hook.ok()) << hook.status();
  const std::string job = Submit("CPU", 1);
  EXPECT_EQ(SendAll(), 1);
  ASSERT_EQ(relay_.mails.size(), 1u);
  EXPECT_EQ(relay_.mails[0].to, "ann@example.com");
  EXPECT_NE(relay_.mails[0].subject.find(job), std::string::npos);
  EXPECT_EQ(relay_.mails[0].id, Deliveries(*hook)[0].id());
  EXPECT_EQ(Deliveries(*hook)[0].state(), v1::WebhookDelivery::DELIVERED);
  EXPECT_EQ(Deliveries(*hook)[0].http_status(), 250);
  EXPECT_TRUE(receiver_.posts.empty());
}

TEST_F(MailHookTest, APutOffMailIsTriedAgainAndARefusedOneIsNot) {
  const std::string hook = AddMail("ann@example.com", {"job.queued"}).value();
  relay_.answer = WebhookAnswer{451, 0, false, false, "the relay answered 451"};
  Submit("CPU", 1);
  EXPECT_EQ(SendAll(), 1);
  EXPECT_EQ(Deliveries(hook)[0].state(), v1::WebhookDelivery::WAITING);
  EXPECT_EQ(Deliveries(hook)[0].error(), "the relay answered 451");
  clock_.Advance(seconds(6));
  relay_.answer = WebhookAnswer{554, 0, true, false, "the relay answered 554"};
  EXPECT_EQ(SendAll(), 1);
  EXPECT_EQ(relay_.mails[1].id, relay_.mails[0].id);
  EXPECT_EQ(Deliveries(hook)[0].state(), v1::WebhookDelivery::FAILED);
  EXPECT_FALSE(Hook(hook).has_off_time()) << "the next may be taken";
}

TEST_F(MailHookTest, AnAddressThatIsNotThereIsPutOff) {
  const std::string hook = AddMail("ann@example.com", {"job.queued"}).value();
  relay_.answer = WebhookAnswer{550, 0, true, true, "the relay answered 550 to RCPT TO: no"};
  Submit("CPU", 1);
  EXPECT_EQ(SendAll(), 1);
  EXPECT_EQ(Hook(hook).off_reason(), "the relay answered 550 to RCPT TO: no");
  Submit("CPU", 1);
  EXPECT_EQ(SendAll(), 0);
}

TEST_F(MailHookTest, WithoutARelayItWaits) {
  const std::string hook = AddMail("ann@example.com", {"job.queued"}).value();
  Submit("CPU", 1);
  EXPECT_EQ(Send(), 1) << "by a sender that has none";
  EXPECT_NE(Deliveries(hook)[0].error().find("--mail-relay"), std::string::npos);
  clock_.Advance(seconds(6));
  EXPECT_EQ(SendAll(), 1);
}

TEST_F(MailHookTest, AddressesAreThoseThatAnOperatorAllows) {
  EXPECT_TRUE(AddMail("ann@a.example.com").ok());
  EXPECT_TRUE(AddMail("ann@EXAMPLE.com").ok());
  for (const char* address : {"ann@example.org", "ann@notexample.com", "ann", "",
                              "ann@example.com\r\nBcc: eve@example.com"}) {
    EXPECT_EQ(AddMail(address).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
  v1::AddWebhookRequest request;
  request.set_url("mailto:ann@example.com");
  request.set_format(v1::Webhook::MAIL);
  EXPECT_EQ(webhooks_.Add("default", request, "ann").status().code(),
            absl::StatusCode::kFailedPrecondition)
      << "a server without a relay";
}

TEST_F(MailHookTest, AJobsMailTellsOfThatJobAloneWhatItAsksFor) {
  const auto worker = Join("a", "CPU", 2);
  const std::string asking = SubmitAsking({"ann@example.com", "bob@example.com"}, {"job.started"});
  Submit("CPU", 1);
  Tick();
  Say("a", worker, asking, S::RUNNING);
  EXPECT_EQ(SendAll(), 2);
  std::vector<std::string> to;
  for (const Mail& mail : relay_.mails) {
    to.push_back(mail.to);
    EXPECT_EQ(mail.subject.find("job.started: "), 0u) << mail.subject;
    EXPECT_NE(mail.subject.find(asking), std::string::npos) << mail.subject;
  }
  std::sort(to.begin(), to.end());
  EXPECT_EQ(to, (std::vector<std::string>{"ann@example.com", "bob@example.com"}));
}

TEST_F(MailHookTest, JobsOfOneOwnerShareTheirAddressAndCountForNoWebhooks) {
  for (int i = 0; i < 30; ++i) SubmitAsking({"ann@example.com"}, {});
  SubmitAsking({"ann@example.com"}, {"job.failed"}, "bob");
  EXPECT_EQ(hooks_.List("default")->webhooks_size(), 2) << "of ann's jobs and of bob's";
  EXPECT_TRUE(hooks_.List("default")->webhooks(0).of_jobs());
  EXPECT_EQ(SendAll(), 30) << "job.queued; bob asked for failures";
  for (int i = 0; i < store::kMaxHooks; ++i) EXPECT_TRUE(AddMail("ann@example.com").ok());
  EXPECT_EQ(AddMail("ann@example.com").status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(MailHookTest, AddressesOfJobsThatHaveEndedMakeRoomForOthers) {
  const auto worker = Join("a", "CPU", 1);
  const std::string ended = SubmitAsking({"first@example.com"}, {"job.failed"});
  Tick();
  Say("a", worker, ended, S::RUNNING);
  Say("a", worker, ended, S::DONE, v1::Verdict::USER, "bad_data");
  for (int i = 1; i < store::kMaxJobAddresses; ++i) {
    SubmitAsking({fmt::format("a{}@example.com", i)}, {"job.failed"});
  }
  const auto has = [&](const std::string& address) {
    const auto list = hooks_.List("default");
    return std::ranges::any_of(list->webhooks(), [&](const v1::Webhook& hook) {
      return hook.url() == "mailto:" + address;
    });
  };
  JobRecord more;
  more.project = "default";
  more.owner = "ann";
  more.id = ended;
  const auto ask = [&](const std::string& address) {
    return store_->Write(
        [&](Database& db) { return store::AskToBeTold(db, more, "mailto:" + address, {}); });
  };
  EXPECT_EQ(ask("b@example.com").code(), absl::StatusCode::kResourceExhausted)
      << "the first has something to be told";
  EXPECT_EQ(SendAll(), 1);
  EXPECT_TRUE(ask("b@example.com").ok());
  EXPECT_FALSE(has("first@example.com"));
  EXPECT_TRUE(has("a1@example.com") && has("b@example.com"));
}

TEST_F(MailHookTest, WhoRemovesAJobsAddressHearsNoMore) {
  const std::string job = SubmitAsking({"ann@example.com"}, {});
  EXPECT_EQ(SendAll(), 1);
  const std::string hook = hooks_.List("default")->webhooks(0).id();
  ASSERT_TRUE(hooks_.Remove("default", hook, "ann").ok());
  const auto worker = Join("a", "CPU", 1);
  Tick();
  Say("a", worker, job, S::RUNNING);
  EXPECT_EQ(SendAll(), 0);
}

}  // namespace
}  // namespace sft::server
