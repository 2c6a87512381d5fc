#pragma once

#include "common/base/json.h"
#include "common/io/sha256.h"
#include "common/spec/job_json.h"
#include "server/store/checkpoints.h"
#include "server/stored/checkpoints.h"
#include "server/stored/uploads.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {

// A fleet whose server keeps checkpoints, with nodes that report step by step.
class LifeTest : public FleetTest {
 protected:
  using S = v1::AttemptStatus;
  using D = v1::DesiredAttempt;
  using seconds = std::chrono::seconds;
  using minutes = std::chrono::minutes;

  LifeTest() : blobs_(BlobStore::Open(dir_ + "/checkpoints").value()) { MakeCheckpoints(); }

  void MakeCheckpoints() {
    checkpoints_ = std::make_unique<Checkpoints>(*store_, clock_, *blobs_, hub_, [] {});
  }
  void RestartServer() {
    checkpoints_.reset();
    Halt();
    Boot();
    MakeCheckpoints();
  }

  // A job's resolved JSON with more keys of [compute] and [checkpoint].
  std::string SubmitWith(const std::string& resolved, const std::string& type = "CPU",
                         int per_node = 1, int nodes = 1) {
    JobRecord job;
    job.id = "job-" + std::to_string(++submitted_);
    job.project = "default";
    job.owner = "local";
    job.gpu_type = type;
    job.gpus_per_node = per_node;
    job.nodes = nodes;
    job.spec = spec::FromJson(ParseJson(resolved)).value();
    EXPECT_TRUE(jobs_->Submit(job, {}).ok());
    return job.id;
  }

  // As if a newer server, or damage, had left it.
  void SpoilSettings(const std::string& job) {
    const std::string text = R"('{"lora":{"of_later":1}}')";
    const std::string update = "UPDATE job_texts SET resolved_json = " + text +
                               " WHERE sequence = (SELECT sequence FROM jobs WHERE id = '" + job +
                               "')";
    const absl::Status spoiled =
        store_->Write([&](Database& db) { return db.Execute(update.c_str()); });
    EXPECT_TRUE(spoiled.ok()) << spoiled;
  }

  int Attempt(const std::string& job) { return Job(job).attempt(); }
  // Reports the job's current attempt, then ticks.
  void Say(const std::string& node, const std::shared_ptr<FakeWorker>& worker,
           const std::string& job, S::State state, v1::Verdict::Domain domain = v1::Verdict::NONE,
           const std::string& code = "", int64_t step = 0) {
    v1::AttemptStatus status = StatusOf(Uid(job), state, code);
    status.set_epoch(Attempt(job));
    if (!code.empty()) status.mutable_verdict()->set_domain(domain);
    if (step > 0) status.mutable_progress()->set_step(step);
    const absl::Status taken = Observe(node, worker, {status});
    EXPECT_TRUE(taken.ok()) << taken;
    Tick();
  }
  void Fail(const std::string& node, const std::shared_ptr<FakeWorker>& worker,
            const std::string& job, const std::string& code = "rank_killed",
            v1::Verdict::Domain domain = v1::Verdict::INFRASTRUCTURE) {
    Say(node, worker, job, S::DONE, domain, code);
  }
  v1::CommitCheckpointRequest CommitOf(const std::string& job, int64_t step,
                                       const std::string& node, const std::string& content) {
    const std::string hash = io::Sha256Hex(content);
    v1::UploadBlobRequest upload;
    upload.set_sha256(hash);
    upload.set_size(static_cast<int64_t>(content.size()));
    upload.set_purpose(v1::UploadBlobRequest::CHECKPOINT);
    upload.set_data(content);
    UploadSession session(*blobs_, *blobs_, *store_, clock_,
                          {.owner = node, .node = node, .attempt_uid = Uid(job)});
    EXPECT_TRUE(session.Take(upload).ok());
    EXPECT_TRUE(session.Finish().ok());
    v1::CommitCheckpointRequest request;
    request.set_attempt_uid(Uid(job));
    request.set_epoch(Attempt(job));
    request.set_node(node);
    request.set_step(step);
    request.set_bytes(static_cast<int64_t>(content.size()));
    request.set_reason("steps");
    v1::ArtifactFile& file = *request.add_files();
    file.set_path("rank-0");
    file.mutable_blob()->set_sha256(hash);
    file.mutable_blob()->set_size(static_cast<int64_t>(content.size()));
    return request;
  }
  bool Commit(const std::string& job, int64_t step, const std::string& node = "a") {
    const auto answer =
        checkpoints_->Commit(CommitOf(job, step, node, "state " + std::to_string(step)));
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() && answer->committed();
  }
  // Commits a checkpoint that exists only on its node's disk.
  void CommitOnDisk(const std::string& job, int64_t step, const std::string& node) {
    v1::CommitCheckpointRequest request;
    request.set_attempt_uid(Uid(job));
    request.set_epoch(Attempt(job));
    request.set_node(node);
    request.set_step(step);
    request.set_bytes(10);
    request.set_reason("steps");
    request.set_node_path("/checkpoints/" + job + "/step-" + std::to_string(step));
    const auto answer = checkpoints_->Commit(request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(answer.ok() && answer->committed());
  }
  // The id of a new job that continues an ended one.
  std::string Resume(const std::string& job, int64_t step = 0) {
    v1::ResumeJobRequest request;
    request.set_name(job);
    request.set_step(step);
    const absl::StatusOr<v1::Job> next = jobs_->Resume(request, "ann");
    EXPECT_TRUE(next.ok()) << next.status();
    return next.ok() ? next->name().substr(next->name().rfind('/') + 1) : "";
  }
  std::vector<int64_t> Steps(const std::string& job) {
    std::vector<int64_t> steps;
    const v1::ListCheckpointsResponse list = checkpoints_->List(job).value();
    for (const auto& each : list.checkpoints()) steps.push_back(each.step());
    return steps;
  }
  // Lets time pass in silence, except for the worker that goes on reporting `status` (null:
  // nothing).
  void PassSilently(seconds time, const std::string& node = "",
                    const std::shared_ptr<FakeWorker>& worker = nullptr,
                    const std::vector<v1::AttemptStatus>& said = {}) {
    constexpr seconds kStep{4};
    for (seconds passed{0}; passed < time; passed += kStep) {
      clock_.Advance(kStep);
      reconciler_->Beat();
      if (worker != nullptr) {
        ASSERT_TRUE(Observe(node, worker, said).ok());
      }
      Tick();
    }
  }

  std::unique_ptr<BlobStore> blobs_;
  std::unique_ptr<Checkpoints> checkpoints_;
};

}  // namespace sft::server
