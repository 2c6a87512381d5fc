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
  const int64_t node = draft->Int(kGpusPerNodeKey);
  if (ranks > node && (ranks % node != 0 || gpus % ranks != 0)) {
    const int64_t less = node * Nearest(gpus / node, ranks / node);
    return refuse(fmt::format(
        "is more than {}, so it must be a multiple of it that divides {}; {} would do",
        draft->Quote(kGpusPerNodeKey), draft->Quote(kGpuCountKey), less > 1 ? less : gpus));
  }
  if (ranks < node && node % ranks != 0) {
    return refuse(fmt::format("does not divide {}; {} would do", draft->Quote(kGpusPerNodeKey),
                              Nearest(node, ranks)));
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

// What a job may not have beside matrices that are cut, and what to take in its place.
void CheckBesideTensor(Draft* draft) {
  const auto refuse = [&](std::string_view key, bool asked, std::string_view instead) {
    if (!asked || draft->Faulty({key})) return;
    draft->AddProblem(kTensorKey,
                      fmt::format("{} does not go with {} yet: {}", draft->Quote(kTensorKey),
                                  draft->Quote(key), instead));
  };
  const auto word_is_not = [&](std::string_view key, std::string_view word) {
    return draft->Has(key) && draft->String(key) != word;
  };
  constexpr std::string_view kEither = "leave one of them out";
  for (const std::string_view key : {kPipelineKey, kContextKey}) {
    refuse(key, draft->Has(key) && draft->Int(key) > 1, kEither);
  }
  const std::string_view shards = "use fsdp = true, which divides every layer over the GPUs";
  refuse(kLoss, word_is_not(kLoss, "sft"), shards);
  refuse(kBalance, draft->Has(kBalance) && draft->Float(kBalance) > 0, "leave it out");
  constexpr std::string_view kMatmul = "training.matmul";
  refuse(kMatmul, word_is_not(kMatmul, "bf16"), "use matmul = \"bf16\"");
  for (const std::string_view key : {"hyperparameters.parallelism.offload_optimizer",
                                     "hyperparameters.parallelism.offload_param"}) {
    refuse(key, draft->Bool(key), "more GPUs hold less each");
  }
  constexpr std::string_view kOptimizer = "hyperparameters.optimizer";
  refuse(kOptimizer, draft->Has(kOptimizer) && draft->String(kOptimizer) == "adamw_8bit",
         "use \"adamw\" or \"adamw_bf16\"");
  constexpr std::string_view kDora = "lora.use_dora";
  refuse(kDora, draft->Bool(kDora), "leave it out");
  constexpr std::string_view kAnswers = "training.validation.predict_with_generate";
  refuse(kAnswers, draft->Bool(kAnswers),
         "leave it out, and evaluate the adapter with a job of kind evaluate");
}

void CheckTensor(Draft* draft) {
  const int64_t ranks = draft->Int(kTensorKey), gpus = draft->Int(kGpuCountKey);
  if (ranks == 1) return;
  const auto refuse = [&](const std::string& why) {
    draft->AddProblem(kTensorKey, fmt::format("{} {}", draft->Quote(kTensorKey), why));
  };
  if (gpus == 1) {
    return refuse(fmt::format("cuts matrices over GPUs, but {}; leave it out, or take more GPUs",
                              draft->Quote(kGpuCountKey)));
  }
  // Every layer exchanges its tokens four times in the forward alone.
  if (const int64_t node = draft->Int(kGpusPerNodeKey); node % ranks != 0) {
    return refuse(
        fmt::format("does not divide {}: the GPUs that share a matrix are in one node; {} "
                    "would do",
                    draft->Quote(kGpusPerNodeKey), Nearest(node, ranks)));
  }
  CheckBesideTensor(draft);
}

}  // namespace

void ResolveSplits(Draft* draft) {
  if (draft->Faulty({kGpuCountKey, kGpusPerNodeKey}) || !draft->Has(kGpuCountKey) ||
      !draft->Has(kGpusPerNodeKey)) {
    return;
  }
  if (!draft->Faulty({kContextKey}) && draft->Has(kContextKey)) CheckContext(draft);
  if (!draft->Faulty({kTensorKey}) && draft->Has(kTensorKey)) CheckTensor(draft);
}

RowRanks RowRanksOf(const Draft& draft) {
  RowRanks ranks{draft.Int(kGpuCountKey), draft.Quote(kGpuCountKey), "gpu_count"};
  for (const std::string_view key : {kPipelineKey, kContextKey, kTensorKey}) {
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
