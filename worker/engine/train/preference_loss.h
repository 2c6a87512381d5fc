#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/data/step_plan.h"
#include "worker/engine/nn/row_objective.h"

namespace sft::engine {

// The losses over preferences and their derivatives, written out. w and l: the summed
// log-probabilities of the tokens of the chosen and the rejected answer, a bar: their mean over
// these tokens, r: the same under the reference, b: beta. As TRL's trainers, but that every mean is
// over the rows of the whole optimizer step.
//
//   dpo    m = (w - rw) - (l - rl)
//     sigmoid       -log s(b m)
//     robust        (-(1 - e) log s(b m) + e log s(-b m)) / (1 - 2 e), e: label_smoothing
//     hinge         max(0, 1 - b m)
//     ipo           (mbar - 1 / (2 b))^2
//     sigmoid_norm  -log s(b mbar)
//   simpo  -log s(b (wbar - lbar) - gamma)
//   orpo   -b log s(log odds(wbar) - log odds(lbar)) + NLL, odds(x) = e^x / (1 - e^x)
//   kto    good: D (1 - s(b (w - rw - z))), bad: U (1 - s(b (z - l + rl))), z: see below
//
// NLL is the mean cross entropy over the chosen answers' targets of the step; sft_weight times it
// is added to dpo and simpo.

// What all rows of a step have in common.
struct PreferenceScale {
  double samples = 0;        // pairs or marked answers: what the loss is divided by in the end
  double chosen_tokens = 0;  // that NLL is divided by
  double kl = 0;             // KTO's z: the mean log-ratio of mismatched answers, 0 if it is less
};

// Places in RowObjectiveResult::sums.
enum PreferenceSum {
  kLossSum,             // the loss times `samples`
  kChosenRewardSum,     // b times the log-ratio, or without a reference the mean log-probability
  kRejectedRewardSum,   //
  kRightSum,            // pairs whose chosen answer has the larger reward; KTO: on its side of z
  kChosenLogpSum,       // log-probabilities of whole answers
  kRejectedLogpSum,     //
  kChosenCount,         // answers
  kRejectedCount,       //
  kChosenAnswerTokens,  // of chosen answers
  kPreferenceSums
};

// The objective of a micro-batch of preference rows. `reference`: log-probabilities of its
// documents under the reference, empty where the loss has none.
RowObjective PreferenceObjective(const spec::JobSpec& spec, const MicroBatch& batch,
                                 const std::vector<double>& reference, const PreferenceScale& scale,
                                 at::Device device);

// Summed log-probabilities of the answers of the batch's documents, fp64 [documents] on the device,
// from the cross entropies of its targets.
at::Tensor AnswerLogps(const MicroBatch& batch, const at::Tensor& cross_entropies);

}  // namespace sft::engine
