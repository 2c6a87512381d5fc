#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/checkpoint/safetensors.h"
#include "worker/engine/data/step_plan.h"
#include "worker/engine/train/training_model.h"

// Reading tests/parity/goldens (README.md there says what is in each file).

namespace sft::engine {

std::filesystem::path GoldenDir();

// Tensors of one golden file by name, copied.
class GoldenTensors {
 public:
  explicit GoldenTensors(const std::filesystem::path& path);
  at::Tensor Get(std::string_view name) const;
  bool Contains(std::string_view name) const { return file_->Contains(name); }
  size_t size() const { return file_->tensors().size(); }

 private:
  std::shared_ptr<const SafetensorsFile> file_;
};

// Rows [rows, n] of tokens and labels (not shifted, -100 masks) as documents of one micro-batch.
MicroBatch RowsBatch(const at::Tensor& input_ids, const at::Tensor& labels);
// One packed row: tokens [n] and labels [n] of documents of these lengths.
MicroBatch PackedBatch(const at::Tensor& input_ids, const at::Tensor& labels,
                       const std::vector<int64_t>& lengths);

// A job in fp32 without decay, clipping and dropout.
spec::JobSpec PlainJob(spec::Mode mode);
// The same for LoRA, with what the adapter's configuration says but for its targets and biases.
spec::JobSpec PlainJob(const AdapterConfig& adapter);

// Of the optimizer steps of a comparison those that this run makes: the first few; all with
// SFT_SERIES_STEPS=20, which run.sh sets.
int StepsToRun(int steps);

// |a - b| / |b| over all elements.
double RelativeError(const at::Tensor& actual, const at::Tensor& expected);

// Compares the gradient of the mean of each trained parameter with "grad.<prefix><name at run
// time>"; of stacks of experts with those of transformers' parameters and of peft's adapters.
void ExpectGradients(const TrainingModel& model, const GoldenTensors& golden, double targets,
                     const std::string& prefix);

// The mean loss of a batch; its gradients stay in `model`.
double MeanLossAndGradients(TrainingModel& model, const MicroBatch& batch);

// How far logits may be from the reference's (RelativeError), and the mean loss, relative to it.
constexpr double kLogitsTolerance = 1e-4;
constexpr double kLossTolerance = 1e-5;

// Expects of a model with its adapter the logits, the loss and the gradients that peft gives for
// the batch in `rows`, and that it trains the parameters that peft trains and no others.
void ExpectPeft(TrainingModel& model, const GoldenTensors& golden, const GoldenTensors& rows);

// Expects the folder `adapter` to hold the tensors of PEFT's and no others, but for those of a
// vision tower.
void ExpectTensorsOfPeft(const std::filesystem::path& adapter,
                         const std::filesystem::path& of_peft);

// What the configuration of the adapter in this folder names as "target_parameters", sorted.
std::vector<std::string> TargetParameters(const std::filesystem::path& adapter);

}  // namespace sft::engine
