#include "worker/engine/train/stamp.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "common/base/json.h"
#include "common/base/version.h"
#include "common/io/file.h"
#include "common/io/sha256.h"
#include "common/spec/job_json.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/safetensors.h"
#include "worker/engine/train/training_model.h"

namespace sft::engine {
namespace {

// Keys of the job that decide what is trained how; they are taken as the job has them.
constexpr const char* kJobKeys[] = {
    "training.mode",
    "training.matmul",
    "training.loss",
    "training.preference.beta",
    "training.preference.dpo_loss",
    "training.preference.label_smoothing",
    "training.preference.sft_weight",
    "training.preference.simpo_gamma",
    "training.preference.kto_desirable_weight",
    "training.preference.kto_undesirable_weight",
    "training.validation.greater_is_better",
    "training.validation.metric_for_best_model",
    "hyperparameters.global_batch",
    "hyperparameters.sequence_length",
    "hyperparameters.learning_rate",
    "hyperparameters.embedding_learning_rate",
    "hyperparameters.warmup_ratio",
    "hyperparameters.warmup_steps",
    "hyperparameters.optimizer",
    "hyperparameters.master_weights",
    "hyperparameters.lr_scheduler",
    "hyperparameters.lr_num_cycles",
    "hyperparameters.lr_power",
    "hyperparameters.lr_end",
    "hyperparameters.lr_min",
    "hyperparameters.lr_min_ratio",
    "hyperparameters.lr_decay_steps",
    "hyperparameters.lr_decay",
    "hyperparameters.weight_decay",
    "hyperparameters.adam_beta1",
    "hyperparameters.adam_beta2",
    "hyperparameters.adam_epsilon",
    "hyperparameters.max_grad_norm",
    "hyperparameters.neftune_noise_alpha",
    "hyperparameters.router_aux_loss_coef",
    "hyperparameters.seed",
    "data.packing",
};
constexpr const char* kLoraKeys[] = {"lora.r",
                                     "lora.alpha",
                                     "lora.dropout",
                                     "lora.bias",
                                     "lora.use_rslora",
                                     "lora.rank_pattern",
                                     "lora.alpha_pattern",
                                     "lora.target_modules",
                                     "lora.loraplus_lr_ratio",
                                     "lora.modules_to_save",
                                     "lora.ensure_weight_tying",
                                     "lora.use_dora"};

// Keys in which a job must agree with its checkpoint in any case: another shape, or another model
// under the adapters. All others can be accepted.
const std::set<std::string, std::less<>>& FixedKeys() {
  static const std::set<std::string, std::less<>> keys = {
      "training.mode",       "lora.r",
      "lora.rank_pattern",   "lora.bias",
      "lora.target_modules", "lora.modules_to_save",
      "lora.use_dora",       "model.configuration",
      "model.weights",       "base.weights"};
  return keys;
}

// What a key means where its value is a hash.
std::string_view Meaning(std::string_view key) {
  if (key == "model.configuration") return "the model's config.json is";
  if (key == "model.weights") return "the model's weights are";
  if (key == "data.rows") return "the rows of the training data are";
  if (key == "data.validation_rows") return "the rows of the validation data are";
  if (key == "data.template") return "the chat template or the tokenizer is";
  return "";
}

constexpr int64_t kPage = 4096;

std::string WeightsHash(const std::filesystem::path& dir) {
  const ModelFiles files = ModelFiles::Open(dir);
  io::Sha256 hash;
  for (const std::string& name : files.Names()) {
    const TensorInfo& info = files.Info(name);
    hash.Update(
        fmt::format("{} {} {}\n", name, SafetensorsDtype(info.dtype), fmt::join(info.shape, ",")));
    const int64_t page = kPage / static_cast<int64_t>(c10::elementSize(info.dtype));
    const int64_t count = std::min(page, info.numel());
    for (const int64_t first : {int64_t{0}, (info.numel() - count) / 2, info.numel() - count}) {
      if (count == 0) break;
      const at::Tensor part = files.ViewRange(name, first, count);
      hash.Update(part.const_data_ptr(), part.nbytes());
    }
  }
  return hash.FinishHex();
}

std::string RowsHash(const Dataset& rows) {
  io::Sha256 hash;
  for (int64_t i = 0; i < rows.size(); ++i) {
    const Document document = rows.Get(i);
    const int64_t size = static_cast<int64_t>(document.tokens.size());
    hash.Update(&size, sizeof size);
    hash.Update(document.tokens.data(), document.tokens.size_bytes());
    hash.Update(document.loss.data(), document.loss.size_bytes());
  }
  return hash.FinishHex();
}

std::string FileHash(const std::filesystem::path& path) {
  const auto hash = io::HashFile(path.string());
  if (!hash.ok()) throw UserError(std::string(Message(hash.status())), "file_not_readable");
  return hash->sha256;
}

nlohmann::json::json_pointer PointerTo(std::string_view key) {
  std::string pointer = "/" + std::string(key);
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return nlohmann::json::json_pointer(pointer);
}

constexpr std::string_view kAsStored = "as stored", kDoubleQuant = " with double quantisation";

std::string BaseOf(const spec::JobSpec& spec) {
  if (!spec.qlora()) return std::string(kAsStored);
  if (spec.quantization.bits == 8) return "int8";
  return fmt::format("{}{}", spec.quantization.type,
                     spec.quantization.double_quant ? kDoubleQuant : "");
}

// The other way round: as what the base was held.
void SetBase(const Stamp& stamp, spec::JobSpec& spec) {
  const auto found = stamp.find("base.weights");
  spec.training.use_qlora = found != stamp.end() && found->second != kAsStored;
  if (!spec.training.use_qlora) return;
  const std::string& base = found->second;
  spec.quantization.bits = base == "int8" ? 8 : 4;
  spec.quantization.double_quant = base.ends_with(kDoubleQuant);
  if (spec.quantization.bits == 4) spec.quantization.type = base.substr(0, base.find(' '));
}

}  // namespace

Stamp MakeStamp(const StampSource& source) {
  const spec::JobSpec& spec = source.spec;
  const nlohmann::json job = spec::ToJson(spec);
  Stamp stamp;
  const auto take = [&](const char* key) {
    const nlohmann::json& value = job.at(PointerTo(key));
    stamp[key] = value.is_string() ? value.get<std::string>() : DumpJson(value);
  };
  for (const char* key : kJobKeys) take(key);
  if (!spec.full_finetune()) {
    for (const char* key : kLoraKeys) take(key);
  }
  const bool fp32 = ComputeTypeOf(spec, source.device) == at::kFloat;
  stamp["engine.version"] = kVersion;
  stamp["engine.backend"] = source.device.is_cpu() ? "cpu" : "cuda";
  stamp["engine.compute_type"] = fp32 ? "fp32" : "bf16";
  stamp["base.weights"] = BaseOf(spec);
  stamp["hyperparameters.total_steps"] = std::to_string(source.total_steps);
  stamp["model.configuration"] = FileHash(source.model_dir / "config.json");
  stamp["model.weights"] = WeightsHash(source.model_dir);
  stamp["data.rows"] = RowsHash(source.train);
  stamp["data.validation_rows"] = source.validation != nullptr ? RowsHash(*source.validation) : "";
  stamp["data.template"] = source.tokenizer;
  return stamp;
}

spec::JobSpec TrainedSpec(const Stamp& stamp) {
  nlohmann::json job = spec::ToJson(spec::JobSpec());
  const auto set = [&](const char* key) {
    const auto found = stamp.find(key);
    if (found == stamp.end()) return;
    nlohmann::json& value = job.at(PointerTo(key));
    value = value.is_string() ? nlohmann::json(found->second) : ParseJson(found->second);
  };
  set("training.mode");
  for (const char* key : kLoraKeys) set(key);
  auto spec = spec::FromJson(job);
  if (spec.ok() && stamp.contains("training.mode")) {
    SetBase(stamp, *spec);
    return *std::move(spec);
  }
  throw InfrastructureError(
      fmt::format("the checkpoint's stamp does not say what was trained{}",
                  spec.ok() ? "" : fmt::format(": {}", Message(spec.status()))),
      "checkpoint_damaged", "Take another checkpoint, and report this one.");
}

at::ScalarType StampedComputeType(const Stamp& stamp) {
  const auto found = stamp.find("engine.compute_type");
  return found != stamp.end() && found->second == "fp32" ? at::kFloat : at::kBFloat16;
}

void CheckModelOf(const Stamp& stamp, const std::filesystem::path& model_dir) {
  const Stamp now = {{"model.configuration", FileHash(model_dir / "config.json")},
                     {"model.weights", WeightsHash(model_dir)}};
  std::vector<std::string> texts;
  for (StampDifference& each : Compare(stamp, now)) texts.push_back(std::move(each.text));
  if (texts.empty()) return;
  throw UserError(fmt::format("{} is not the base of the checkpoint: {}", model_dir.string(),
                              fmt::join(texts, "; ")),
                  "checkpoint_mismatch", "Give the model that the checkpoint was trained on.");
}

std::vector<StampDifference> Compare(const Stamp& saved, const Stamp& now) {
  std::vector<StampDifference> differences;
  for (const auto& [key, value] : now) {
    const auto found = saved.find(key);
    if (found == saved.end() || found->second == value) continue;
    const std::string_view meaning = Meaning(key);
    StampDifference difference;
    difference.text =
        meaning.empty() ? fmt::format("{} is {}, the checkpoint has {}", key, value, found->second)
                        : fmt::format("{} other than the checkpoint's", meaning);
    difference.acceptable = !FixedKeys().contains(key);
    difference.engine = key == "engine.version";
    differences.push_back(std::move(difference));
  }
  return differences;
}

}  // namespace sft::engine
