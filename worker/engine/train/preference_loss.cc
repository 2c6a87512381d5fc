#include "worker/engine/train/preference_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/log.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <memory>

namespace sft::engine {
namespace {

using at::Tensor;
using Preference = spec::JobSpec::Training::Preference;

template <typename T>
Tensor OnDevice(std::vector<T> values, at::ScalarType type, at::Device device) {
  const Tensor host = at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, type);
  return device.is_cpu() ? host.clone() : host.pin_memory().to(device, /*non_blocking=*/true);
}

// -log sigmoid(x), for large |x| too: softplus is linear there as far as doubles can tell.
Tensor NegLogSigmoid(const Tensor& x) { return at::softplus(-x, /*beta=*/1, /*threshold=*/40); }

// A loss of each pair or answer and its derivative.
struct Slope {
  Tensor loss, derivative;
};

Slope SigmoidSlope(const Tensor& x) { return {NegLogSigmoid(x), -at::sigmoid(-x)}; }

// The sequences of a micro-batch: which of the targets belong to which document.
struct Sequences {
  int64_t documents = 0;
  Tensor gather;  // int64 [documents * most]: targets of each answer; `targets` where there is none
  Tensor owner;   // int64 [targets]: the document
  Tensor in_answer, chosen;  // fp64 [targets]: 1 or 0
  Tensor counts;             // fp64 [documents]: tokens of the answer
  Tensor bad;                // bool [documents]
};

Sequences SequencesOf(const MicroBatch& batch, at::Device device) {
  Sequences result;
  const auto targets = static_cast<int64_t>(batch.loss_rows.size());
  result.documents = static_cast<int64_t>(batch.rows.size());
  std::vector<std::vector<int64_t>> answers(batch.rows.size());
  std::vector<int64_t> owner;
  std::vector<double> in_answer, chosen, counts;
  std::vector<uint8_t> bad(batch.rows.size(), 0);
  size_t document = 0;
  for (int64_t i = 0; i < targets; ++i) {
    while (batch.loss_rows[i] >= batch.cu_seqlens[document + 1]) ++document;
    const uint8_t mark = batch.marks[i];
    owner.push_back(static_cast<int64_t>(document));
    in_answer.push_back((mark & kBesideAnswer) == 0);
    chosen.push_back((mark & kOfBadAnswer) == 0);
    if ((mark & kOfBadAnswer) != 0) bad[document] = 1;
    if ((mark & kBesideAnswer) == 0) answers[document].push_back(i);
  }
  size_t most = 1;
  for (const auto& answer : answers) {
    most = std::max(most, answer.size());
    counts.push_back(static_cast<double>(std::max<size_t>(1, answer.size())));
  }
  std::vector<int64_t> gather;
  for (auto& answer : answers) {
    answer.resize(most, targets);
    gather.insert(gather.end(), answer.begin(), answer.end());
  }
  result.gather = OnDevice(std::move(gather), at::kLong, device);
  result.owner = OnDevice(std::move(owner), at::kLong, device);
  result.in_answer = OnDevice(std::move(in_answer), at::kDouble, device);
  result.chosen = OnDevice(std::move(chosen), at::kDouble, device);
  result.counts = OnDevice(std::move(counts), at::kDouble, device);
  result.bad = OnDevice(std::move(bad), at::kByte, device).to(at::kBool);
  return result;
}

// Gathered and summed row by row: the same bits on every device, unlike sums by index.
Tensor LogpsOf(const Sequences& sequences, const Tensor& cross_entropies) {
  const Tensor padded = at::cat({cross_entropies, at::zeros({1}, cross_entropies.options())});
  return -padded.index_select(0, sequences.gather).view({sequences.documents, -1}).sum(1);
}

// Losses of pairs, and their derivatives by the log-probability of each document.
struct Losses {
  Tensor loss;         // [pairs or answers]
  Tensor derivatives;  // [documents]
  Tensor rewards;      // [documents]
  Tensor right;        // bool [pairs or answers]
};

// DPO's loss and its slope by the margin: between sums, or with `means` between means over tokens.
Slope DpoSlope(const Preference& p, const Tensor& margin) {
  const Tensor x = p.beta * margin;
  const double e = p.label_smoothing;
  switch (p.dpo_loss) {
    case spec::DpoLoss::kRobust: {
      const Tensor loss = ((1 - e) * NegLogSigmoid(x) - e * NegLogSigmoid(-x)) / (1 - 2 * e);
      const Tensor slope = (-(1 - e) * at::sigmoid(-x) - e * at::sigmoid(x)) / (1 - 2 * e);
      return {loss, p.beta * slope};
    }
    case spec::DpoLoss::kHinge:
      return {at::relu(1 - x), -p.beta * x.lt(1.0).to(at::kDouble)};
    case spec::DpoLoss::kIpo: {
      const Tensor off = margin - 1 / (2 * p.beta);
      return {off.square(), 2 * off};
    }
    case spec::DpoLoss::kSigmoid:
    case spec::DpoLoss::kSigmoidNorm:
      break;
  }
  const Slope slope = SigmoidSlope(x);
  return {slope.loss, p.beta * slope.derivative};
}

// log(1 - e^x) for x < 0. The largest x is where single precision is next to 0, so that a certain
// answer's odds stay finite.
constexpr double kNearestToZero = -1e-7;
Tensor LogOneMinusExp(const Tensor& x) { return at::log(-at::expm1(x)); }

// Each pair's margin is a difference of the documents' `scores`; `factors` multiply derivatives.
Losses OfPairs(const Slope& slope, const Tensor& factors, Tensor rewards) {
  Losses result{.loss = slope.loss, .rewards = std::move(rewards)};
  const Tensor by_document = at::stack({slope.derivative, -slope.derivative}, 1).view({-1});
  result.derivatives = by_document * factors;
  const Tensor pairs = result.rewards.view({-1, 2});
  result.right = pairs.select(1, 0).gt(pairs.select(1, 1));
  return result;
}

Tensor MarginOf(const Tensor& scores) {
  const Tensor pairs = scores.view({-1, 2});
  return pairs.select(1, 0) - pairs.select(1, 1);
}

Losses DpoLosses(const Preference& p, const Sequences& s, const Tensor& ratios) {
  const bool means = p.dpo_loss == spec::DpoLoss::kIpo || p.dpo_loss == spec::DpoLoss::kSigmoidNorm;
  const Tensor factors = means ? s.counts.reciprocal() : at::ones_like(s.counts);
  return OfPairs(DpoSlope(p, MarginOf(ratios * factors)), factors, p.beta * ratios);
}

Losses SimPoLosses(const Preference& p, const Sequences& s, const Tensor& logps) {
  const Tensor factors = s.counts.reciprocal(), means = logps * factors;
  const Slope slope = SigmoidSlope(p.beta * MarginOf(means) - p.simpo_gamma);
  return OfPairs({slope.loss, p.beta * slope.derivative}, factors, p.beta * means);
}

Losses OrpoLosses(const Preference& p, const Sequences& s, const Tensor& logps) {
  const Tensor means = at::clamp_max(logps / s.counts, kNearestToZero);
  const Slope slope = SigmoidSlope(MarginOf(means - LogOneMinusExp(means)));
  // d log odds / d mean = 1 / (1 - e^mean).
  const Tensor factors = (-at::expm1(means) * s.counts).reciprocal();
  return OfPairs({p.beta * slope.loss, p.beta * slope.derivative}, factors, p.beta * means);
}

Losses KtoLosses(const Preference& p, const Sequences& s, const Tensor& ratios, double kl) {
  const Tensor bad = s.bad.to(at::kDouble), side = 1 - 2 * bad;
  const Tensor weight = p.kto_undesirable_weight * bad + p.kto_desirable_weight * (1 - bad);
  const Tensor ahead = side * (ratios - kl);
  const Tensor good = at::sigmoid(p.beta * ahead);
  return {.loss = weight * (1 - good),
          .derivatives = -weight * p.beta * side * good * (1 - good),
          .rewards = p.beta * ratios,
          .right = ahead.gt(0.0)};
}

Losses LossesOf(const spec::JobSpec& spec, const Sequences& s, const Tensor& logps,
                const Tensor& reference, double kl) {
  const Preference& p = spec.training.preference;
  switch (spec.training.loss) {
    case spec::Loss::kSimPo:
      return SimPoLosses(p, s, logps);
    case spec::Loss::kOrpo:
      return OrpoLosses(p, s, logps);
    case spec::Loss::kKto:
      return KtoLosses(p, s, logps - reference, kl);
    case spec::Loss::kDpo:
    case spec::Loss::kSft:
      break;
  }
  return DpoLosses(p, s, logps - reference);
}

double NllWeight(const spec::JobSpec& spec) {
  return spec.training.loss == spec::Loss::kOrpo ? 1.0 : spec.training.preference.sft_weight;
}

Tensor SumsOf(const Losses& losses, const Sequences& s, const Tensor& logps) {
  const Tensor bad = s.bad.to(at::kDouble), good = 1 - bad;
  return at::stack({losses.loss.sum(), (losses.rewards * good).sum(), (losses.rewards * bad).sum(),
                    losses.right.to(at::kDouble).sum(), (logps * good).sum(), (logps * bad).sum(),
                    good.sum(), bad.sum(), (s.counts * good).sum()});
}

}  // namespace

RowObjective PreferenceObjective(const spec::JobSpec& spec, const MicroBatch& batch,
                                 const std::vector<double>& reference, const PreferenceScale& scale,
                                 at::Device device) {
  if (batch.empty()) {
    return [](const Tensor& cross_entropies) -> RowObjectiveResult {
      return {at::zeros({kPreferenceSums}, cross_entropies.options()),
              at::zeros_like(cross_entropies)};
    };
  }
  const auto sequences = std::make_shared<const Sequences>(SequencesOf(batch, device));
  const Tensor under_reference =
      reference.empty() ? Tensor() : OnDevice(reference, at::kDouble, device);
  const double nll = NllWeight(spec) * scale.samples / std::max(1.0, scale.chosen_tokens);
  return [spec, sequences, under_reference, nll,
          kl = scale.kl](const Tensor& cross_entropies) -> RowObjectiveResult {
    const Sequences& s = *sequences;
    const Tensor logps = LogpsOf(s, cross_entropies);
    const Losses losses = LossesOf(spec, s, logps, under_reference, kl);
    RowObjectiveResult result;
    result.sums = SumsOf(losses, s, logps);
    // A log-probability is minus the cross entropies of its targets.
    result.weights = -losses.derivatives.index_select(0, s.owner) * s.in_answer;
    if (nll > 0) {
      result.weights.add_(nll * s.chosen);
      result.sums.select(0, kLossSum).add_(nll * (cross_entropies * s.chosen).sum());
    }
    return result;
  };
}

Tensor AnswerLogps(const MicroBatch& batch, const Tensor& cross_entropies) {
  return LogpsOf(SequencesOf(batch, cross_entropies.device()), cross_entropies);
}

}  // namespace sft::engine
