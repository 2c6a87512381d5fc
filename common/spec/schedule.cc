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
                           kEnd = "hyperparameters.lr_end", kMaxSteps = "hyperparameters.max_steps";

// warmup_steps is a number of steps, or below 1 a share of them. As in transformers it goes before
// warmup_ratio unless it is 0; alone, 0 means no warm-up.
void ResolveWarmup(Draft* draft) {
  if (draft->Overridden(kWarmup)) draft->DropFromFile(kRatio);
  if (draft->Overridden(kRatio)) draft->DropFromFile(kWarmup);
  if (draft->Faulty({kRatio, kWarmup}) || !draft->Given(kWarmup)) return;
  const double steps = draft->Float(kWarmup);
  if (steps >= 1 && steps != std::floor(steps)) {
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

}  // namespace

void ResolveSchedule(Draft* draft) {
  ResolveWarmup(draft);
  CheckEnd(draft);
  // What other tools write for "not limited".
  if (!draft->Faulty({kMaxSteps}) && draft->Has(kMaxSteps) && draft->Int(kMaxSteps) < 0) {
    draft->Rewrite(kMaxSteps, int64_t{0});
  }
}

}  // namespace sft::spec
