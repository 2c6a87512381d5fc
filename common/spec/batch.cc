#include "common/spec/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "common/spec/draft.h"

// The batch arithmetic: global_batch = per_device_batch * gpu_count * gradient_accumulation_steps,
// with fewer than gpu_count where several GPUs share a row.

namespace sft::spec {
namespace {

constexpr std::string_view kGlobal = "hyperparameters.global_batch",
                           kDevice = "hyperparameters.per_device_batch",
                           kSteps = "hyperparameters.gradient_accumulation_steps";
constexpr int64_t kDefaultDeviceBatch = 4;
// Sequences per step and GPU where the plan chooses the batch and the file gives none.
constexpr int64_t kPlannedSequences = 16;
constexpr int64_t kMaxGlobalBatch = 1'000'000'000;

// Suggestions for a message: the multiples of `unit` around `wanted`.
std::string Multiples(int64_t wanted, int64_t unit) {
  const int64_t below = wanted / unit * unit;
  return below > 0 ? fmt::format("{} or {}", below, below + unit) : fmt::format("{}", unit);
}

// Derives the factor `result` = global / (other * gpus), or adds a problem that says what would
// divide.
void DeriveFactor(std::string_view result, std::string_view other, Draft* draft) {
  const int64_t global = draft->Int(kGlobal);
  const RowRanks ranks = RowRanksOf(*draft);
  const int64_t unit = draft->Int(other) * ranks.count;
  if (global % unit != 0) {
    draft->AddProblem(
        kGlobal, fmt::format("{} is not a multiple of {} * {} = {}; global_batch = {} would be",
                             draft->Quote(kGlobal), draft->Quote(other), ranks.quote, unit,
                             Multiples(global, unit)));
    return;
  }
  draft->Derive(result, global / unit,
                fmt::format("global_batch / ({} * {})", LeafOf(other), ranks.formula));
}

void DeriveGlobal(Draft* draft) {
  const RowRanks ranks = RowRanksOf(*draft);
  const int64_t product = draft->Int(kDevice) * ranks.count * draft->Int(kSteps);
  if (product > kMaxGlobalBatch) {
    draft->AddProblem(kSteps,
                      fmt::format("{} * {} * {} = {} sequences a step; at most {} are possible",
                                  draft->Quote(kDevice), ranks.quote, draft->Quote(kSteps), product,
                                  kMaxGlobalBatch));
    return;
  }
  draft->Derive(kGlobal, product,
                fmt::format("per_device_batch * {} * gradient_accumulation_steps", ranks.formula));
}

// All three are given. Two overrides beat the third value; among the file's values global_batch
// wins and the accumulation follows.
void ResolveThree(Draft* draft) {
  const RowRanks ranks = RowRanksOf(*draft);
  const int64_t product = draft->Int(kDevice) * ranks.count * draft->Int(kSteps);
  const int64_t global = draft->Int(kGlobal);
  if (product == global) return;
  const std::string both = fmt::format(
      "per_device_batch {} * {} {} * gradient_accumulation_steps {} = {}, but global_batch is {}",
      draft->Int(kDevice), ranks.formula, ranks.count, draft->Int(kSteps), product, global);
  const bool device = draft->Overridden(kDevice), steps = draft->Overridden(kSteps),
             global_given = draft->Overridden(kGlobal);
  // A DeepSpeed JSON written for other numbers is not silently corrected.
  const bool attached =
      draft->Attached(kDevice) || draft->Attached(kSteps) || draft->Attached(kGlobal);
  if (attached && !device && !steps && !global_given) {
    draft->AddProblem(
        kGlobal,
        fmt::format("{}: {}, {} and {} do not agree; global_batch = {} would", both,
                    draft->Quote(kDevice), draft->Quote(kSteps), draft->Quote(kGlobal), product));
    return;
  }
  if (device && steps && global_given) {
    draft->AddProblem(kGlobal, fmt::format("{}; global_batch = {} would agree", both, product));
    return;
  }
  if (steps && !global_given) {
    DeriveGlobal(draft);
    draft->AddWarning(
        kGlobal, fmt::format("{}: the override stands, global_batch becomes {}", both, product));
    return;
  }
  const std::string_view result = steps ? kDevice : kSteps;
  DeriveFactor(result, steps ? kSteps : kDevice, draft);
  if (draft->Faulty({kGlobal})) return;
  draft->AddWarning(kGlobal, fmt::format("{}: global_batch stands, {} becomes {}", both,
                                         LeafOf(result), draft->Int(result)));
}

// Derives the largest batch up to the default that divides a rank's rows, and its accumulation.
void DeriveBoth(Draft* draft) {
  const RowRanks ranks = RowRanksOf(*draft);
  const int64_t global = draft->Int(kGlobal), count = ranks.count;
  const int64_t batch = global % count == 0 ? UnplannedRows(global / count) : 1;
  draft->Derive(kDevice, batch, "global_batch / " + ranks.formula);
  DeriveFactor(kSteps, kDevice, draft);
}

// per_device_batch = "auto": the plan divides a rank's rows, unless the accumulation is given.
void ResolveAuto(Draft* draft) {
  if (draft->Overridden(kDevice)) draft->DropFromFile(kSteps);
  if (draft->Has(kSteps)) {
    if (draft->Has(kGlobal)) return DeriveFactor(kDevice, kSteps, draft);
    draft->AddProblem(kDevice,
                      fmt::format("{} with {} leaves open how many sequences a step has; give "
                                  "global_batch, or leave gradient_accumulation_steps to \"auto\"",
                                  draft->Quote(kDevice), draft->Quote(kSteps)));
    return;
  }
  const RowRanks ranks = RowRanksOf(*draft);
  const int64_t count = ranks.count;
  if (!draft->Has(kGlobal)) {
    draft->Derive(kGlobal, kPlannedSequences * count, "16 * " + ranks.formula);
    if (draft->Overridden(kDevice)) {
      draft->AddWarning(kDevice, fmt::format("{} leaves open how many sequences a step has: "
                                             "global_batch becomes {}; give it to keep another",
                                             draft->Quote(kDevice), draft->Int(kGlobal)));
    }
  }
  const int64_t global = draft->Int(kGlobal);
  if (global % count != 0) {
    draft->AddProblem(kGlobal,
                      fmt::format("{} is not a multiple of {}; global_batch = {} would be",
                                  draft->Quote(kGlobal), ranks.quote, Multiples(global, count)));
    return;
  }
  // CPU ranks have no plan.
  if (draft->String("compute.gpu_type") == "CPU") return DeriveBoth(draft);
  draft->Derive(kSteps, int64_t{0}, "the plan, with per_device_batch");
}

}  // namespace

int64_t UnplannedRows(int64_t rank_rows) {
  int64_t rows = std::min(kDefaultDeviceBatch, rank_rows);
  while (rank_rows % rows != 0) --rows;
  return rows;
}

void ResolveBatch(Draft* draft) {
  if (draft->Faulty(
          {kGlobal, kDevice, kSteps, kGpuCountKey, kPipelineKey, kContextKey, kTensorKey}) ||
      !draft->Has(kGpuCountKey))
    return;
  if (draft->Has(kDevice) && draft->Int(kDevice) == 0) return ResolveAuto(draft);
  const bool device = draft->Has(kDevice), steps = draft->Has(kSteps), global = draft->Has(kGlobal);
  if (device && steps && global) {
    ResolveThree(draft);
    return;
  }
  if (!global) {
    if (!device) draft->Derive(kDevice, kDefaultDeviceBatch, "the default");
    if (!steps) draft->Derive(kSteps, int64_t{1}, "the default");
    DeriveGlobal(draft);
    return;
  }
  if (!device && !steps) {
    DeriveBoth(draft);
    return;
  }
  DeriveFactor(device ? kSteps : kDevice, device ? kDevice : kSteps, draft);
}

int64_t StepsOfEpochs(double n_epochs, int64_t steps_per_epoch) {
  // In floating point 0.1 * 30 is a little more than 3; it must not become 4 steps.
  const double exact = n_epochs * static_cast<double>(steps_per_epoch);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(exact - 1e-6)));
}

}  // namespace sft::spec
