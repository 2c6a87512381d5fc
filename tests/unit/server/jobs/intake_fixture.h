#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/io/sha256.h"
#include "server/jobs/job_intake.h"
#include "server/jobs/sweeps.h"
#include "server/store/checkpoints.h"
#include "server/store/schedules.h"
#include "server/stored/uploads.h"
#include "tests/unit/server/fleet/fleet_fixture.h"

namespace sft::server {

inline constexpr char kJobFile[] = R"([job]
model = "/models/tiny"
data = "rows.jsonl"
[compute]
gpu_type = "CPU"
gpu_count = 2
nodes = 1
gpus_per_node = 2
)";

// Jobs on their way in: the intake over a fleet, with the blobs that were uploaded.
class IntakeTest : public FleetTest {
 protected:
  IntakeTest()
      : blobs_(BlobStore::Open(dir_ + "/blobs").value()),
        relay_(*registry_),
        planner_(*store_, *registry_, relay_),
        intake_(*store_, *blobs_, *jobs_, planner_) {}

  absl::Status Upload(const std::string& content) {
    v1::UploadBlobRequest message;
    message.set_sha256(io::Sha256Hex(content));
    message.set_size(static_cast<int64_t>(content.size()));
    message.set_purpose(v1::UploadBlobRequest::DATASET);
    message.set_display_name("rows.jsonl");
    message.set_data(content);
    UploadSession session(*blobs_, *blobs_, *store_, clock_, {"local"});
    SFT_RETURN_IF_ERROR(session.Take(message));
    return session.Finish().status();
  }
  v1::SubmitJobRequest Request(const std::string& text = kJobFile) {
    v1::SubmitJobRequest request;
    request.set_source_text(text);
    request.set_file_name("job.toml");
    v1::JobFile* file = request.add_files();
    file->set_key("job.data");
    file->set_sha256(io::Sha256Hex(kRows));
    return request;
  }
  // A worker that answers for "/models/..." with this config.json, and has no other file.
  std::shared_ptr<FakeWorker> JoinWithModel(const std::string& config) {
    const auto worker = Join("a", "CPU", 2);
    worker->on_fetch = [this, config](const v1::FetchFile& fetch) {
      v1::SendFileRequest chunk;
      chunk.set_request(fetch.request());
      if (fetch.path().starts_with("/models/")) {
        chunk.set_data(config);
        chunk.set_total_size(static_cast<int64_t>(config.size()));
      } else {
        chunk.set_error("cannot open " + fetch.path() + ": No such file or directory");
      }
      EXPECT_TRUE(relay_.Push(chunk).ok());
      relay_.End(fetch.request());
    };
    return worker;
  }
  // The problems' texts, each "key: message".
  std::vector<std::string> Problems(const v1::SubmitJobRequest& request) {
    const auto outcome = intake_.Submit(request, "local");
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    std::vector<std::string> texts;
    for (const auto& problem : outcome->problems)
      texts.push_back(problem.key + ": " + problem.message);
    return texts;
  }

  template <typename Request>
  static void Set(Request& request, const std::string& key, const std::string& value) {
    v1::Override& added = *request.add_overrides();
    added.set_kind(v1::Override::SET);
    added.set_key(key);
    added.set_value(value);
    added.set_origin("--set");
  }
  static std::string ValueOf(const v1::Job& job, const std::string& key) {
    for (const v1::ResolvedValue& value : job.resolved()) {
      if (value.key() == key) return value.value();
    }
    return "none";
  }
  // The name of a job that was submitted, ran and failed with a checkpoint of step 10.
  std::string EndWithCheckpoint(const v1::SubmitJobRequest& request,
                                const std::shared_ptr<FakeWorker>& worker) {
    const auto outcome = intake_.Submit(request, "local");
    EXPECT_TRUE(outcome.ok() && outcome->problems.empty());
    const std::string name = outcome->job.name();
    Tick();
    CheckpointRecord checkpoint;
    checkpoint.job_id = name.substr(name.rfind('/') + 1);
    checkpoint.attempt_uid = Uid(checkpoint.job_id);
    checkpoint.attempt = 1;
    checkpoint.step = 10;
    checkpoint.created_us = 1;
    const CheckpointPart part{.node = "a"};
    const absl::Status put = store_->Write([&](Database& db) {
      return store::PutCheckpointPart(db, checkpoint, part, {}, 1).status();
    });
    EXPECT_TRUE(put.ok()) << put;
    Report("a", worker, checkpoint.attempt_uid, v1::AttemptStatus::DONE, "nan_loss");
    return name;
  }

  void Limit(const ProjectLimits& limits) {
    EXPECT_TRUE(store_->Write([&](Database& db) { return store::PutLimits(db, limits); }).ok());
  }

  static constexpr char kConfig[] =
      R"({"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_attention_heads":4,)"
      R"("num_key_value_heads":2,"num_hidden_layers":2,"vocab_size":256})";
  static constexpr char kTraining[] = "[hyperparameters]\nper_device_batch = 2\n";
  static constexpr char kRows[] = "{\"text\":\"a\"}\n";
  std::unique_ptr<BlobStore> blobs_;
  FileRelay relay_;
  Planner planner_;
  JobIntake intake_;
};

}  // namespace sft::server
