#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/base/connection.h"
#include "client/base/upload.h"
#include "client/output/json.h"
#include "sft/v1/job.pb.h"
#include "sft/v1/job_service.pb.h"

namespace sft::client {

// A base model, and the adapter or job with which it answers.
struct Answerer {
  std::string model;
  std::string adapter;   // id of the job that delivered it, or JOB@CHECKPOINT; empty: none
  std::string gpu_type;  // empty: the only one that there is
  std::string project;   // of that job; empty: the server's default
  Json data;             // its table [data]; null: there is no job
};

// What a job has trained answers: its adapter on its base, or its full model, on its type of GPU.
// `checkpoint` ("40", "best", "latest"): what it had trained by then; it may still run.
absl::StatusOr<Answerer> AnswererOfJob(Connection& connection, const std::string& job,
                                       const std::string& checkpoint = {});
// Of --checkpoint.
inline constexpr char kCheckpointHelp[] =
    "What JOB had trained at this step, or at \"best\" or \"latest\" (sftctl checkpoints JOB); it "
    "may still run";

// Why --checkpoint does not go with a job that serves.
std::string ServesNoCheckpoint(const std::string& id);

// The tables [job] and [compute] of a job file for one process that answers. `kind` is job.kind,
// `data` is job.data (empty: none).
std::string AnswererTables(const Answerer& answerer, const std::string& kind,
                           const std::string& name, const std::string& data = {});

// The lines of a table [data] for those keys that the job has: rows are read as it read its own.
std::string DataLines(const Answerer& answerer, const std::vector<std::string_view>& keys);

// Submits a job of one process that answers; a server with several types of GPUs wants to be told
// which.
absl::StatusOr<v1::Job> SubmitAnswerer(Connection& connection, const Answerer& answerer,
                                       const v1::SubmitJobRequest& request);

// Uploads the rows of such a job and names them in its request as job.data.
absl::Status AddRows(Connection& connection, const LocalFile& file, const std::string& project,
                     v1::SubmitJobRequest& request);

// Where programs reach a running job that serves, by OpenAI's API, and as which model. Empty where
// the server has no such address, or is too old for one.
std::string EndpointOf(Connection& connection, const std::string& id);

// After Ctrl-C: ends a job that nobody waits for any more, and says so. Tries for some seconds to
// reach a server that is away.
void CancelOwn(Connection& connection, const std::string& id, const std::string& reason);

}  // namespace sft::client
