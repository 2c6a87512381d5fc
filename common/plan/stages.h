#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/plan/model_config.h"
#include "common/plan/parameters.h"
#include "common/spec/job_spec.h"
#include "common/spec/resolve.h"

// How a model is divided over the stages of a pipeline. Units are those of MakeUnits: the
// embedding, the blocks, then final norm and head.

namespace sft::plan {

// Which units each stage holds. The model is cut into consecutive pieces; piece c is stage
// c % stages's.
struct StageMap {
  int stages = 1;
  // The first unit of each piece, and behind the last the number of units; empty: one stage has
  // all.
  std::vector<int> begins;

  int pieces() const { return begins.empty() ? 1 : static_cast<int>(begins.size()) - 1; }
  int pieces_of_stage() const { return pieces() / stages; }
  int PieceOf(int unit) const;
  int StageOf(int unit) const { return PieceOf(unit) % stages; }
  // "layers 0-9 | 10-19 | 20-29, head"; of several pieces a stage in the order of the model.
  std::string ToText() const;

  bool operator==(const StageMap&) const = default;
};

// What a unit costs the stage that holds it, in any unit of measure.
struct UnitCosts {
  std::vector<double> time;    // of a micro-batch, forward and backward
  std::vector<double> memory;  // that stays: weights, gradients and states
};

// Costs of the units in products of weights and tokens, and in bytes of a rank that shards nothing.
absl::StatusOr<UnitCosts> CostsOf(const ModelShape& shape, const spec::JobSpec& job);

// How the job's model is divided: as hyperparameters.parallelism.device_map says.
//
//   auto        the slowest piece is as fast as it can be
//   balanced    the fullest stage holds as little as it can
//   sequential  each stage is filled up to `stage_memory` before the next; 0: as balanced
//   a table     module by module
//
// One stage where pipeline_parallel_size is 1. InvalidArgument where the model has fewer layers
// than pieces, where stages would be empty, or for a table that does not name every module, names
// one that is not there, or goes back; the message says what would do.
absl::StatusOr<StageMap> DivideModel(const ModelShape& shape, const spec::JobSpec& job,
                                     double stage_memory = 0);

// The units of the stage that holds most between steps.
std::vector<Unit> FullestStage(const std::vector<Unit>& units, const StageMap& stages,
                               const spec::JobSpec& job);

// For people: "4 stages: layers 0-9 | 10-19 | 20-29 | 30-35 + head; idle for 16 % of a step".
std::string DescribeStages(const StageMap& stages, const spec::JobSpec& job);

// Why the model cannot be divided as the job asks, or nullopt. Of a job that CheckJob accepts.
std::optional<spec::Problem> CheckStages(const ModelShape& shape, const spec::JobSpec& job);

// A pipeline whose GPUs wait for most of a step, as there are too few micro-batches, and how many
// would do.
std::vector<spec::Problem> WarnOfStages(const spec::JobSpec& job);

}  // namespace sft::plan
