#include <fmt/format.h>

#include <algorithm>

#include "common/spec/draft.h"

// Sharding over the ranks: fsdp with a strategy, or use_deepspeed with a stage.

namespace sft::spec {
namespace {

constexpr std::string_view kFsdp = "hyperparameters.parallelism.fsdp",
                           kStrategy = "hyperparameters.parallelism.fsdp_sharding_strategy",
                           kDeepspeed = "hyperparameters.parallelism.use_deepspeed",
                           kStage = "hyperparameters.parallelism.deepspeed_stage",
                           kDistributed = "train.enable_distributed_training",
                           kOptimizer = "hyperparameters.parallelism.offload_optimizer",
                           kParam = "hyperparameters.parallelism.offload_param",
                           kShardingMode = "training.mode";
constexpr int64_t kDefaultStage = 2;

std::string StrategyOf(const Draft& draft) {
  return draft.Has(kStrategy) ? draft.String(kStrategy) : "full_shard";
}

int64_t StageOf(const Draft& draft) {
  return draft.Has(kStage) ? draft.Int(kStage) : kDefaultStage;
}

// The overridden key that asks for one of the two: its switch, or the key that says what is
// sharded, which turns the switch on. Empty if none does.
std::string_view AskedBy(const Draft& draft, std::string_view on, std::string_view what) {
  if (draft.Overridden(on)) return draft.Bool(on) ? on : "";
  return draft.Overridden(what) ? what : "";
}

// An override that asks for one kind of sharding turns off the file's other switch, and the file's
// own one may be off too.
void DragShardingAlong(Draft* draft) {
  if (!AskedBy(*draft, kFsdp, kStrategy).empty()) {
    draft->DropFromFile(kDeepspeed);
    draft->DropFromFile(kStage);
    if (draft->Overridden(kStrategy) && draft->DropFromFile(kFsdp)) {
      draft->Derive(kFsdp, true, kStrategy);
    }
  }
  if (!AskedBy(*draft, kDeepspeed, kStage).empty()) {
    // An override about the other kind is a contradiction, found below.
    if (!draft->Overridden(kStrategy)) draft->DropFromFile(kFsdp);
    draft->DropFromFile(kStrategy);
    if (draft->Overridden(kStage)) draft->DropFromFile(kDeepspeed);
  }
}

// Checks for two keys that ask for different kinds of sharding, and for a strategy that nothing
// asked for.
void CheckBoth(Draft* draft) {
  if (!draft->Bool(kDeepspeed)) {
    if (draft->Given(kStrategy) && !draft->Has(kFsdp)) {
      draft->AddWarning(kStrategy, "has no effect without fsdp = true");
    }
    return;
  }
  const std::string_view fsdp = draft->Given(kFsdp) ? kFsdp : kStrategy,
                         deepspeed = draft->Given(kDeepspeed) ? kDeepspeed : kStage;
  // With fsdp = false the strategy is not meant.
  if (!draft->Given(fsdp) || (fsdp == kFsdp && !draft->Bool(kFsdp))) return;
  draft->AddProblem(fsdp, fmt::format("{} and {} exclude each other; keep one: fsdp_sharding_"
                                      "strategy and deepspeed_stage name the same choices",
                                      draft->Quote(fsdp), draft->Quote(deepspeed)));
}

// The key that asks for sharding; empty when none does.
std::string_view ShardingKey(const Draft& draft) {
  if (draft.Bool(kFsdp)) {
    if (StrategyOf(draft) == "no_shard") return "";
    return draft.Given(kFsdp) ? kFsdp : kStrategy;
  }
  if (!draft.Bool(kDeepspeed) || StageOf(draft) == 0) return "";
  return draft.Given(kDeepspeed) ? kDeepspeed : kStage;
}

// A single GPU cannot shard. A file for several GPUs that an override runs on one keeps its
// meaning; otherwise one of the two keys is a mistake.
void CheckOneGpu(Draft* draft) {
  const std::string_view key = ShardingKey(*draft);
  if (key.empty() || !draft->Has(kGpuCountKey) || TokenRanks(*draft) > 1) return;
  if (draft->Int(kGpuCountKey) > 1) {
    const bool stages = draft->Has(kPipelineKey) && draft->Int(kPipelineKey) > 1;
    draft->AddWarning(
        key, stages ? fmt::format("{} has no effect: {} leaves each stage one GPU",
                                  draft->Quote(key), draft->Quote(kPipelineKey))
                    : fmt::format("{} has no effect: with {} no two GPUs have the same parts",
                                  draft->Quote(key), draft->Quote(kTensorKey)));
    return;
  }
  const auto topology = {kGpuCountKey, kNodesKey, kGpusPerNodeKey,
                         std::string_view("compute.variant")};
  const bool moved = std::any_of(topology.begin(), topology.end(),
                                 [&](std::string_view k) { return draft->Overridden(k); });
  if (moved && !draft->Overridden(key)) {
    draft->AddWarning(key, fmt::format("{} has no effect: {} leaves one GPU, which holds all",
                                       draft->Quote(key), draft->Quote(kGpuCountKey)));
    return;
  }
  draft->AddProblem(key, fmt::format("{} shards over several GPUs, but {}; leave it out, or ask "
                                     "for more GPUs",
                                     draft->Quote(key), draft->Quote(kGpuCountKey)));
}

void CheckHybrid(Draft* draft) {
  if (!draft->Bool(kFsdp) || StrategyOf(*draft) != "hybrid_shard" || !draft->Has(kGpusPerNodeKey))
    return;
  if (draft->Int(kGpuCountKey) == 1) return;
  if (draft->Int(kNodesKey) == 1) {
    draft->AddWarning(kStrategy, fmt::format("{} is full_shard here: {}", draft->Quote(kStrategy),
                                             draft->Quote(kNodesKey)));
  } else if (draft->Int(kGpusPerNodeKey) == 1) {
    draft->AddProblem(kStrategy,
                      fmt::format("{} shards over the GPUs of a node, but {}; use \"full_shard\", "
                                  "which shards over all",
                                  draft->Quote(kStrategy), draft->Quote(kGpusPerNodeKey)));
  } else if (draft->Has(kContextKey) && draft->Int(kContextKey) > draft->Int(kGpusPerNodeKey)) {
    draft->AddProblem(kStrategy,
                      fmt::format("{} keeps layers whole in a node, but {} has a row over several; "
                                  "use \"full_shard\"",
                                  draft->Quote(kStrategy), draft->Quote(kContextKey)));
  }
}

// Trained weights in host memory need their optimizer there too, and are gathered from where they
// are stored.
void CheckOffloadedWeights(Draft* draft) {
  if (draft->Faulty({kParam, kOptimizer, kShardingMode}) || !draft->Bool(kParam) ||
      draft->String(kShardingMode) != "full_finetune") {
    return;
  }
  if (!draft->Bool(kOptimizer)) {
    draft->AddProblem(kParam,
                      fmt::format("{} with full fine-tuning needs offload_optimizer = true: "
                                  "weights in host memory are updated there",
                                  draft->Quote(kParam)));
  }
  const Sharding sharding = ShardingOf(*draft);
  if (sharding == Sharding::kZero1 || sharding == Sharding::kZero2) {
    draft->AddProblem(
        kParam,
        fmt::format("{} with full fine-tuning contradicts {}, which keeps weights "
                    "whole on each GPU; use fsdp_sharding_strategy = \"full_shard\" "
                    "or deepspeed_stage = 3",
                    draft->Quote(kParam), draft->Quote(draft->Bool(kFsdp) ? kStrategy : kStage)));
  }
}

}  // namespace

void ResolveSharding(Draft* draft) {
  if (draft->Faulty({kFsdp, kStrategy, kDeepspeed, kStage})) return;
  DragShardingAlong(draft);
  if (!draft->Has(kDeepspeed)) {
    const bool on = draft->Given(kStage) && draft->Int(kStage) > 0;
    draft->Derive(kDeepspeed, on, on ? kStage : "the default");
  }
  CheckBoth(draft);
  if (draft->Faulty({kFsdp, kStrategy})) return;
  CheckOneGpu(draft);
  CheckHybrid(draft);
  CheckOffloadedWeights(draft);
  if (draft->Given(kDistributed) && !draft->Bool(kDistributed) && draft->Int(kGpuCountKey) > 1) {
    draft->AddProblem(kDistributed,
                      fmt::format("false asks for one GPU, but {}; gpu_count = 1 would agree",
                                  draft->Quote(kGpuCountKey)));
  }
}

std::string_view OverrideOfStage(const Draft& draft) {
  if (draft.Overridden(kDeepspeed) && !draft.Bool(kDeepspeed)) return kDeepspeed;
  return AskedBy(draft, kFsdp, kStrategy);
}

Sharding ShardingOf(const Draft& draft) {
  if (ShardingKey(draft).empty() || TokenRanks(draft) == 1) return Sharding::kDdp;
  if (draft.Bool(kFsdp)) {
    const std::string strategy = StrategyOf(draft);
    if (strategy == "shard_grad_op") return Sharding::kZero2;
    const bool hybrid = strategy == "hybrid_shard" && draft.Int(kNodesKey) > 1;
    return hybrid ? Sharding::kHybridShard : Sharding::kFullShard;
  }
  static constexpr Sharding kStages[] = {Sharding::kDdp, Sharding::kZero1, Sharding::kZero2,
                                         Sharding::kFullShard};
  return kStages[StageOf(draft)];
}

}  // namespace sft::spec
