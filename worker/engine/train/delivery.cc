#include "worker/engine/train/delivery.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/io/sha256.h"
#include "common/plan/parameters.h"
#include "common/plan/tensors.h"
#include "common/plan/whole_modules.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/checkpoint/adapter_stacks.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/checkpoint/model_writer.h"
#include "worker/engine/checkpoint/tensor_hash.h"
#include "worker/engine/model/adapters.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/families.h"
#include "worker/engine/train/other_parts.h"
#include "worker/engine/train/stamp.h"
#include "worker/engine/train/training_state.h"
#include "worker/engine/weights/file_tensors.h"

namespace sft::engine {

namespace {

using at::Tensor;

// What was trained, wherever its weights are.
struct Trained {
  const ModelLayout& layout;
  at::ScalarType compute_type;
  // The whole master weight of a parameter, by its unit and its place in it.
  std::function<Tensor(int unit, int param)> master;
};

// Of a model that is trained; `master` is a collective.
Trained TrainedOf(const TrainingModel& model) {
  return {model.layout(), model.compute_type(),
          [&model](int unit, int param) { return model.Gather(unit, param); }};
}

// Calls visit(param, weight) for every trained parameter in the order of the layout. `weight` is
// the master weight in `type`, or in fp32 where files have that (ParamInfo::exact), in host memory.
template <typename Visit>
void ForEachTrained(const Trained& trained, at::ScalarType type, const Visit& visit) {
  const ModelLayout& layout = trained.layout;
  for (int unit = 0; unit < layout.size(); ++unit) {
    for (size_t i = 0; i < layout.units[unit].params.size(); ++i) {
      const ParamInfo& param = layout.units[unit].params[i];
      if (!param.trainable) continue;
      const Tensor master = trained.master(unit, static_cast<int>(i));
      visit(param, master.to(param.exact ? at::kFloat : type).cpu());
    }
  }
}

// What the ranks compute with, where each holds a copy of its own: of the parameters that so many
// ranks along the tensor axis have the same elements of.
std::string ReplicaHash(const TrainingModel& model, int sharers) {
  TensorHasher hasher;
  const ModelLayout& layout = model.own_layout();
  if (model.store().placement() != Placement::kFullShard) {
    const std::unique_ptr<WeightSource> source = model.store().MakeSource();
    for (int unit = 0; unit < layout.size(); ++unit) {
      AcquiredUnit acquired(*source, layout, unit);
      for (size_t i = 0; i < layout.units[unit].params.size(); ++i) {
        if (layout.units[unit].params[i].cut.sharers() != sharers) continue;
        const Tensor& weight = acquired.weights().params[i];
        // The source may use its memory for the next unit.
        if (weight.defined()) hasher.Add(weight.is_cpu() ? weight.clone() : weight);
      }
    }
  }
  return hasher.Finish();
}

// The ranks of each stage of a pipeline have the same weights, but for their parts of matrices; all
// ranks get the same answer.
bool ReplicasAgree(const TrainingModel& model, Communicator& comm) {
  const MeshShape& shape = model.mesh().shape();
  bool agree = true;
  for (int sharers = 1; sharers <= shape.tensor; ++sharers) {
    if (shape.tensor % sharers != 0) continue;
    const std::vector<std::string> hashes = AllGatherStrings(comm, ReplicaHash(model, sharers));
    std::map<std::pair<int, int>, std::set<std::string>> alike;
    for (int rank = 0; rank < comm.world(); ++rank) {
      alike[{shape.Coordinate(rank, Axis::kPipeline),
             shape.Coordinate(rank, Axis::kTensor) / sharers}]
          .insert(hashes[static_cast<size_t>(rank)]);
    }
    agree = agree &&
            std::ranges::all_of(alike, [](const auto& ranks) { return ranks.second.size() == 1; });
  }
  return agree;
}

// Of stacks of experts PEFT knows by itself how they stand.
bool HasTransposedLinears(const ModelLayout& layout) {
  return std::any_of(layout.units.begin(), layout.units.end(), [](const UnitInfo& unit) {
    return std::any_of(unit.params.begin(), unit.params.end(), [](const ParamInfo& param) {
      return param.transposed && param.experts == 0;
    });
  });
}

// The linears that PEFT takes for parameters, not for modules: stacks of experts' weights and, in a
// model that has those, dense layers' linears of the names that PEFT rewrites to stacks.
std::set<std::string> PeftParameters(const ModelLayout& layout) {
  std::set<std::string> parameters;
  bool has_stacks = false;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      if (param.role != ParamRole::kLinear) continue;
      has_stacks |= param.experts > 0;
      if (plan::PeftAdaptsAsParameter(param.module(), param.experts)) {
        parameters.emplace(param.module());
      }
    }
  }
  return has_stacks ? parameters : std::set<std::string>();
}

// The targets as adapter_config.json has them: PEFT takes no "all-linear" in a list of names.
std::vector<std::string> WrittenTargets(const ModelLayout& layout,
                                        const spec::JobSpec::Lora& lora) {
  const std::vector<std::string> linears = LinearsOf(layout);
  std::vector<std::string> targets = plan::EffectiveTargets(linears, lora.target_modules);
  if (std::find(targets.begin(), targets.end(), "all-linear") != targets.end()) {
    std::set<std::string> names;
    for (const std::string& linear : linears) names.insert(plan::LastName(linear));
    targets.assign(names.begin(), names.end());
  }
  const std::set<std::string> parameters = PeftParameters(layout);
  std::erase_if(targets, [&](const std::string& target) {
    return std::none_of(linears.begin(), linears.end(), [&](const std::string& linear) {
      return !parameters.contains(linear) && plan::MatchesTarget(linear, target);
    });
  });
  return targets;
}

// What is adapted as a parameter, by its name in a layer.
std::vector<std::string> WrittenParameters(const ModelLayout& layout) {
  const std::set<std::string> parameters = PeftParameters(layout);
  std::set<std::string> names;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      if (param.role != ParamRole::kLoraA || !parameters.contains(std::string(param.module()))) {
        continue;
      }
      names.insert(NameInLayer(param.module()) + (param.experts > 0 ? "" : ".weight"));
    }
  }
  return {names.begin(), names.end()};
}

// modules_to_save likewise: PEFT would find ends of names in a vision tower, too.
std::vector<std::string> WrittenWhole(const ModelLayout& layout, const spec::JobSpec::Lora& lora) {
  if (layout.prefix().empty() || lora.modules_to_save.empty()) return lora.modules_to_save;
  std::set<std::string> modules;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      const std::string module = plan::RuntimeModule(layout.prefix(), param.module());
      const bool table = layout.tied_head() && param.role == ParamRole::kEmbedding;
      if (param.of_base() && plan::TrainsWhole(module, table, lora)) modules.insert(module);
    }
  }
  return {modules.begin(), modules.end()};
}

AdapterConfig AdapterConfigOf(const ModelLayout& layout, const spec::JobSpec& spec,
                              const std::string& model_name) {
  const spec::JobSpec::Lora& lora = spec.lora;
  AdapterConfig config;
  config.r = lora.r;
  config.alpha = lora.alpha;
  config.dropout = lora.dropout;
  config.target_modules = WrittenTargets(layout, lora);
  config.target_parameters = WrittenParameters(layout);
  // In a multimodal model PEFT would find the same names in the vision tower, too.
  if (!layout.prefix().empty()) {
    config.target_pattern =
        fmt::format(R"(.*language_model\..*\.({}))", fmt::join(config.target_modules, "|"));
  }
  config.bias = lora.bias == spec::Bias::kAll        ? "all"
                : lora.bias == spec::Bias::kLoraOnly ? "lora_only"
                                                     : "none";
  config.use_rslora = lora.use_rslora;
  config.use_dora = lora.use_dora;
  config.init = lora.init;
  config.rank_pattern = lora.rank_pattern;
  config.alpha_pattern = lora.alpha_pattern;
  config.modules_to_save = WrittenWhole(layout, lora);
  config.ensure_weight_tying = lora.ensure_weight_tying && layout.tied_head();
  config.fan_in_fan_out = HasTransposedLinears(layout);
  config.base_model = model_name;
  return config;
}

AdapterFiles AdapterFilesOf(const ModelLayout& layout, const spec::JobSpec& spec,
                            const DeliveryOptions& options) {
  AdapterFiles files;
  files.target = options.target;
  files.source = options.model_dir;
  files.chat_template = spec.data.chat_template;
  files.base_prefix = layout.prefix();
  if (layout.tied_head()) files.tied_table = layout.units[0].params[0].name;
  return files;
}

// The adapter's files give pairs by module; the hash is in the order of the layout.
std::string AdapterFileHash(const ModelLayout& layout, const std::filesystem::path& dir) {
  const auto tensors = ReadAdapter(dir, layout.prefix()).Values(layout.tied_head());
  TensorHasher hasher;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      if (!param.trainable) continue;
      const auto found = tensors.find(param.name);
      if (found == tensors.end()) return std::string(io::kSha256Digits, '0');
      hasher.Add(found->second);
    }
  }
  return hasher.Finish();
}

std::string ModelFileHash(const ModelLayout& layout, const std::filesystem::path& dir) {
  const ModelFiles files = ModelFiles::Open(dir);
  TensorHasher hasher;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      if (!param.trainable) continue;
      hasher.Add(FromFiles(param, [&](const std::string& name) { return files.View(name); }));
    }
  }
  return hasher.Finish();
}

// Hashes and, with `writes`, writes; returns the hash of all weights.
std::string WriteAdapterFrom(const Trained& trained, const spec::JobSpec& spec,
                             const DeliveryOptions& options, bool writes) {
  TensorHasher hasher;
  std::vector<LoraPair> pairs;
  std::vector<NamedTensor> others;
  std::map<std::string, size_t, std::less<>> place;
  ForEachTrained(trained, at::kFloat, [&](const ParamInfo& param, const Tensor& weight) {
    hasher.Add(weight);
    if (!writes) return;
    if (param.of_base()) {
      others.push_back({param.name, weight});
      return;
    }
    const std::string module(param.module());
    const auto [entry, added] = place.try_emplace(module, pairs.size());
    if (added) pairs.push_back({.module = module, .experts = param.experts});
    LoraPair& pair = pairs[entry->second];
    (param.role == ParamRole::kLoraA   ? pair.a
     : param.role == ParamRole::kLoraB ? pair.b
                                       : pair.magnitude) = weight;
  });
  if (writes) {
    WriteAdapter(AdapterFilesOf(trained.layout, spec, options),
                 AdapterConfigOf(trained.layout, spec, options.model_name), pairs, others);
  }
  return hasher.Finish();
}

// The constants of a model, which full fine-tuning leaves as they are.
void WriteConstants(const Trained& trained, const ModelFiles& base, ModelWriter& writer) {
  for (const UnitInfo& unit : trained.layout.units) {
    for (const ParamInfo& param : unit.params) {
      if (param.role != ParamRole::kConstant) continue;
      const Tensor value = base.View(param.name);
      writer.Write(param.name, value.to(param.exact ? at::kFloat : trained.compute_type));
    }
  }
}

std::string WriteModelFrom(const Trained& trained, const spec::JobSpec& spec,
                           const DeliveryOptions& options, bool writes) {
  std::unique_ptr<ModelWriter> writer;
  std::optional<ModelFiles> base;  // the parts that are not trained come from it
  std::vector<StoredTensor> others;
  if (writes) {
    base = ModelFiles::Open(options.model_dir);
    others = OtherParts(*base, trained.layout);
    ModelWriterOptions writer_options;
    writer_options.target = options.target;
    writer_options.source = options.model_dir;
    writer_options.chat_template = spec.data.chat_template;
    writer = std::make_unique<ModelWriter>(
        std::move(writer_options),
        TensorsToWrite(trained.layout, *base, others, trained.compute_type));
  }
  TensorHasher hasher;
  ForEachTrained(trained, trained.compute_type, [&](const ParamInfo& param, const Tensor& weight) {
    hasher.Add(weight);
    if (writer) WriteParam(param, weight, *writer);
  });
  if (writer) {
    for (const StoredTensor& part : others) writer->Write(part.name, ReadPart(part, *base));
    WriteConstants(trained, *base, *writer);
    writer->Commit();
  }
  return hasher.Finish();
}

int64_t DirectoryBytes(const std::filesystem::path& dir) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

}  // namespace

DeliveryResult Deliver(const TrainingModel& model, const spec::JobSpec& spec,
                       const DeliveryOptions& options, Communicator& comm) {
  const bool writes = comm.rank() == 0;
  const bool full = spec.full_finetune();
  DeliveryResult result;
  ConsistencyReport& report = result.consistency;
  const Trained trained = TrainedOf(model);
  report.weights_sha256 = full ? WriteModelFrom(trained, spec, options, writes)
                               : WriteAdapterFrom(trained, spec, options, writes);
  std::string delivered(io::kSha256Digits, '0');
  if (writes) {
    delivered = full ? ModelFileHash(trained.layout, options.target)
                     : AdapterFileHash(trained.layout, options.target);
    result.artifact = {full ? "model" : "adapter", options.target.string(),
                       DirectoryBytes(options.target)};
  }
  report.delivered_sha256 = AllGatherStrings(comm, delivered)[0];
  const bool replicas = comm.world() == 1 || ReplicasAgree(model, comm);
  const bool gathered = EqualOnAllRanks(comm, report.weights_sha256);
  report.consistent = replicas && gathered && report.delivered_sha256 == report.weights_sha256;
  return result;
}

CheckpointDelivery DeliverCheckpoint(const std::filesystem::path& checkpoint,
                                     const DeliveryOptions& options,
                                     const std::string& chat_template) {
  const at::NoGradGuard no_grad;
  const Manifest manifest = ReadManifest(checkpoint);
  for (const CheckpointFile& file : manifest.files) VerifyFile(checkpoint, file);
  CheckModelOf(manifest.stamp, options.model_dir);
  spec::JobSpec spec = TrainedSpec(manifest.stamp);
  spec.data.chat_template = chat_template;
  ModelLayout layout = MakeLayout(ReadConfig(options.model_dir));
  PrepareLayout(layout, spec);
  NamePartsAsStored(ModelFiles::Open(options.model_dir), layout);
  SavedState saved(checkpoint, manifest, at::kCPU);
  const Trained trained{layout, StampedComputeType(manifest.stamp), [&](int unit, int param) {
                          const ParamInfo& info =
                              layout.units[unit].params[static_cast<size_t>(param)];
                          Tensor weight = at::empty(info.shape, at::kFloat);
                          saved.Read("master", info, 0, weight.view({-1}));
                          return weight;
                        }};
  const bool full = spec.full_finetune();
  const std::string weights = full ? WriteModelFrom(trained, spec, options, /*writes=*/true)
                                   : WriteAdapterFrom(trained, spec, options, /*writes=*/true);
  const std::string written =
      full ? ModelFileHash(layout, options.target) : AdapterFileHash(layout, options.target);
  if (weights != written) {
    throw InfrastructureError(fmt::format("{} does not hold the weights that were written to it",
                                          options.target.string()));
  }
  return {.full_model = full, .step = manifest.step};
}

}  // namespace sft::engine
