#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "sft/v1/file_service.pb.h"
#include "sft/v1/job_service.pb.h"

namespace sft::server::openai {

// What a request to POST /v1/fine_tuning/jobs asks for. What is absent is as the service has it.
struct FineTuning {
  std::string model;
  std::string training_file, validation_file;  // ids of files; the second may be empty
  std::string suffix;
  std::optional<int64_t> seed;
  std::string method = "supervised";  // or "dpo"
  // Where its hyperparameters stand: "method.dpo.hyperparameters", or in the older form
  // "hyperparameters".
  std::string hyperparameters = "hyperparameters";
  std::optional<double> n_epochs, learning_rate_multiplier, beta;
  std::optional<int64_t> batch_size;
  std::map<std::string, std::string> metadata;
  // Of what OpenAI's API has no words for, "sft": {"variant": "H100-4x", "set": {"lora.r": 16}}.
  std::string variant;
  std::vector<std::pair<std::string, std::string>> set;  // as `--set` has it
};

// Translates the body. INVALID_ARGUMENT names the parameter that is wrong, or that is not served.
absl::StatusOr<FineTuning> ReadFineTuning(const std::string& body);

// Its job, without its learning rate (SetLearningRate). `base` is the model whose weights are
// trained, `adapter` the id of the job with whose adapter it begins, or empty. `validation` is null
// where there is no such file.
v1::SubmitJobRequest SubmitOf(const FineTuning& asked, const std::string& base,
                              const std::string& adapter, const v1::File& training,
                              const v1::File* validation);
// The job that the multiplier leaves to be resolved: what it multiplies is the learning rate that
// the job would have without it.
v1::ResolveJobRequest ResolveOf(const v1::SubmitJobRequest& submit);
// Multiplies that rate, in `submit`. INTERNAL where the resolved job has none.
absl::Status SetLearningRate(double multiplier, const v1::ResolveJobResponse& resolved,
                             v1::SubmitJobRequest& submit);

// The parameter of the request that a key of the job is from.
std::string ParamOfKey(const FineTuning& asked, const std::string& key);

// How a job is called that was given no suffix.
inline constexpr char kUnnamed[] = "fine-tuning";

// The origin of a learning rate that a multiplier has made, before the number.
inline constexpr char kMultiplierOrigin[] = "learning_rate_multiplier ";

}  // namespace sft::server::openai
