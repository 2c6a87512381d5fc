#include "common/spec/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sft::spec {
namespace {

constexpr std::string_view kFsdpKey = "hyperparameters.parallelism.fsdp",
                           kStrategyKey = "hyperparameters.parallelism.fsdp_sharding_strategy",
                           kDeepspeedKey = "hyperparameters.parallelism.use_deepspeed",
                           kStageKey = "hyperparameters.parallelism.deepspeed_stage",
                           kStagesKey = "hyperparameters.parallelism.pipeline_parallel_size",
                           kPiecesKey =
                               "hyperparameters.parallelism.virtual_pipeline_parallel_size",
                           kRowsKey = "hyperparameters.parallelism.context_parallel_size",
                           kMatricesKey = "hyperparameters.parallelism.tensor_parallel_size",
                           kDeviceMap = "hyperparameters.parallelism.device_map",
                           kGlobalRows = "hyperparameters.global_batch",
                           kDeviceRows = "hyperparameters.per_device_batch",
                           kAccumulation = "hyperparameters.gradient_accumulation_steps";
constexpr std::string_view kLayoutKeys[] = {kFsdpKey,   kStrategyKey, kDeepspeedKey, kStageKey,
                                            kStagesKey, kPiecesKey,   kRowsKey,      kMatricesKey};
constexpr std::string_view kBatchKeys[] = {kGlobalRows, kDeviceRows, kAccumulation};
constexpr std::string_view kFewRowsOrigin = "derived: a step has fewer rows than there are GPUs",
                           kPlanOrigin = "the plan";
// A pipeline's pieces are not cut finer by the plan: each holds more activations.
constexpr int kMostPieces = 2;

using KeyValue = std::pair<std::string_view, std::string>;

std::vector<KeyValue> ShardingKeys(Sharding sharding) {
  switch (sharding) {
    case Sharding::kZero1:
      return {{kDeepspeedKey, "true"}, {kStageKey, "1"}};
    case Sharding::kZero2:
      return {{kFsdpKey, "true"}, {kStrategyKey, "shard_grad_op"}};
    case Sharding::kFullShard:
      return {{kFsdpKey, "true"}};
    case Sharding::kHybridShard:
      return {{kFsdpKey, "true"}, {kStrategyKey, "hybrid_shard"}};
    case Sharding::kDdp:
      break;
  }
  return {};
}

std::vector<KeyValue> KeysOf(const Layout& layout) {
  std::vector<KeyValue> keys = ShardingKeys(layout.sharding);
  for (const auto& [key, size] :
       {std::pair(kRowsKey, layout.context), std::pair(kMatricesKey, layout.tensor),
        std::pair(kStagesKey, layout.stages), std::pair(kPiecesKey, layout.pieces)}) {
    if (size > 1) keys.emplace_back(key, std::to_string(size));
  }
  return keys;
}

// Written by a person, or following from what one wrote.
bool IsGiven(const ResolvedValue& value) {
  return value.overridden || value.line > 0 ||
         (value.origin != "default" && !value.origin.starts_with("derived: "));
}

std::vector<int> DivisorsFrom2(int count) {
  std::vector<int> divisors;
  for (int each = 2; each <= count; ++each) {
    if (count % each == 0) divisors.push_back(each);
  }
  return divisors;
}

}  // namespace

Layout LayoutOf(const JobSpec& spec) {
  const auto& p = spec.parallelism;
  return {.sharding = p.sharding,
          .stages = p.pipeline_parallel_size,
          .pieces = p.virtual_pipeline_parallel_size,
          .context = p.context_parallel_size,
          .tensor = p.tensor_parallel_size};
}

std::string ToText(const Layout& layout) {
  std::string text;
  for (const auto& [key, value] : KeysOf(layout)) {
    const bool number = value.find_first_not_of("0123456789") == std::string::npos;
    const bool bare = number || value == "true";
    text += fmt::format("{}{} = {}{}{}", text.empty() ? "" : ", ", key.substr(key.rfind('.') + 1),
                        bare ? "" : "\"", value, bare ? "" : "\"");
  }
  return text.empty() ? "fsdp = false" : text;
}

bool IsLayoutKey(std::string_view key) {
  return std::ranges::find(kLayoutKeys, key) != std::end(kLayoutKeys);
}

bool NamesLayout(const Resolution& resolution) {
  return std::ranges::any_of(resolution.values, [](const ResolvedValue& value) {
    if (!IsGiven(value)) return false;
    return IsLayoutKey(value.key) || (value.key == kDeviceMap && value.text != "auto");
  });
}

bool KeepsLayout(const Resolution& resolution) {
  return std::ranges::any_of(resolution.values, [](const ResolvedValue& value) {
    return IsLayoutKey(value.key) && value.overridden && value.origin.starts_with(kKeptLayout);
  });
}

std::vector<Layout> LayoutsFor(const JobSpec::Compute& compute) {
  std::vector<Layout> layouts;
  const bool nodes = compute.nodes > 1 && compute.gpus_per_node > 1;
  for (const Sharding sharding :
       {Sharding::kDdp, Sharding::kZero1, Sharding::kZero2, Sharding::kFullShard}) {
    layouts.push_back({.sharding = sharding});
  }
  if (nodes) layouts.push_back({.sharding = Sharding::kHybridShard});
  // Ranks that share matrices are in one node; those that share rows are in one, or all of several.
  constexpr int kMostSharers = 64;  // of a row, as context_parallel_size may be
  std::vector<int> sharers = DivisorsFrom2(compute.gpus_per_node);
  for (const int of : DivisorsFrom2(compute.nodes)) {
    if (of * compute.gpus_per_node <= kMostSharers) sharers.push_back(of * compute.gpus_per_node);
  }
  for (const int ranks : sharers) {
    for (const Sharding sharding : {Sharding::kDdp, Sharding::kZero2, Sharding::kFullShard}) {
      layouts.push_back({.sharding = sharding, .context = ranks});
    }
    if (nodes && ranks <= compute.gpus_per_node) {
      layouts.push_back({.sharding = Sharding::kHybridShard, .context = ranks});
    }
  }
  for (const int ranks : DivisorsFrom2(compute.gpus_per_node)) {
    layouts.push_back({.tensor = ranks});
    if (ranks < compute.gpu_count) {
      layouts.push_back({.sharding = Sharding::kFullShard, .tensor = ranks});
    }
  }
  for (const int stages : DivisorsFrom2(compute.gpu_count)) {
    for (int pieces = 1; pieces <= kMostPieces; ++pieces) {
      layouts.push_back({.stages = stages, .pieces = pieces});
      if (stages == compute.gpu_count) continue;
      layouts.push_back({.sharding = Sharding::kFullShard, .stages = stages, .pieces = pieces});
    }
  }
  return layouts;
}

Resolution InLayout(const JobText& job, const Resolution& resolution, const Layout& layout) {
  std::vector<Override> overrides = job.overrides;
  const auto set = [&](std::string_view key, std::string value) {
    overrides.push_back(
        {std::string(key), std::move(value), std::string(kPlanOrigin), OverrideKind::kSet});
  };
  const std::vector<KeyValue> keys = KeysOf(layout);
  for (const auto& [key, value] : keys) set(key, value);
  const auto has = [&](std::string_view key) {
    return std::ranges::find(keys, key, &KeyValue::first) != keys.end();
  };
  // What the job has of another layout is turned off.
  for (const ResolvedValue& value : resolution.values) {
    if (!IsLayoutKey(value.key) || !IsGiven(value) || has(value.key)) continue;
    if (value.key == kFsdpKey || value.key == kDeepspeedKey) {
      set(value.key, "false");
    } else if (value.key == kStageKey) {
      if (!has(kDeepspeedKey)) set(kDeepspeedKey, "false");
    } else if (value.key == kStrategyKey) {
      if (has(kFsdpKey)) set(value.key, "full_shard");
    } else {
      set(value.key, "1");
    }
  }
  const auto& h = resolution.spec.hyperparameters;
  const auto& compute = resolution.spec.compute;
  set(kGlobalRows, std::to_string(h.global_batch));
  const int64_t ranks =
      std::max(1, compute.gpu_count / (layout.stages * layout.context * layout.tensor));
  if (h.per_device_batch > 0 && h.global_batch % ranks == 0) {
    int64_t rows = h.per_device_batch;
    while (h.global_batch / ranks % rows != 0) --rows;
    set(kDeviceRows, std::to_string(rows));
    set(kAccumulation, std::to_string(h.global_batch / ranks / rows));
  }
  return Resolve(job.text, job.file_name, overrides, job.options);
}

Resolution ResolveInSomeLayout(const JobText& job) {
  Resolution resolution = Resolve(job.text, job.file_name, job.overrides, job.options);
  const bool too_few_rows =
      !resolution.ok() && std::ranges::all_of(resolution.problems, [](const Problem& problem) {
        return problem.key == kGlobalRows;
      });
  const JobSpec& spec = resolution.spec;
  if (!too_few_rows || !spec.trains() || spec.compute.gpu_type == "CPU" ||
      spec.hyperparameters.global_batch >= spec.compute.gpu_count || NamesLayout(resolution)) {
    return resolution;
  }
  for (const Layout& layout : LayoutsFor(spec.compute)) {
    Resolution other = InLayout(job, resolution, layout);
    if (!other.ok()) continue;
    for (ResolvedValue& value : other.values) {
      if (value.origin != kPlanOrigin) continue;
      const auto given = std::ranges::find(resolution.values, value.key, &ResolvedValue::key);
      if (given != resolution.values.end() && given->text == value.text) {
        value = *given;
        continue;
      }
      value.origin = IsLayoutKey(value.key) ? kFewRowsOrigin : kBatchOrigin;
      value.overridden = false;
    }
    return other;
  }
  return resolution;
}

bool SharesFewRows(const Resolution& resolution) {
  return std::ranges::find(resolution.values, kFewRowsOrigin, &ResolvedValue::origin) !=
         resolution.values.end();
}

JobSpec WithLayout(JobSpec spec, const JobSpec& other) {
  auto& to = spec.parallelism;
  const auto& from = other.parallelism;
  to.sharding = from.sharding;
  to.pipeline_parallel_size = from.pipeline_parallel_size;
  to.virtual_pipeline_parallel_size = from.virtual_pipeline_parallel_size;
  to.context_parallel_size = from.context_parallel_size;
  to.tensor_parallel_size = from.tensor_parallel_size;
  auto& batch = spec.hyperparameters;
  batch.global_batch = other.hyperparameters.global_batch;
  batch.per_device_batch = other.hyperparameters.per_device_batch;
  batch.gradient_accumulation_steps = other.hyperparameters.gradient_accumulation_steps;
  return spec;
}

void TakeLayout(const Resolution& other, std::string_view remark, Resolution& resolution) {
  resolution.spec = WithLayout(std::move(resolution.spec), other.spec);
  for (ResolvedValue& value : resolution.values) {
    const bool batch = std::ranges::find(kBatchKeys, value.key) != std::end(kBatchKeys);
    if (!batch && !IsLayoutKey(value.key)) continue;
    const auto taken = std::ranges::find(other.values, value.key, &ResolvedValue::key);
    if (taken == other.values.end()) continue;
    // Whoever gave the batch stays to be seen, and keys of shards matter where there are shards.
    const bool says_little = batch || value.key == kStrategyKey || value.key == kDeepspeedKey ||
                             value.key == kStageKey || value.key == kPiecesKey;
    if (says_little && taken->text == value.text) continue;
    value.text = taken->text;
    value.origin = batch ? kBatchOrigin : kChosenByPlan;
    if (value.key == kFsdpKey) value.origin += remark;
  }
}

}  // namespace sft::spec
