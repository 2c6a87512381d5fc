#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/version.h"
#include "common/io/file.h"
#include "server/fleet/worker_registry.h"
#include "server/jobs/job_manager.h"
#include "server/scheduling/reconciler.h"
#include "server/store/attempts.h"
#include "server/store/nodes.h"

namespace sft::server {

// A worker without a stream: keeps what the server sent it, and reports what a test tells it to.
class FakeWorker : public WorkerLink {
 public:
  void Send(const v1::ServerMessage& message) override {
    if (message.has_desired()) {
      desired = message.desired();
      ++desired_count;
    }
    dismissed = dismissed || message.has_dismissed();
    if (message.has_notice()) notices.push_back(message.notice().text());
    if (message.has_ask() && on_ask) on_ask(message.ask());
    if (message.has_record_steps() && on_record) on_record(message.record_steps());
    if (!message.has_fetch_file()) return;
    fetches.push_back(message.fetch_file());
    if (on_fetch) on_fetch(message.fetch_file());
  }
  void Close(const absl::Status& why) override { closed = why; }

  // The desired state of an attempt; null: none.
  const v1::DesiredAttempt* Wanted(const std::string& uid) const {
    for (const auto& attempt : desired.attempts()) {
      if (attempt.attempt_uid() == uid) return &attempt;
    }
    return nullptr;
  }

  v1::Desired desired;
  int desired_count = 0;
  bool dismissed = false;
  std::vector<v1::FetchFile> fetches;
  std::vector<std::string> notices;
  std::function<void(const v1::FetchFile&)> on_fetch;  // answers the server, if a test needs that
  std::function<void(const v1::Ask&)> on_ask;
  std::function<void(const v1::RecordSteps&)> on_record;
  absl::Status closed = absl::OkStatus();
};

// The server's core over a real database in a temporary folder, stepped by hand: the store's thread
// is the only one, and the clock is fake.
class FleetTest : public testing::Test {
 protected:
  FleetTest() : dir_(io::MakeTempDir("fleet-test").value()) { Boot(); }
  ~FleetTest() override {
    Halt();
    (void)io::RemoveAll(dir_);
  }

  // Starts a server process, or ends it as by kill -9: only the database stays.
  void Boot() {
    store_ = Store::Open({dir_ + "/server.db"}).value();
    registry_ = std::make_unique<WorkerRegistry>(WorkerRegistry::Options(), *store_, clock_, hub_,
                                                 [this] { ++wakes_; });
    jobs_ = std::make_unique<JobManager>(*store_, clock_, hub_, [this] { ++wakes_; });
    reconciler_ = std::make_unique<Reconciler>(*store_, clock_, *registry_, hub_);
  }
  void Halt() {
    reconciler_.reset();
    jobs_.reset();
    registry_.reset();
    store_.reset();
  }

  static v1::Register RegisterOf(const std::string& node, const std::string& type, int slots,
                                 const std::string& incarnation = "life-1") {
    v1::Register message;
    message.set_node(node);
    message.set_incarnation(incarnation);
    message.set_version(kVersion);
    message.set_protocol(kProtocol);
    message.set_hostname("host-of-" + node);
    for (int i = 0; i < slots; ++i) {
      v1::Slot* slot = message.add_slots();
      slot->set_index(i);
      slot->set_gpu_type(type);
      slot->set_healthy(true);
    }
    return message;
  }
  std::shared_ptr<FakeWorker> Join(const std::string& node, const std::string& type, int slots,
                                   const std::string& incarnation = "life-1") {
    auto worker = std::make_shared<FakeWorker>();
    const absl::Status joined =
        registry_->Connect(RegisterOf(node, type, slots, incarnation), worker);
    EXPECT_TRUE(joined.ok()) << joined;
    return worker;
  }

  std::string Submit(const std::string& type, int gpus_per_node, int nodes = 1) {
    JobRecord job;
    job.id = "job-" + std::to_string(++submitted_);
    job.project = "default";
    job.owner = "local";
    job.gpu_type = type;
    job.gpus_per_node = gpus_per_node;
    job.nodes = nodes;
    job.spec.emplace();
    EXPECT_TRUE(jobs_->Submit(job, {}).ok());
    return job.id;
  }
  void Tick() {
    const absl::Status ticked = reconciler_->Tick();
    EXPECT_TRUE(ticked.ok()) << ticked;
  }
  v1::Job Job(const std::string& id) { return jobs_->Get(id).value(); }
  v1::Job::State State(const std::string& id) { return Job(id).state(); }
  std::string Uid(const std::string& job) {
    std::string uid;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(const JobRecord record, store::GetJob(db, job));
                      SFT_ASSIGN_OR_RETURN(const auto attempt,
                                           store::AttemptOfJob(db, job, record.attempt));
                      uid = attempt->uid;
                      return absl::OkStatus();
                    })
                    .ok());
    return uid;
  }

  static v1::AttemptStatus StatusOf(const std::string& uid, v1::AttemptStatus::State state,
                                    const std::string& code = "") {
    v1::AttemptStatus status;
    status.set_attempt_uid(uid);
    status.set_epoch(1);
    status.set_state(state);
    if (!code.empty()) {
      v1::Verdict* verdict = status.mutable_verdict();
      verdict->set_code(code);
      verdict->set_message(code + " happened");
      verdict->set_rank(-1);
      verdict->set_domain(code == "succeeded" ? v1::Verdict::NONE : v1::Verdict::USER);
    }
    return status;
  }
  absl::Status Observe(const std::string& node, const std::shared_ptr<FakeWorker>& worker,
                       const std::vector<v1::AttemptStatus>& attempts) {
    v1::Observed observed;
    for (const auto& attempt : attempts) *observed.add_attempts() = attempt;
    return registry_->Observe(node, worker.get(), observed);
  }
  // Reports one attempt in one state, then ticks.
  void Report(const std::string& node, const std::shared_ptr<FakeWorker>& worker,
              const std::string& uid, v1::AttemptStatus::State state,
              const std::string& code = "") {
    const absl::Status taken = Observe(node, worker, {StatusOf(uid, state, code)});
    EXPECT_TRUE(taken.ok()) << taken;
    Tick();
  }
  size_t HeldSlots() {
    size_t held = 0;
    EXPECT_TRUE(store_
                    ->Read([&](Database& db) -> absl::Status {
                      SFT_ASSIGN_OR_RETURN(const store::Holders holders, store::LiveHolders(db));
                      held = holders.size();
                      return absl::OkStatus();
                    })
                    .ok());
    return held;
  }

  const std::string dir_;
  FakeClock clock_;
  ChangeHub hub_;
  int wakes_ = 0;
  int submitted_ = 0;
  std::unique_ptr<Store> store_;
  std::unique_ptr<WorkerRegistry> registry_;
  std::unique_ptr<JobManager> jobs_;
  std::unique_ptr<Reconciler> reconciler_;
};

}  // namespace sft::server
