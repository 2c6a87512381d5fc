#include "worker/engine/checkpoint/adapter.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/plan/tensors.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/adapter_stacks.h"
#include "worker/engine/checkpoint/model_writer.h"

namespace sft::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightsFile = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kSuffixA = ".lora_A.weight";
constexpr std::string_view kSuffixB = ".lora_B.weight";
constexpr std::string_view kSuffixMagnitude = ".lora_magnitude_vector";
constexpr std::string_view kHead = "lm_head.weight", kTable = "embed_tokens.weight";
constexpr const char* kHeadKey = "base_model.model.lm_head.weight";

// A number as PEFT declares it: whole where it is.
ordered_json NumberJson(double number) {
  const bool whole = number == std::floor(number) && std::fabs(number) < 1e9;
  return whole ? ordered_json(static_cast<int64_t>(number)) : ordered_json(number);
}

ordered_json PatternJson(const std::vector<std::string>& items) {
  const auto parsed = spec::ParseModulePatterns(items);
  if (!parsed.ok()) throw InternalError(std::string(Message(parsed.status())));
  ordered_json json = ordered_json::object();
  for (const auto& [pattern, number] : *parsed) json[pattern] = NumberJson(number);
  return json;
}

ordered_json ConfigJson(const AdapterConfig& config) {
  ordered_json json;
  json["peft_type"] = "LORA";
  json["task_type"] = "CAUSAL_LM";
  // PEFT has a key of its own for the commit of "org/name@commit".
  const size_t at =
      config.base_model.starts_with("/") ? std::string::npos : config.base_model.find('@');
  json["base_model_name_or_path"] = config.base_model.substr(0, at);
  if (at != std::string::npos) json["revision"] = config.base_model.substr(at + 1);
  json["r"] = config.r;
  json["lora_alpha"] = NumberJson(config.alpha);
  json["lora_dropout"] = config.dropout;
  if (config.target_pattern.empty()) {
    json["target_modules"] = config.target_modules;
  } else {
    json["target_modules"] = config.target_pattern;
  }
  if (!config.target_parameters.empty()) json["target_parameters"] = config.target_parameters;
  json["bias"] = config.bias;
  json["use_rslora"] = config.use_rslora;
  json["use_dora"] = config.use_dora;
  json["fan_in_fan_out"] = config.fan_in_fan_out;
  if (config.init == spec::LoraInit::kGaussian) {
    json["init_lora_weights"] = "gaussian";
  } else {
    json["init_lora_weights"] = true;
  }
  json["inference_mode"] = true;
  if (config.modules_to_save.empty()) {
    json["modules_to_save"] = nullptr;
  } else {
    json["modules_to_save"] = config.modules_to_save;
  }
  json["ensure_weight_tying"] = config.ensure_weight_tying;
  json["rank_pattern"] = PatternJson(config.rank_pattern);
  json["alpha_pattern"] = PatternJson(config.alpha_pattern);
  return json;
}

bool HasMagnitude(const LoraPair& pair) {
  return pair.magnitude.defined() && pair.magnitude.dim() == 1 && pair.b.dim() == 2 &&
         pair.magnitude.size(0) == pair.b.size(0);
}

bool HasRank(const LoraPair& pair, int64_t rank) {
  const int64_t each = std::max<int64_t>(pair.experts, 1);
  return pair.a.dim() == 2 && pair.b.dim() == 2 && pair.a.size(0) == each * rank &&
         pair.b.size(1) == rank && pair.b.size(0) % each == 0;
}

// Takes the factors of a stack, as PEFT's file has them, for ours.
void TakeStack(LoraPair& pair, int64_t rank) {
  const bool fits = pair.a.dim() == 2 && pair.b.dim() == 2 && pair.a.size(0) > 0 &&
                    pair.a.size(0) == pair.b.size(1) && pair.a.size(0) % rank == 0;
  if (!fits) return;  // refused by its shapes
  pair.experts = pair.a.size(0) / rank;
  pair.b = OurSecondFactor(pair.b, pair.experts);
}

void CheckPair(const AdapterConfig& config, const LoraPair& pair, int64_t rank) {
  if (config.use_dora ? !HasMagnitude(pair) : pair.magnitude.defined()) {
    throw InternalError(
        fmt::format("the magnitude of {} is missing, of another shape, or of an "
                    "adapter without DoRA",
                    pair.module));
  }
  if (HasRank(pair, rank)) return;
  throw InternalError(fmt::format("the factors of {} have the shapes [{}] and [{}] with r = {}",
                                  pair.module, fmt::join(pair.a.sizes(), ", "),
                                  fmt::join(pair.b.sizes(), ", "), rank));
}

// "m.q_proj.bias" is "m.q_proj.base_layer.bias" where PEFT has wrapped m.q_proj.
std::string OtherKey(std::string_view base_prefix, const std::string& name,
                     const std::set<std::string, std::less<>>& adapted) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return std::string(kPrefix) + name;
  const std::string module = name.substr(0, dot);
  return fmt::format("{}{}{}{}", kPrefix, plan::RuntimeModule(base_prefix, module),
                     adapted.contains(module) ? kBaseLayer : "", name.substr(dot));
}

void CheckWritten(const fs::path& path, const std::vector<NamedTensor>& tensors) {
  const auto file = SafetensorsFile::Open(path);
  bool equal = file->tensors().size() == tensors.size();
  for (const NamedTensor& named : tensors) {
    const at::Tensor want = named.tensor.detach().to(at::kCPU).contiguous();
    equal = equal && file->Contains(named.name);
    if (!equal) break;
    const at::Tensor got = file->View(named.name);
    equal = got.sizes() == want.sizes() && got.scalar_type() == want.scalar_type() &&
            std::memcmp(got.const_data_ptr(), want.const_data_ptr(), want.nbytes()) == 0;
  }
  if (equal) return;
  throw InfrastructureError(
      fmt::format("{} read back differs from what was written", path.string()), "disk_error",
      "The disk or its network file system is at fault: try another folder.");
}

[[noreturn]] void Unusable(const fs::path& path, const std::string& what, const char* advice) {
  throw UserError(fmt::format("{}: {}", path.string(), what), "bad_adapter", advice);
}

const char* const kAskForLora =
    "Give the directory of a LoRA adapter made by this program or by PEFT with plain LoRA layers.";

bool IsSet(const ordered_json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return false;
  if (found->is_boolean()) return found->get<bool>();
  return !found->empty();
}

template <typename T>
T Get(const fs::path& path, const ordered_json& json, const char* key, T fallback,
      bool right_type) {
  if (!json.contains(key) || json[key].is_null()) return fallback;
  if (!right_type) Unusable(path, fmt::format("\"{}\" has the wrong type", key), kAskForLora);
  return json[key].get<T>();
}

// A list of strings, or one.
std::vector<std::string> Names(const fs::path& path, const ordered_json& json, const char* key) {
  const ordered_json names = json.value(key, ordered_json());
  if (names.is_string()) return {names.get<std::string>()};
  std::vector<std::string> list;
  if (!names.is_array()) return list;
  for (const auto& item : names) {
    if (!item.is_string()) {
      Unusable(path, fmt::format("\"{}\" holds no strings", key), kAskForLora);
    }
    list.push_back(item.get<std::string>());
  }
  return list;
}

// {"q_proj": 8} as the items of a job file.
std::vector<std::string> Patterns(const fs::path& path, const ordered_json& json, const char* key) {
  const ordered_json patterns = json.value(key, ordered_json());
  std::vector<std::string> items;
  if (patterns.is_null()) return items;
  if (!patterns.is_object()) {
    Unusable(path, fmt::format("\"{}\" is no object of patterns and numbers", key), kAskForLora);
  }
  for (const auto& [pattern, number] : patterns.items()) {
    if (!number.is_number()) {
      Unusable(path, fmt::format("\"{}\" has no number for \"{}\"", key, pattern), kAskForLora);
    }
    items.push_back(fmt::format("{}={}", pattern, number.get<double>()));
  }
  return items;
}

AdapterConfig ReadConfig(const fs::path& path) {
  const auto text = io::ReadFile(path.string(), int64_t{1} << 24);
  if (!text.ok()) {
    throw UserError(std::string(Message(text.status())), "bad_adapter", kAskForLora);
  }
  const ordered_json json = ParseOrderedJson(*text);
  if (!json.is_object()) Unusable(path, "this is not a JSON object", kAskForLora);
  if (json.value("peft_type", ordered_json()) != "LORA") {
    Unusable(path, "peft_type is not \"LORA\"", kAskForLora);
  }
  for (const char* feature : {"lora_bias", "trainable_token_indices", "megatron_config",
                              "layer_replication", "lora_B_layout"}) {
    if (IsSet(json, feature)) {
      Unusable(path, fmt::format("\"{}\" is set, which is not supported", feature), kAskForLora);
    }
  }
  const auto type = [&](const char* key) {
    return json.contains(key) ? json[key] : ordered_json();
  };
  AdapterConfig config;
  config.r = Get<int>(path, json, "r", 8, type("r").is_number_integer());
  config.alpha = Get<double>(path, json, "lora_alpha", 8, type("lora_alpha").is_number());
  config.dropout = Get<double>(path, json, "lora_dropout", 0, type("lora_dropout").is_number());
  config.bias = Get<std::string>(path, json, "bias", "none", type("bias").is_string());
  config.use_dora = Get<bool>(path, json, "use_dora", false, type("use_dora").is_boolean());
  config.use_rslora = Get<bool>(path, json, "use_rslora", false, type("use_rslora").is_boolean());
  config.fan_in_fan_out =
      Get<bool>(path, json, "fan_in_fan_out", false, type("fan_in_fan_out").is_boolean());
  config.base_model = Get<std::string>(path, json, "base_model_name_or_path", "",
                                       type("base_model_name_or_path").is_string());
  config.ensure_weight_tying =
      Get<bool>(path, json, "ensure_weight_tying", false, type("ensure_weight_tying").is_boolean());
  config.target_modules = Names(path, json, "target_modules");
  config.target_parameters = Names(path, json, "target_parameters");
  config.modules_to_save = Names(path, json, "modules_to_save");
  if (config.r < 1) Unusable(path, fmt::format("r is {}", config.r), kAskForLora);
  config.rank_pattern = Patterns(path, json, "rank_pattern");
  config.alpha_pattern = Patterns(path, json, "alpha_pattern");
  if (config.alpha == 0 && !config.alpha_pattern.empty()) {
    Unusable(path, "lora_alpha is 0 beside \"alpha_pattern\"", kAskForLora);
  }
  return config;
}

// The stack that a module of the file is the wrapper of, or nothing.
std::string StackIn(const fs::path& path, const AdapterConfig& config, const std::string& module) {
  try {
    return StackOf(module, config.target_parameters);
  } catch (const std::invalid_argument& error) {
    Unusable(path, error.what(), kAskForLora);
  }
}

bool EndsWith(std::string_view text, std::string_view suffix) { return text.ends_with(suffix); }

// True for a tensor of a module that modules_to_save names, or of a head tied to one.
bool IsSavedWhole(const AdapterConfig& config, std::string_view key) {
  const std::string_view module = key.substr(0, key.rfind('.'));
  const auto& names = config.modules_to_save;
  return (config.ensure_weight_tying && !names.empty() && key == kHeadKey) ||
         std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return EndsWith(module, name); });
}

}  // namespace

std::map<std::string, at::Tensor> Adapter::Values(bool tied_head) const {
  std::map<std::string, at::Tensor> values;
  for (const LoraPair& pair : pairs) {
    values[pair.module + std::string(kSuffixA)] = pair.a;
    values[pair.module + std::string(kSuffixB)] = pair.b;
    if (pair.magnitude.defined()) {
      values[pair.module + std::string(kSuffixMagnitude)] = pair.magnitude;
    }
  }
  at::Tensor head, table;
  for (const NamedTensor& other : others) {
    if (tied_head && EndsWith(other.name, kHead)) {
      head = other.tensor;
      continue;
    }
    if (EndsWith(other.name, kTable)) table = other.tensor;
    values[other.name] = other.tensor;
  }
  const bool trained = tied_head && (head.defined() || table.defined());
  if (trained && !(head.defined() && table.defined() && at::equal(head, table))) {
    throw UserError(
        "the adapter gives embedding and head weights of their own, and the model has one for both",
        "bad_adapter", "train it with lora.ensure_weight_tying = true");
  }
  return values;
}

double AdapterConfig::Scale() const {
  return use_rslora ? alpha / std::sqrt(static_cast<double>(r)) : alpha / r;
}

absl::StatusOr<spec::LoraSizes> AdapterConfig::Sizes() const {
  spec::JobSpec::Lora lora;
  lora.r = r;
  lora.alpha = alpha;
  lora.use_rslora = use_rslora;
  lora.rank_pattern = rank_pattern;
  lora.alpha_pattern = alpha_pattern;
  return spec::LoraSizes::Make(lora);
}

void WriteAdapter(const AdapterFiles& files, const AdapterConfig& config,
                  std::span<const LoraPair> pairs, std::span<const NamedTensor> others) {
  if (pairs.empty()) throw InternalError("an adapter without adapted modules");
  const auto sizes = config.Sizes();
  if (!sizes.ok()) throw InternalError(std::string(Message(sizes.status())));
  std::vector<NamedTensor> tensors;
  std::set<std::string, std::less<>> adapted;
  std::set<std::string> stacks;
  for (const LoraPair& pair : pairs) {
    if (pair.experts > 0) stacks.insert(plan::RuntimeModule(files.base_prefix, pair.module));
  }
  const std::map<std::string, std::string> wrappers = WrapperNames(stacks);
  for (const LoraPair& pair : pairs) {
    const std::string module = plan::RuntimeModule(files.base_prefix, pair.module);
    CheckPair(config, pair, sizes->RankOf(module));
    adapted.insert(pair.module);
    const bool stack = pair.experts > 0;
    const std::string key = std::string(kPrefix) + (stack ? wrappers.at(module) : module);
    tensors.push_back({fmt::format("{}{}", key, kSuffixA), pair.a});
    tensors.push_back({fmt::format("{}{}", key, kSuffixB),
                       stack ? PeftSecondFactor(pair.b, pair.experts) : pair.b});
    if (config.use_dora) {
      tensors.push_back({fmt::format("{}{}", key, kSuffixMagnitude), pair.magnitude});
    }
  }
  for (const NamedTensor& other : others) {
    tensors.push_back({OtherKey(files.base_prefix, other.name, adapted), other.tensor});
    if (other.name == files.tied_table) tensors.push_back({kHeadKey, other.tensor});
  }
  StagedDirectory staged(files.target);
  WriteTextFile(staged.path() / kConfigFile, DumpJson(ConfigJson(config), 2) + "\n");
  WriteSafetensors(staged.path() / kWeightsFile, tensors);
  CheckWritten(staged.path() / kWeightsFile, tensors);
  if (!files.source.empty()) {
    CopyTokenizerFiles(files.source, staged.path(), files.chat_template);
  }
  staged.Commit();
}

void CheckBase(const AdapterConfig& config, std::string_view model) {
  const auto id = [](std::string_view name) {
    const bool on_hub = !name.starts_with('/') && name.find('/') != name.npos;
    return on_hub ? name.substr(0, name.find('@')) : std::string_view();
  };
  const std::string_view own = id(config.base_model), given = id(model);
  if (own.empty() || given.empty() || own == given) return;
  throw UserError(fmt::format("the adapter was trained on {}, not on {}", own, given),
                  "bad_adapter", fmt::format("set job.model = \"{}\"", config.base_model));
}

Adapter ReadAdapter(const fs::path& dir, std::string_view base_prefix) {
  Adapter adapter;
  adapter.config = ReadConfig(dir / kConfigFile);
  const auto sizes = adapter.config.Sizes();
  if (!sizes.ok()) {
    Unusable(dir / kConfigFile, std::string(Message(sizes.status())), kAskForLora);
  }
  const fs::path path = dir / kWeightsFile;
  const auto file = SafetensorsFile::Open(path);
  std::map<std::string, LoraPair> pairs;
  for (const auto& [key, info] : file->tensors()) {
    if (!key.starts_with(kPrefix)) {
      Unusable(path, fmt::format("the key \"{}\" does not begin with {}", key, kPrefix),
               kAskForLora);
    }
    std::string name =
        plan::CheckpointModule(base_prefix, std::string_view(key).substr(kPrefix.size()));
    if (EndsWith(name, kSuffixA) || EndsWith(name, kSuffixB)) {
      const bool is_a = EndsWith(name, kSuffixA);
      const std::string module = name.substr(0, name.size() - kSuffixA.size());
      LoraPair& pair = pairs[module];
      pair.module = module;
      (is_a ? pair.a : pair.b) = file->View(key);
    } else if (adapter.config.use_dora && EndsWith(name, kSuffixMagnitude)) {
      const std::string module = name.substr(0, name.size() - kSuffixMagnitude.size());
      pairs[module].module = module;
      pairs[module].magnitude = file->View(key);
    } else if (EndsWith(name, ".bias") || IsSavedWhole(adapter.config, key)) {
      const size_t at = name.rfind(kBaseLayer);
      if (at != std::string::npos) name.erase(at, kBaseLayer.size());
      adapter.others.push_back({name, file->View(key)});
    } else {
      Unusable(path,
               fmt::format("\"{}\" is no LoRA factor, no bias and none of modules_to_save", key),
               kAskForLora);
    }
  }
  for (auto& [module, pair] : pairs) {
    if (!pair.a.defined() || !pair.b.defined()) {
      Unusable(path, fmt::format("{} has only one of lora_A and lora_B", module), kAskForLora);
    }
    const std::string stack = StackIn(path, adapter.config, module);
    if (!stack.empty()) pair.module = stack;
    if (!stack.empty() && adapter.config.use_dora) {
      Unusable(path, stack + " is a stack of experts, which has no DoRA", kAskForLora);
    }
    const std::string at_run_time = plan::RuntimeModule(base_prefix, pair.module);
    const int rank = sizes->RankOf(at_run_time);
    if (!stack.empty()) TakeStack(pair, rank);
    if (!HasRank(pair, rank)) {
      Unusable(path,
               fmt::format("the factors of {} have the shapes [{}] and [{}], but r is {}", module,
                           fmt::join(pair.a.sizes(), ", "), fmt::join(pair.b.sizes(), ", "), rank),
               kAskForLora);
    }
    pair.scale = sizes->ScaleOf(at_run_time);
    if (adapter.config.use_dora && !HasMagnitude(pair)) {
      Unusable(path,
               fmt::format("use_dora is set, but {} has no lora_magnitude_vector of [{}]", module,
                           pair.b.size(0)),
               kAskForLora);
    }
    adapter.pairs.push_back(std::move(pair));
  }
  if (adapter.pairs.empty()) Unusable(path, "there is no LoRA factor in it", kAskForLora);
  return adapter;
}

}  // namespace sft::engine
