#pragma once

#include <map>
#include <optional>
#include <string>

#include "common/base/mutex.h"
#include "common/plan/model_config.h"
#include "common/spec/job_spec.h"
#include "common/spec/resolve.h"
#include "server/fleet/file_relay.h"
#include "server/fleet/fleet_catalog.h"
#include "server/fleet/worker_registry.h"
#include "server/store/store.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// What a job would use and where it would run, before it is submitted: shapes, parameters and
// memory from the model's config.json as a node reported it, placement from the scheduler's own
// rules.
class Planner {
 public:
  Planner(Store& store, WorkerRegistry& registry, FileRelay& relay)
      : store_(store), registry_(registry), relay_(relay), fleet_(store) {}

  // What it goes by.
  FleetCatalog& fleet() { return fleet_; }

  // Never fails: what cannot be known is said in `note`. `rows` as in ExpectedRun.
  v1::JobPlan Plan(const spec::JobSpec& spec, int64_t rows = 0);

  // How long the job runs by the plan's time model, with full rows; 0: nobody can tell. `rows` of
  // its training data; 0: they are not known, and max_steps alone tells its length.
  struct Run {
    int64_t duration_us = 0;
    int64_t steps = 0;
  };
  Run ExpectedRun(const spec::JobSpec& spec, int64_t rows);

  // What is wrong with the job's model, or with what the job asks of it, by its config.json on the
  // nodes; nothing when no node could be asked. Of a job that is `complete`, having no problems so
  // far, also what would make it fit where it cannot fit into any GPU of its type that the fleet
  // has; where the memory is not known yet its ranks look again. Waits for a node: never inside a
  // transaction.
  std::optional<spec::Problem> CheckModel(const spec::JobSpec& spec, bool complete);

  // What is odd about the job for this model, though it can run; nothing where the model is not
  // known. Waits for a node, as CheckModel.
  std::optional<spec::Problem> WarnOfModel(const spec::JobSpec& spec);

  // plan::WithPrecision for the largest GPUs of the job's type; where they or the model are not
  // known, and for CPUs, the most precise. Waits for a node, as CheckModel.
  spec::JobSpec ChoosePrecision(const spec::JobSpec& spec);

 private:
  std::optional<spec::Problem> CheckFits(const plan::ModelShape& shape, const spec::JobSpec& spec);
  // config.json of the job's model; for a folder that no node listed it is fetched from a node.
  // UNAVAILABLE when there is no node to ask; what the last node answered when none has it.
  absl::StatusOr<std::string> FindConfig(const spec::JobSpec& spec);
  absl::StatusOr<std::string> FetchConfig(const std::string& node, const std::string& model);

  // Of the largest GPU of the job's type; 0: not known.
  int64_t GpuMemory(const spec::JobSpec& spec);
  // Of a step by the plan; 0: not known. Plans are kept for repeats, as of a sweep.
  double StepSeconds(const spec::JobSpec& spec) SFT_EXCLUDES(mutex_);

  Store& store_;
  WorkerRegistry& registry_;
  FileRelay& relay_;
  FleetCatalog fleet_;
  Mutex mutex_;
  std::map<std::string, double> step_seconds_ SFT_GUARDED_BY(mutex_);
};

// "4 x 2 x 8 = 64"
std::string BatchArithmetic(const spec::JobSpec& spec);

}  // namespace sft::server
