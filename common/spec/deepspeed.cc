#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/json.h"
#include "common/base/status.h"
#include "common/spec/draft.h"

// Reading of a DeepSpeed JSON: its keys are aliases of ours, and "auto" leaves a key to the job
// file.

namespace sft::spec {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kConfig = "train.deepspeed_config",
                           kFsdp = "hyperparameters.parallelism.fsdp",
                           kStrategy = "hyperparameters.parallelism.fsdp_sharding_strategy",
                           kDeepspeed = "hyperparameters.parallelism.use_deepspeed",
                           kStage = "hyperparameters.parallelism.deepspeed_stage",
                           kStageName = "zero_optimization.stage",
                           kOffload = "hyperparameters.parallelism.offload_optimizer";

struct Mapped {
  std::string_view name;  // dotted name in the JSON
  std::string_view key;
};
constexpr Mapped kMapped[] = {
    {"train_batch_size", "hyperparameters.global_batch"},
    {"train_micro_batch_size_per_gpu", "hyperparameters.per_device_batch"},
    {"gradient_accumulation_steps", "hyperparameters.gradient_accumulation_steps"},
    {"gradient_clipping", "hyperparameters.max_grad_norm"},
    {"bf16.enabled", "hyperparameters.parallelism.bf16"},
    {"fp16.enabled", "hyperparameters.parallelism.fp16"},
    {kStageName, kStage},
    {"zero_optimization.cpu_offload", kOffload},
    {"zero_optimization.offload_optimizer.device", kOffload},
    {"zero_optimization.offload_param.device", "hyperparameters.parallelism.offload_param"},
    {"optimizer.type", "hyperparameters.optimizer"},
    {"optimizer.params.lr", "hyperparameters.learning_rate"},
    {"optimizer.params.betas.0", "hyperparameters.adam_beta1"},
    {"optimizer.params.betas.1", "hyperparameters.adam_beta2"},
    {"optimizer.params.eps", "hyperparameters.adam_epsilon"},
    {"optimizer.params.weight_decay", "hyperparameters.weight_decay"},
};

const Field* FieldOf(std::string_view name) {
  for (const Mapped& mapped : kMapped) {
    if (mapped.name == name) return FindField(mapped.key);
  }
  return nullptr;
}

// The library accepts comments but no trailing commas: those become spaces, so that lines and
// columns in its messages stay right.
std::string WithoutLastCommas(const std::string& text) {
  std::string result = text;
  auto input = nlohmann::detail::input_adapter(text.begin(), text.end());
  nlohmann::detail::lexer<Json, decltype(input)> lexer(std::move(input), /*ignore_comments=*/true);
  using Token = decltype(lexer)::token_type;
  std::optional<size_t> comma;
  for (Token token = lexer.scan(); token != Token::end_of_input && token != Token::parse_error;
       token = lexer.scan()) {
    if (comma && (token == Token::end_object || token == Token::end_array)) result[*comma] = ' ';
    comma.reset();
    if (token == Token::value_separator) comma = lexer.get_position().chars_read_total - 1;
  }
  return result;
}

absl::StatusOr<Json> Parse(const std::string& text) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos ||
      text.find('{') == std::string::npos) {
    return InvalidArgument(
        "must be the text of a DeepSpeed JSON; `sftctl submit --deepspeed FILE` sends a file's");
  }
  JsonProblem problem;
  Json json =
      ParseOrderedJson(WithoutLastCommas(text), {.comments = true, .keys_once = true}, &problem);
  if (json.is_discarded()) {
    return InvalidArgument(problem.kind == JsonProblem::kSyntax
                               ? fmt::format("is not JSON: {}", problem.text)
                           : problem.kind == JsonProblem::kTwice ? problem.text + "; keep one"
                                                                 : "is " + problem.text);
  }
  if (!json.is_object()) return InvalidArgument("must be a JSON object, {...}");
  return json;
}

std::optional<Value> ValueOf(const Json& json) {
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_integer()) return Value(json.get<int64_t>());
  if (json.is_number()) return Value(json.get<double>());
  if (json.is_string()) return Value(json.get<std::string>());
  return std::nullopt;
}

void ApplyValue(const std::string& name, const Json& json, Draft* draft) {
  if (json == "auto" || json.is_null()) return;
  const Field* field = FieldOf(name);
  if (field == nullptr) {
    draft->AddWarning(kConfig, fmt::format("{} = {} is not used", name, DumpJson(json)));
    return;
  }
  const std::optional<Value> raw = ValueOf(json);
  auto value = raw ? Check(*field, *raw) : InvalidArgument("must be one value");
  if (!value.ok()) {
    draft->AddProblem(kConfig,
                      fmt::format("{} = {}: {}", name, DumpJson(json), Message(value.status())));
    return;
  }
  draft->SetAttached(*field, *std::move(value), name);
}

void ApplyTree(const std::string& name, const Json& json, Draft* draft) {
  const bool leaf =
      !json.is_structured() || json.empty() || (json.is_array() && FieldOf(name + ".0") == nullptr);
  if (leaf) return ApplyValue(name, json, draft);
  for (const auto& [key, child] : json.items()) {
    ApplyTree(name.empty() ? key : fmt::format("{}.{}", name, key), child, draft);
  }
}

// A JSON with a stage means use_deepspeed = true; one named at submit beats the file's switches.
void ApplySwitch(const Json& stage, Draft* draft) {
  if (!stage.is_number_integer() || stage == 0) return;
  if (const std::string_view key = OverrideOfStage(*draft); !key.empty()) {
    draft->DropFromFile(kStage);
    draft->AddWarning(key, fmt::format("{} stands; {} = {} of the DeepSpeed JSON is not used",
                                       draft->Quote(key), kStageName, DumpJson(stage)));
    return;
  }
  if (draft->Overridden(kConfig)) {
    for (const std::string_view key : {kFsdp, kStrategy, kDeepspeed}) draft->DropFromFile(key);
  }
  for (const std::string_view key : {kFsdp, kDeepspeed}) {
    const bool agrees = draft->Bool(key) == (key == kDeepspeed);
    if (!draft->Given(key) || draft->Overridden(key) || agrees) continue;
    draft->AddProblem(key, fmt::format("{} contradicts {} = {} of the DeepSpeed JSON; leave one of "
                                       "them out",
                                       draft->Quote(key), kStageName, DumpJson(stage)));
  }
}

}  // namespace

void ApplyDeepspeed(Draft* draft) {
  if (!draft->Has(kConfig)) return;
  const absl::StatusOr<Json> json = Parse(draft->String(kConfig));
  if (!json.ok()) {
    draft->AddProblem(kConfig, std::string(Message(json.status())));
    return;
  }
  draft->Rewrite(kConfig, json->dump());
  ApplyTree("", *json, draft);
  const Json::json_pointer stage("/zero_optimization/stage");
  if (json->contains(stage)) ApplySwitch(json->at(stage), draft);
}

}  // namespace sft::spec
