#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/plan/model_config.h"
#include "common/spec/job_spec.h"
#include "common/spec/layout.h"
#include "common/spec/resolve.h"
#include "server/fleet/file_relay.h"
#include "server/fleet/fleet_catalog.h"
#include "server/fleet/hub_models.h"
#include "server/fleet/worker_registry.h"
#include "server/store/store.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server {

// Plans a job before it is submitted: what it would use and where it would run. Shapes, parameters
// and memory come from the model's config.json as a node reported it, placement from the
// scheduler's own rules.
class Planner {
 public:
  // `hub` may be null: nothing is known then of models that no node has.
  Planner(Store& store, WorkerRegistry& registry, FileRelay& relay, HubModels* hub = nullptr)
      : store_(store), registry_(registry), relay_(relay), hub_(hub), fleet_(store) {}

  // The catalog that it plans with.
  FleetCatalog& fleet() { return fleet_; }
  HubModels* hub() { return hub_; }

  // For a submit to the project. Never fails: `note` says what cannot be known. `rows` as in
  // ExpectedRun.
  v1::JobPlan Plan(const spec::JobSpec& spec, const std::string& project, int64_t rows = 0);

  // The job's run time by the plan's time model, with full rows; 0: unknown. `rows` is the number
  // of its training rows; 0 means unknown, and then only max_steps tells its length.
  struct Run {
    int64_t duration_us = 0;
    int64_t steps = 0;
  };
  Run ExpectedRun(const spec::JobSpec& spec, int64_t rows);

  // Finds a problem with the job's model, or with what the job asks of it, from its config.json on
  // the nodes; nullopt when no node could be asked. For a job that is `complete` (no problems so
  // far) also checks that it fits into a GPU of its type in the fleet, and says what would make it
  // fit; where the memory is not known yet its ranks check again. Waits for a node: never call it
  // inside a transaction.
  std::optional<spec::Problem> CheckModel(const spec::JobSpec& spec, bool complete);

  // Warns about what is unusual in the job for this model, although it can run; nothing where the
  // model is not known. Waits for a node, as CheckModel.
  std::vector<spec::Problem> WarnOfModel(const spec::JobSpec& spec);

  // How a job is divided over its GPUs, and how else it could be.
  struct LayoutChoice {
    // The job's layout, then the fastest of the others; empty where there is nothing to choose, or
    // where the GPUs or the model are not known.
    std::vector<v1::Layout> layouts;
    std::string reason;      // of JobPlan
    bool faster = false;     // another would be clearly faster than the one that the job names
    bool fits_none = false;  // the job fits in no layout, and names none
    // The job in the layout that the plan has chosen; none for one that names its own. Where it
    // fits in none, in the first that goes with its model and that workers know, if there is one.
    std::optional<spec::Resolution> chosen;
  };
  // plan::ChooseLayout for the largest GPUs of the job's type. `resolution` is that of the text,
  // and complete. Choices are cached, as plans are. Waits for a node, as CheckModel.
  LayoutChoice ChooseLayout(const spec::JobText& text, const spec::Resolution& resolution)
      SFT_EXCLUDES(mutex_);

  // plan::WithPrecision for the largest GPUs of the job's type; the most precise choice for CPUs,
  // and where the GPUs or the model are not known. Waits for a node, as CheckModel.
  spec::JobSpec ChoosePrecision(const spec::JobSpec& spec);

 private:
  // For jobs that answer prompts, which need the weights alone.
  std::optional<spec::Problem> CheckWeightsFit(const plan::ModelShape& shape,
                                               const spec::JobSpec& spec);
  std::optional<spec::Problem> CheckFits(const plan::ModelShape& shape, const spec::JobSpec& spec);
  // config.json of the job's model; for a folder that no node listed it is fetched from a node.
  // UNAVAILABLE when there is no node to ask; the last node's answer when none has it.
  absl::StatusOr<std::string> FindConfig(const spec::JobSpec& spec);
  absl::StatusOr<std::string> FetchConfig(const std::string& node, const std::string& model);

  // A layout with its plan's figures.
  struct KnownLayout {
    spec::Layout layout;
    double tokens_per_second = 0;
    int64_t memory_bytes = 0;
  };
  // Those of LayoutChoice::layouts; `protocol` as KnownProtocol.
  std::vector<KnownLayout> PlanLayouts(const plan::ModelShape& shape, int64_t memory,
                                       const spec::JobText& text,
                                       const spec::Resolution& resolution, int protocol);
  // The newest wire protocol of connected nodes with GPUs of the type, whose keys a plan may take;
  // without such nodes that of this release.
  int KnownProtocol(const std::string& gpu_type);

  // Memory of the largest GPU of the job's type; 0: not known.
  int64_t GpuMemory(const spec::JobSpec& spec);
  // Planned seconds per step; 0: not known. Plans are cached for repeated jobs, such as those of a
  // sweep.
  double StepSeconds(const spec::JobSpec& spec) SFT_EXCLUDES(mutex_);

  Store& store_;
  WorkerRegistry& registry_;
  FileRelay& relay_;
  HubModels* const hub_;
  FleetCatalog fleet_;
  Mutex mutex_;
  std::map<std::string, double> step_seconds_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<KnownLayout>> layouts_ SFT_GUARDED_BY(mutex_);
};

// Plans that a planner keeps, of each kind, and what tells apart jobs whose plans differ.
inline constexpr size_t kMostKnownPlans = 1000;
std::string PlanKey(const spec::JobSpec& spec, int64_t memory, const std::string& config);

// "4 x 2 x 8 = 64"
std::string BatchArithmetic(const spec::JobSpec& spec);

}  // namespace sft::server
