#include "server/openai/fine_tuning.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "server/openai/errors.h"
#include "server/openai/fields.h"

namespace sft::server::openai {
namespace {

constexpr char kLearningRate[] = "hyperparameters.learning_rate";
constexpr size_t kMostSuffix = 64, kMostPairs = 16;
constexpr double kMostEpochs = 1000, kMostMultiplier = 1e6, kMostBeta = 1e6;
constexpr int64_t kMostBatch = 1 << 20;

// "auto" counts as left out.
bool IsAuto(const Json* value) {
  return value != nullptr && value->is_string() && *value == "auto";
}

absl::Status ReadPositive(Fields& fields, const char* name, double most,
                          std::optional<double>& into) {
  if (IsAuto(fields.Find(name))) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(into, fields.Number(name, 0, most));
  if (into == 0) return fields.Error(name, "is 0, must be above 0");
  return absl::OkStatus();
}

absl::Status ReadHyperparameters(const Json& object, bool dpo, FineTuning& asked) {
  if (!object.is_object()) return ParamError(asked.hyperparameters, "is no object");
  Fields fields(object, asked.hyperparameters);
  SFT_RETURN_IF_ERROR(ReadPositive(fields, "n_epochs", kMostEpochs, asked.n_epochs));
  SFT_RETURN_IF_ERROR(ReadPositive(fields, "learning_rate_multiplier", kMostMultiplier,
                                   asked.learning_rate_multiplier));
  if (!IsAuto(fields.Find("batch_size"))) {
    SFT_ASSIGN_OR_RETURN(asked.batch_size, fields.Integer("batch_size", 1, kMostBatch));
  }
  if (dpo) SFT_RETURN_IF_ERROR(ReadPositive(fields, "beta", kMostBeta, asked.beta));
  return fields.RefuseOthers();
}

absl::Status ReadMethod(Fields& fields, FineTuning& asked) {
  const Json* old = fields.Find("hyperparameters");
  const Json* method = fields.Find("method");
  if (method == nullptr) {
    return old == nullptr ? absl::OkStatus() : ReadHyperparameters(*old, /*dpo=*/false, asked);
  }
  if (old != nullptr) {
    return fields.Error("hyperparameters", "stands beside method, which has its own");
  }
  if (!method->is_object()) return fields.Error("method", "is no object");
  Fields inner(*method, "method");
  SFT_ASSIGN_OR_RETURN(const auto type, inner.Text("type"));
  if (!type.has_value()) return inner.Error("type", "is missing: \"supervised\" or \"dpo\"");
  asked.method = *type;
  if (asked.method != "supervised" && asked.method != "dpo") {
    return inner.Error("type", "is not served: there are \"supervised\" and \"dpo\"");
  }
  asked.hyperparameters = fmt::format("method.{}.hyperparameters", asked.method);
  if (const Json* own = inner.Find(asked.method.c_str()); own != nullptr) {
    if (!own->is_object()) return inner.Error(asked.method, "is no object");
    Fields parts(*own, "method." + asked.method);
    if (const Json* values = parts.Find("hyperparameters"); values != nullptr) {
      SFT_RETURN_IF_ERROR(ReadHyperparameters(*values, asked.method == "dpo", asked));
    }
    SFT_RETURN_IF_ERROR(parts.RefuseOthers());
  }
  return inner.RefuseOthers();
}

absl::Status ReadMetadata(Fields& fields, FineTuning& asked) {
  const Json* metadata = fields.Find("metadata");
  if (metadata == nullptr) return absl::OkStatus();
  if (!metadata->is_object() || metadata->size() > kMostPairs) {
    return fields.Error("metadata", fmt::format("is no object of up to {} texts", kMostPairs));
  }
  for (const auto& item : metadata->items()) {
    if (!item.value().is_string()) {
      return fields.Error("metadata", "holds a value that is no text");
    }
    asked.metadata[item.key()] = item.value().get<std::string>();
  }
  return absl::OkStatus();
}

// As `--set` has it. Nullopt: it is no value of a key.
std::optional<std::string> SetText(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean() || value.is_number()) return DumpJson(value);
  if (!value.is_array()) return std::nullopt;
  std::string text;
  for (const Json& each : value) {
    if (each.is_array()) return std::nullopt;
    const std::optional<std::string> item = SetText(each);
    if (!item.has_value()) return std::nullopt;
    text += (text.empty() ? "" : ",") + *item;
  }
  return text;
}

absl::Status ReadOwn(Fields& fields, FineTuning& asked) {
  const Json* own = fields.Find("sft");
  if (own == nullptr) return absl::OkStatus();
  if (!own->is_object()) return fields.Error("sft", "is no object");
  Fields inner(*own, "sft");
  SFT_ASSIGN_OR_RETURN(const auto variant, inner.Text("variant"));
  asked.variant = variant.value_or("");
  if (const Json* set = inner.Find("set"); set != nullptr) {
    if (!set->is_object()) return inner.Error("set", "is no object of keys and their values");
    for (const auto& item : set->items()) {
      std::optional<std::string> text = SetText(item.value());
      if (!text.has_value()) {
        return ParamError("sft.set." + item.key(), "is no text, number, flag or list of them");
      }
      asked.set.emplace_back(item.key(), *std::move(text));
    }
  }
  return inner.RefuseOthers();
}

absl::Status ReadIntegrations(Fields& fields) {
  const Json* integrations = fields.Find("integrations");
  if (integrations == nullptr || integrations->empty()) return absl::OkStatus();
  return fields.Error("integrations",
                      "are not served, as the server keeps no keys of other services: leave them "
                      "out, and send the curve with `sft.export.wandb(job)` of the Python package");
}

// The origin of a key whose value this parameter gave.
void Override(const std::string& key, const std::string& value, const std::string& origin,
              v1::SubmitJobRequest& submit) {
  v1::Override& added = *submit.add_overrides();
  added.set_key(key);
  added.set_value(value);
  added.set_kind(v1::Override::SET);
  added.set_origin(origin);
}

void AddFile(const std::string& key, const v1::File& file, v1::SubmitJobRequest& submit) {
  v1::JobFile& added = *submit.add_files();
  added.set_key(key);
  added.set_sha256(file.sha256());
  added.set_size(file.size());
  added.set_client_path(file.file_name());
}

}  // namespace

absl::StatusOr<FineTuning> ReadFineTuning(const std::string& body) {
  SFT_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  Fields fields(json);
  FineTuning asked;
  SFT_ASSIGN_OR_RETURN(const auto model, fields.Text("model"));
  if (!model.has_value() || model->empty()) return fields.Error("model", "is missing");
  asked.model = *model;
  SFT_ASSIGN_OR_RETURN(const auto training, fields.Text("training_file"));
  if (!training.has_value() || training->empty()) {
    return fields.Error("training_file", "is missing: the id of an uploaded file");
  }
  asked.training_file = *training;
  SFT_ASSIGN_OR_RETURN(const auto validation, fields.Text("validation_file"));
  asked.validation_file = validation.value_or("");
  SFT_ASSIGN_OR_RETURN(const auto suffix, fields.Text("suffix"));
  asked.suffix = suffix.value_or("");
  const bool plain =
      FindHidden(asked.suffix).empty() && asked.suffix.find(':') == std::string::npos;
  if (asked.suffix.size() > kMostSuffix || !plain) {
    return fields.Error(
        "suffix", fmt::format("has at most {} bytes, on one line, and no colon", kMostSuffix));
  }
  SFT_ASSIGN_OR_RETURN(asked.seed, fields.Integer("seed", 0, std::numeric_limits<int64_t>::max()));
  SFT_RETURN_IF_ERROR(ReadMethod(fields, asked));
  SFT_RETURN_IF_ERROR(ReadMetadata(fields, asked));
  SFT_RETURN_IF_ERROR(ReadOwn(fields, asked));
  SFT_RETURN_IF_ERROR(ReadIntegrations(fields));
  SFT_RETURN_IF_ERROR(fields.RefuseOthers());
  return asked;
}

v1::SubmitJobRequest SubmitOf(const FineTuning& asked, const std::string& base,
                              const std::string& adapter, const v1::File& training,
                              const v1::File* validation) {
  Json file;
  file["job"] = {{"model", base}, {"data", asked.training_file}};
  if (!adapter.empty()) file["job"]["adapter"] = adapter;
  if (!asked.suffix.empty()) file["job"]["name"] = asked.suffix;
  if (!asked.variant.empty()) file["compute"]["variant"] = asked.variant;
  if (validation != nullptr) file["data"]["val"] = asked.validation_file;
  if (asked.method == "dpo") file["training"]["loss"] = "dpo";
  if (asked.beta.has_value()) file["training"]["preference"]["beta"] = *asked.beta;
  if (asked.n_epochs.has_value()) file["hyperparameters"]["n_epochs"] = *asked.n_epochs;
  if (asked.batch_size.has_value()) file["hyperparameters"]["global_batch"] = *asked.batch_size;
  if (asked.seed.has_value()) file["hyperparameters"]["seed"] = *asked.seed;
  v1::SubmitJobRequest submit;
  submit.set_source_text(file.dump(2, ' ', /*ensure_ascii=*/false));
  submit.set_file_name(fmt::format("{}.json", kUnnamed));
  for (const auto& [key, value] : asked.set) Override(key, value, "sft.set", submit);
  AddFile("job.data", training, submit);
  if (validation != nullptr) AddFile("data.val", *validation, submit);
  for (const auto& [key, value] : asked.metadata) (*submit.mutable_metadata())[key] = value;
  return submit;
}

v1::ResolveJobRequest ResolveOf(const v1::SubmitJobRequest& submit) {
  v1::ResolveJobRequest resolve;
  resolve.set_source_text(submit.source_text());
  resolve.set_file_name(submit.file_name());
  *resolve.mutable_overrides() = submit.overrides();
  resolve.set_project(submit.project());
  return resolve;
}

absl::Status SetLearningRate(double multiplier, const v1::ResolveJobResponse& resolved,
                             v1::SubmitJobRequest& submit) {
  for (const v1::ResolvedValue& value : resolved.resolved()) {
    if (value.key() != kLearningRate) continue;
    double rate = 0;
    const char* const end = value.value().data() + value.value().size();
    if (std::from_chars(value.value().data(), end, rate).ec != std::errc()) break;
    Override(kLearningRate, fmt::format("{:.6g}", rate * multiplier),
             fmt::format("{}{:g}", kMultiplierOrigin, multiplier), submit);
    return absl::OkStatus();
  }
  return Internal("the resolved job has no learning rate");
}

std::string ParamOfKey(const FineTuning& asked, const std::string& key) {
  for (const auto& [set, value] : asked.set) {
    if (set == key) return "sft.set." + key;
  }
  if (key == "job.model" || key == "job.adapter") return "model";
  if (key == "job.name") return "suffix";
  if (key == "job.data" || key.starts_with("data.mixture")) return "training_file";
  if (key == "data.val" && !asked.validation_file.empty()) return "validation_file";
  if (key == "hyperparameters.seed" && asked.seed.has_value()) return "seed";
  if (key == "hyperparameters.n_epochs" && asked.n_epochs.has_value()) {
    return asked.hyperparameters + ".n_epochs";
  }
  if (key == kLearningRate && asked.learning_rate_multiplier.has_value()) {
    return asked.hyperparameters + ".learning_rate_multiplier";
  }
  const bool batch = key == "hyperparameters.global_batch" ||
                     key == "hyperparameters.per_device_batch" ||
                     key == "hyperparameters.gradient_accumulation_steps";
  if (batch && asked.batch_size.has_value()) return asked.hyperparameters + ".batch_size";
  if (key == "training.preference.beta" && asked.beta.has_value()) {
    return asked.hyperparameters + ".beta";
  }
  if (key.starts_with("compute.")) return "sft.variant";
  return "sft.set." + key;
}

}  // namespace sft::server::openai
