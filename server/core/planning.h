#pragma once

#include <string>

#include "common/spec/job_spec.h"
#include "server/core/file_relay.h"
#include "server/core/worker_registry.h"
#include "server/store/store.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// What a job would use and where it would run, before it is submitted: shapes, parameters and
// memory from the model's config.json as a node reported it, placement from the scheduler's own
// rules.
class Planner {
 public:
  Planner(Store& store, WorkerRegistry& registry, FileRelay& relay)
      : store_(store), registry_(registry), relay_(relay) {}

  // Never fails: what cannot be known is said in `note`.
  v1::JobPlan Plan(const spec::JobSpec& spec);

  // ResourceExhausted, saying what would fit, for a job that cannot fit into the GPUs of its type
  // that the fleet has. OK where the model or the memory is not known yet: its ranks look again.
  absl::Status CheckFits(Database& db, const spec::JobSpec& spec);

 private:
  // config.json of the job's model; for a folder that no node listed it is fetched from a node.
  absl::StatusOr<std::string> FindConfig(const spec::JobSpec& spec);

  Store& store_;
  WorkerRegistry& registry_;
  FileRelay& relay_;
};

// "4 x 2 x 8 = 64"
std::string BatchArithmetic(const spec::JobSpec& spec);

}  // namespace sft::server
