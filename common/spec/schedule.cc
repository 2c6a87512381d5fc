#include <fmt/format.h>

#include <cmath>

#include "common/spec/draft.h"

// The learning rate over a run: the length of the warm-up, the numbers of its decay, and the number
// of steps.

namespace sft::spec {
namespace {

constexpr std::string_view kRatio = "hyperparameters.warmup_ratio",
                           kWarmup = "hyperparameters.warmup_steps",
                           kRate = "hyperparameters.learning_rate",
                           kScheduler = "hyperparameters.lr_scheduler",
                           kEnd = "hyperparameters.lr_end", kMin = "hyperparameters.lr_min",
                           kMinRatio = "hyperparameters.lr_min_ratio",
                           kDecaySteps = "hyperparameters.lr_decay_steps",
                           kMaxSteps = "hyperparameters.max_steps";

// The words of the schedules that fall to lr_min or lr_min_ratio.
constexpr std::string_view kWithMin = "cosine_with_min_lr", kStable = "warmup_stable_decay";

bool IsWhole(double steps) { return steps == std::floor(steps); }

// warmup_steps is a number of steps, or below 1 a share of them. As in transformers it goes before
// warmup_ratio unless it is 0; alone, 0 means no warm-up.
void ResolveWarmup(Draft* draft) {
  if (draft->Overridden(kWarmup)) draft->DropFromFile(kRatio);
  if (draft->Overridden(kRatio)) draft->DropFromFile(kWarmup);
  if (draft->Faulty({kRatio, kWarmup}) || !draft->Given(kWarmup)) return;
  const double steps = draft->Float(kWarmup);
  if (steps >= 1 && !IsWhole(steps)) {
    draft->AddProblem(
        kWarmup,
        fmt::format("must be a whole number of steps, or a share below 1, but is {}", steps));
    return;
  }
  if (draft->Has(kRatio)) {
    if (steps == 0) return;
    if (draft->Float(kRatio) != 0) {
      draft->AddWarning(kRatio, fmt::format("has no effect: {} counts", draft->Quote(kWarmup)));
    }
  }
  if (steps == 0) draft->Derive(kRatio, 0.0, kWarmup);
  if (steps == 0 || steps >= 1) return;
  draft->TakeFrom(kRatio, kWarmup);
  draft->Derive(kWarmup, 0.0, "a share is warmup_ratio");
}

// The polynomial falls from one rate to a lower one.
void CheckEnd(Draft* draft) {
  const JobSpec::Hyperparameters defaults;
  if (draft->String(kScheduler) != "polynomial" || draft->Faulty({kRate, kEnd})) return;
  const double peak = draft->Has(kRate) ? draft->Float(kRate) : defaults.learning_rate;
  const double end = draft->Has(kEnd) ? draft->Float(kEnd) : defaults.lr_scheduler.end;
  if (end < peak) return;
  draft->AddProblem(draft->Has(kEnd) ? kEnd : kRate,
                    fmt::format("with lr_scheduler = \"polynomial\" the rate falls from "
                                "learning_rate = {} to lr_end = {}, which must be below it",
                                peak, end));
}

// One of lr_min and lr_min_ratio says where the rate ends, below its peak.
void CheckLeast(Draft* draft) {
  if (draft->Overridden(kMin)) draft->DropFromFile(kMinRatio);
  if (draft->Overridden(kMinRatio)) draft->DropFromFile(kMin);
  const std::string kind = draft->String(kScheduler);
  if (kind != kWithMin && kind != kStable) return;
  if (draft->Faulty({kRate, kMin, kMinRatio})) return;
  const bool least = draft->Given(kMin), ratio = draft->Given(kMinRatio);
  if (kind == kWithMin && !least && !ratio) {
    draft->AddProblem(kScheduler, fmt::format("{} needs lr_min, or lr_min_ratio for a share of "
                                              "learning_rate; \"cosine\" falls to 0",
                                              draft->Quote(kScheduler)));
  }
  if (least && ratio) {
    draft->AddProblem(kMinRatio, fmt::format("{} and {} both say where the rate ends; keep one",
                                             draft->Quote(kMinRatio), draft->Quote(kMin)));
  }
  const JobSpec::Hyperparameters defaults;
  const double peak = draft->Has(kRate) ? draft->Float(kRate) : defaults.learning_rate;
  if (!least || draft->Float(kMin) < peak) return;
  draft->AddProblem(kMin, fmt::format("with lr_scheduler = \"{}\" the rate falls from "
                                      "learning_rate = {} to lr_min = {}, which must be below it",
                                      kind, peak, draft->Float(kMin)));
}

void CheckDecaySteps(Draft* draft) {
  if (draft->Faulty({kDecaySteps}) || !draft->Given(kDecaySteps)) return;
  const double steps = draft->Float(kDecaySteps);
  if (steps < 1 || IsWhole(steps)) return;
  draft->AddProblem(
      kDecaySteps,
      fmt::format("must be a whole number of steps, or a share below 1, but is {}", steps));
}

}  // namespace

void ResolveSchedule(Draft* draft) {
  ResolveWarmup(draft);
  CheckEnd(draft);
  CheckLeast(draft);
  CheckDecaySteps(draft);
  // What other tools write for "not limited".
  if (!draft->Faulty({kMaxSteps}) && draft->Has(kMaxSteps) && draft->Int(kMaxSteps) < 0) {
    draft->Rewrite(kMaxSteps, int64_t{0});
  }
}

}  // namespace sft::spec
