#include <fmt/format.h>

#include <algorithm>

#include "common/spec/draft.h"

// How a model and its rows are divided over GPUs beside sharding: what a job may ask for.

namespace sft::spec {
namespace {

constexpr std::string_view kLoss = "training.loss",
                           kBalance = "hyperparameters.router_aux_loss_coef";

// The largest share of `count` that divides it, up to `wanted`.
int64_t Nearest(int64_t count, int64_t wanted) {
  int64_t ranks = std::min(count, wanted);
  while (count % ranks != 0) --ranks;
  return ranks;
}

void CheckContext(Draft* draft) {
  const int64_t ranks = draft->Int(kContextKey), gpus = draft->Int(kGpuCountKey);
  if (ranks == 1) return;
  const auto refuse = [&](const std::string& why) {
    draft->AddProblem(kContextKey, fmt::format("{} {}", draft->Quote(kContextKey), why));
  };
  if (gpus == 1) {
    return refuse(fmt::format("cuts rows over GPUs, but {}; leave it out, or take more GPUs",
                              draft->Quote(kGpuCountKey)));
  }
  // Every layer exchanges tokens twice: over a network that would take longer than the layer.
  if (const int64_t node = draft->Int(kGpusPerNodeKey); node % ranks != 0) {
    return refuse(
        fmt::format("does not divide {}: the GPUs that share a row are in one node; {} "
                    "would do",
                    draft->Quote(kGpusPerNodeKey), Nearest(node, ranks)));
  }
  if (draft->Has(kPipelineKey) && draft->Int(kPipelineKey) > 1) {
    return refuse(
        fmt::format("does not go with {} yet; leave one of them out", draft->Quote(kPipelineKey)));
  }
  if (draft->Has(kLoss) && draft->String(kLoss) != "sft") {
    return refuse(fmt::format("does not go with {} yet: its loss needs whole answers; leave it out",
                              draft->Quote(kLoss)));
  }
  if (draft->Has(kBalance) && draft->Float(kBalance) > 0) {
    return refuse(
        fmt::format("does not go with {}: experts are balanced over the tokens of a "
                    "whole micro-batch; leave one of them out",
                    draft->Quote(kBalance)));
  }
}

}  // namespace

void ResolveSplits(Draft* draft) {
  if (draft->Faulty({kGpuCountKey, kGpusPerNodeKey, kContextKey}) || !draft->Has(kGpuCountKey) ||
      !draft->Has(kGpusPerNodeKey) || !draft->Has(kContextKey)) {
    return;
  }
  CheckContext(draft);
}

RowRanks RowRanksOf(const Draft& draft) {
  RowRanks ranks{draft.Int(kGpuCountKey), draft.Quote(kGpuCountKey), "gpu_count"};
  for (const std::string_view key : {kPipelineKey, kContextKey}) {
    if (!draft.Has(key) || draft.Int(key) <= 1) continue;
    // What leaves no rank is refused elsewhere.
    ranks.count = std::max<int64_t>(1, ranks.count / draft.Int(key));
    ranks.quote += fmt::format(" / {}", draft.Quote(key));
    ranks.formula += fmt::format(" / {}", LeafOf(key));
  }
  if (ranks.formula != "gpu_count") {
    ranks.quote = fmt::format("({})", ranks.quote);
    ranks.formula = fmt::format("({})", ranks.formula);
  }
  return ranks;
}

}  // namespace sft::spec
