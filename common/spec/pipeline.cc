#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "common/spec/draft.h"

// Pipelines: how many stages share the layers, and what does not go with them. How the layers are
// divided is decided when the model is known (common/plan/stages.h).

namespace sft::spec {
namespace {

constexpr std::string_view kVirtual = "hyperparameters.parallelism.virtual_pipeline_parallel_size",
                           kMap = "hyperparameters.parallelism.device_map";

constexpr std::string_view kWords[] = {"auto", "balanced", "sequential"};

// A table's entry: "MODULE=STAGE".
struct TableEntry {
  std::string_view module, stage;
};

std::optional<TableEntry> EntryOf(std::string_view item) {
  const size_t at = item.rfind('=');
  if (at == item.npos) return std::nullopt;
  return TableEntry{item.substr(0, at), item.substr(at + 1)};
}

std::optional<int> StageOf(std::string_view text) {
  int stage = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), stage);
  if (error != std::errc() || end != text.data() + text.size() || stage < 0) return std::nullopt;
  return stage;
}

// The number of stages of a table; 0 after a problem.
int StagesOfTable(const std::vector<std::string>& items, Draft* draft) {
  std::set<int> stages;
  for (const std::string& item : items) {
    const auto entry = EntryOf(item);
    if (!entry) {
      draft->AddProblem(kMap,
                        fmt::format("\"{}\" is not MODULE=GPU, as \"model.layers.0=1\"; and a "
                                    "word stands alone",
                                    item));
      return 0;
    }
    const auto stage = StageOf(entry->stage);
    if (stage) {
      stages.insert(*stage);
      continue;
    }
    const bool host = entry->stage == "cpu" || entry->stage == "disk";
    draft->AddProblem(
        kMap, host
                  ? fmt::format("puts {} on \"{}\": modules are not placed there one by one; set "
                                "offload_param = true, which keeps the blocks' weights in host "
                                "memory",
                                entry->module, entry->stage)
                  : fmt::format("puts {} on \"{}\", which is no number of a GPU: they count from 0",
                                entry->module, entry->stage));
    return 0;
  }
  const int count = static_cast<int>(stages.size());
  if (*stages.rbegin() + 1 == count) return count;
  int missing = 0;
  while (stages.contains(missing)) ++missing;
  draft->AddProblem(kMap,
                    fmt::format("names GPU {} and nothing on GPU {}: they are numbered from 0 "
                                "without gaps",
                                *stages.rbegin(), missing));
  return 0;
}

// One word, or a table.
bool CheckMap(const std::vector<std::string>& items, Draft* draft) {
  if (items.size() > 1 || EntryOf(items.front())) return true;
  if (std::ranges::find(kWords, items.front()) != std::end(kWords)) return true;
  const bool low = items.front() == "balanced_low_0";
  draft->AddProblem(
      kMap,
      low ? std::string("\"balanced_low_0\" keeps the first GPU free for generation, of which "
                        "training has none; set \"balanced\"")
          : fmt::format("must be \"auto\", \"balanced\", \"sequential\" or a table of modules "
                        "and the GPUs that hold them, but is \"{}\"",
                        items.front()));
  return false;
}

// The keys that divide every weight over the GPUs, which is what the map's words ask for too.
bool DividesWeights(const Draft& draft) {
  constexpr std::string_view kStage = "hyperparameters.parallelism.deepspeed_stage";
  if (draft.Given(kStage) && draft.Int(kStage) == 3) return true;
  const Sharding sharding = ShardingOf(draft);
  return sharding == Sharding::kFullShard || sharding == Sharding::kHybridShard;
}

// An override of the map or of sharding turns the file's other off.
void DragMapAlong(Draft* draft) {
  for (const std::string_view key :
       {"hyperparameters.parallelism.fsdp", "hyperparameters.parallelism.fsdp_sharding_strategy",
        "hyperparameters.parallelism.use_deepspeed",
        "hyperparameters.parallelism.deepspeed_stage"}) {
    if (draft->Overridden(kMap)) draft->DropFromFile(key);
    if (draft->Overridden(key)) draft->DropFromFile(kMap);
  }
}

// The stages that the map asks for.
void TakeMap(Draft* draft) {
  const std::vector<std::string> items = ListOf(*draft, kMap);
  if (!draft->Given(kMap) || !CheckMap(items, draft)) return;
  const bool table = items.size() > 1 || EntryOf(items.front());
  if (!table && items.front() == "auto") return;
  const int64_t stages = table ? StagesOfTable(items, draft) : draft->Int(kGpusPerNodeKey);
  if (stages == 0) return;
  if (draft->Given(kPipelineKey)) {
    if (!table || draft->Int(kPipelineKey) == stages) return;
    return draft->AddProblem(kMap, fmt::format("names {} GPUs, but {}; they must agree", stages,
                                               draft->Quote(kPipelineKey)));
  }
  // One GPU holds all; shards divide every layer.
  if (!table && (draft->Int(kGpuCountKey) <= 1 || stages == 1 || DividesWeights(*draft))) return;
  draft->Derive(kPipelineKey, stages, kMap);
  if (table) return;
  draft->AddWarning(kMap, fmt::format("{} is taken as pipeline_parallel_size = {}: each GPU of a "
                                      "node holds some of the layers, and all work at once",
                                      draft->Quote(kMap), stages));
}

// A file for several GPUs that an override runs on fewer keeps its meaning as far as they go.
void ReduceToGpus(Draft* draft) {
  const int64_t count = draft->Int(kGpuCountKey), stages = draft->Int(kPipelineKey);
  if (count % stages == 0) return;
  const auto topology = {kGpuCountKey, kNodesKey, kGpusPerNodeKey,
                         std::string_view("compute.variant")};
  const bool moved = std::any_of(topology.begin(), topology.end(),
                                 [&](std::string_view key) { return draft->Overridden(key); });
  if (moved && count == 1 && !draft->Overridden(kPipelineKey)) {
    draft->AddWarning(kPipelineKey,
                      fmt::format("{} has no effect: {} leaves one GPU, which holds "
                                  "all layers",
                                  draft->Quote(kPipelineKey), draft->Quote(kGpuCountKey)));
    draft->Rewrite(kPipelineKey, int64_t{1});
    if (draft->Given(kVirtual)) draft->Rewrite(kVirtual, int64_t{1});
    if (draft->Given(kMap)) draft->Rewrite(kMap, std::vector<std::string>{"auto"});
    return;
  }
  draft->AddProblem(kPipelineKey,
                    fmt::format("{} does not divide {}: each stage needs as many GPUs; gpu_count = "
                                "{} would do",
                                draft->Quote(kPipelineKey), draft->Quote(kGpuCountKey),
                                (count / stages + 1) * stages));
}

// What a pipeline does not do yet, and what to take in its place.
void CheckCompany(Draft* draft) {
  const auto refuse = [&](std::string_view key, bool asked, std::string_view instead) {
    if (!asked || draft->Faulty({key})) return;
    draft->AddProblem(kPipelineKey,
                      fmt::format("{} does not go with {} yet: {}", draft->Quote(kPipelineKey),
                                  draft->Quote(key), instead));
  };
  const std::string_view shards = "use fsdp = true, which divides every layer over the GPUs";
  const auto word_is_not = [&](std::string_view key, std::string_view word) {
    return draft->Has(key) && draft->String(key) != word;
  };
  refuse("training.loss", word_is_not("training.loss", "sft"), shards);
  refuse("training.matmul", word_is_not("training.matmul", "bf16"), "use matmul = \"bf16\"");
  for (const std::string_view key : {"hyperparameters.parallelism.offload_optimizer",
                                     "hyperparameters.parallelism.offload_param"}) {
    refuse(key, draft->Bool(key), "more stages hold less each");
  }
  constexpr std::string_view kAnswers = "training.validation.predict_with_generate";
  refuse(kAnswers, draft->Bool(kAnswers),
         "leave it out, and evaluate the adapter with a job of kind evaluate");
  constexpr std::string_view kBalance = "hyperparameters.router_aux_loss_coef";
  refuse(kBalance, draft->Has(kBalance) && draft->Float(kBalance) > 0, "leave it out");
  if (ShardingOf(*draft) == Sharding::kHybridShard) {
    refuse("hyperparameters.parallelism.fsdp_sharding_strategy", true,
           "use \"full_shard\", which divides a stage over its own GPUs");
  }
}

}  // namespace

int64_t TokenRanks(const Draft& draft) {
  const auto size = [&](std::string_view key) { return draft.Has(key) ? draft.Int(key) : 1; };
  // What leaves no rank is refused elsewhere.
  return std::max<int64_t>(1, draft.Int(kGpuCountKey) / (size(kPipelineKey) * size(kTensorKey)));
}

void ResolvePipeline(Draft* draft) {
  if (draft->Faulty({kPipelineKey, kVirtual, kMap, kGpuCountKey, kGpusPerNodeKey}) ||
      !draft->Has(kGpuCountKey) || !draft->Has(kGpusPerNodeKey)) {
    return;
  }
  DragMapAlong(draft);
  TakeMap(draft);
  if (draft->Faulty({kMap, kPipelineKey})) return;
  if (draft->Has(kPipelineKey)) ReduceToGpus(draft);
  if (draft->Faulty({kPipelineKey})) return;
  if (!draft->Has(kPipelineKey)) draft->Derive(kPipelineKey, int64_t{1}, "the default");
  if (draft->Int(kPipelineKey) == 1) {
    if (draft->Given(kVirtual) && draft->Int(kVirtual) > 1) {
      draft->AddProblem(kVirtual,
                        fmt::format("{} needs pipeline_parallel_size: its pieces take turns with "
                                    "those of other stages",
                                    draft->Quote(kVirtual)));
    }
    return;
  }
  CheckCompany(draft);
}

}  // namespace sft::spec
