#include "tests/parity/golden_case.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/plan/tensors.h"

namespace sft::engine {

using at::Tensor;

namespace {

constexpr std::string_view kGateUp = ".experts.gate_up_proj";
constexpr std::string_view kDown = ".experts.down_proj";

constexpr std::string_view kBias = ".bias";

void Replace(std::string& text, std::string_view from, std::string_view to) {
  if (const size_t at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
}

bool OfStack(std::string_view name) {
  return name.find(kGateUp) != std::string_view::npos || name.find(kDown) != std::string_view::npos;
}

// The name of a gradient, where a model's parameter is called `name` at run time. transformers and
// peft know no ".weight" of a stack of experts, and end its biases in "_bias"; peft calls a stack's
// adapter by the module of both stacks, and with adapters on both that of gate and up "base_layer".
std::string GradientName(const GoldenTensors& golden, const std::string& prefix, std::string name) {
  Replace(name, ".block_sparse_moe.gate.", ".mlp.gate.");
  const bool of_adapter = name.find(".lora_") != std::string::npos;
  if (OfStack(name) && !of_adapter) {
    Replace(name, ".weight", "");
    if (name.ends_with(kBias)) Replace(name, kBias, "_bias");
  }
  const std::string key = "grad." + prefix;
  if (of_adapter) {
    std::string inner = name;
    Replace(inner, kGateUp, ".experts.base_layer");
    if (golden.Contains(key + inner)) return key + inner;
    Replace(name, kGateUp, ".experts");
    Replace(name, kDown, ".experts");
  }
  return key + name;
}

// A stack's factor B as the engine has it, [experts * out, rank], of peft's [out, rank * experts],
// where the expert is the faster index of a column.
Tensor StackedB(const Tensor& of_peft, const std::vector<int64_t>& shape) {
  const int64_t out = of_peft.size(0);
  return of_peft.view({out, shape[1], shape[0] / out}).permute({2, 0, 1}).contiguous();
}

// The gradient of a parameter in the order that the engine has it in.
Tensor Ordered(const Tensor& golden, const ParamInfo& param) {
  if (OfStack(param.name) && param.role == ParamRole::kLoraB) return StackedB(golden, param.shape);
  return param.transposed ? golden.transpose(-2, -1).contiguous() : golden;
}

}  // namespace

std::filesystem::path GoldenDir() { return SFT_PARITY_GOLDENS; }

GoldenTensors::GoldenTensors(const std::filesystem::path& path)
    : file_(SafetensorsFile::Open(path)) {}

Tensor GoldenTensors::Get(std::string_view name) const { return file_->View(name).clone(); }

MicroBatch PackedBatch(const Tensor& input_ids, const Tensor& labels,
                       const std::vector<int64_t>& lengths) {
  const Tensor ids = input_ids.reshape({-1}).to(at::kInt).contiguous();
  const Tensor wanted = labels.reshape({-1}).to(at::kInt).contiguous();
  const int32_t* token = ids.const_data_ptr<int32_t>();
  const int32_t* label = wanted.const_data_ptr<int32_t>();
  MicroBatch batch;
  batch.cu_seqlens = {0};
  int32_t begin = 0;
  for (int64_t length : lengths) {
    for (int32_t i = 0; i < length; ++i) {
      const int32_t target = i + 1 < length ? label[begin + i + 1] : MicroBatch::kIgnore;
      if (target != MicroBatch::kIgnore) batch.loss_rows.push_back(begin + i);
      batch.tokens.push_back(token[begin + i]);
      batch.targets.push_back(target);
      batch.positions.push_back(i);
    }
    begin += static_cast<int32_t>(length);
    batch.cu_seqlens.push_back(begin);
    batch.max_seqlen = std::max(batch.max_seqlen, static_cast<int32_t>(length));
  }
  batch.longest_row = batch.max_seqlen;
  return batch;
}

MicroBatch RowsBatch(const Tensor& input_ids, const Tensor& labels) {
  return PackedBatch(input_ids, labels, std::vector<int64_t>(input_ids.size(0), input_ids.size(1)));
}

spec::JobSpec PlainJob(spec::Mode mode) {
  spec::JobSpec spec;
  spec.training.mode = mode;
  spec.parallelism.compute_type = spec::ComputeType::kFp32;
  spec.hyperparameters.max_grad_norm = 0.0;
  spec.hyperparameters.weight_decay = 0.0;
  spec.hyperparameters.warmup_ratio = 0.0;
  spec.hyperparameters.lr_scheduler.kind = spec::LrScheduler::kConstant;
  return spec;
}

spec::JobSpec PlainJob(const AdapterConfig& adapter) {
  spec::JobSpec job = PlainJob(spec::Mode::kLora);
  job.lora.r = adapter.r;
  job.lora.alpha = adapter.alpha;
  job.lora.use_rslora = adapter.use_rslora;
  job.lora.use_dora = adapter.use_dora;
  job.lora.rank_pattern = adapter.rank_pattern;
  job.lora.alpha_pattern = adapter.alpha_pattern;
  job.lora.modules_to_save = adapter.modules_to_save;
  job.lora.ensure_weight_tying = adapter.ensure_weight_tying;
  return job;
}

int StepsToRun(int steps) {
  constexpr int kFew = 6;
  const char* text = std::getenv("SFT_SERIES_STEPS");
  return std::min(steps, text == nullptr ? kFew : std::stoi(text));
}

double RelativeError(const Tensor& actual, const Tensor& expected) {
  const Tensor a = actual.to(at::kDouble).reshape({-1});
  const Tensor b = expected.to(at::kDouble).reshape({-1});
  return at::linalg_vector_norm(a.sub(b)).item<double>() /
         (at::linalg_vector_norm(b).item<double>() + 1e-300);
}

void ExpectGradients(const TrainingModel& model, const GoldenTensors& golden, double targets,
                     const std::string& prefix) {
  constexpr double kTolerance = 1e-5;
  const auto& parts = model.store().parts();
  ASSERT_EQ(parts.size(), model.gradients().size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const ParamInfo& param = model.layout().units[parts[i].unit].params[parts[i].param];
    const Tensor expected = golden.Get(
        GradientName(golden, prefix, plan::RuntimeModule(model.layout().prefix(), param.name)));
    ASSERT_EQ(parts[i].count, expected.numel()) << param.name;
    EXPECT_LT(RelativeError(model.gradients()[i] / targets, Ordered(expected, param)), kTolerance)
        << param.name;
  }
}

double MeanLossAndGradients(TrainingModel& model, const MicroBatch& batch) {
  const at::NoGradGuard no_grad;
  model.BeginStep();
  const double sum = model.ForwardBackward(batch, 0, 0, /*last=*/true).item<double>();
  const double count = static_cast<double>(batch.loss_tokens());
  model.ReduceGradients(1.0 / count);
  return sum / count;
}

void ExpectPeft(TrainingModel& model, const GoldenTensors& golden, const GoldenTensors& rows) {
  const MicroBatch batch = RowsBatch(rows.Get("input_ids"), rows.Get("labels"));
  {
    const at::NoGradGuard no_grad;
    EXPECT_LT(RelativeError(model.Logits(batch), golden.Get("logits")), kLogitsTolerance);
  }
  const double loss = MeanLossAndGradients(model, batch);
  EXPECT_NEAR(loss, golden.Get("loss").item<float>(), kLossTolerance * loss);
  // Beside the gradients: logits and loss.
  EXPECT_EQ(model.store().parts().size(), golden.size() - 2) << "peft trains other parameters";
  ExpectGradients(model, golden, static_cast<double>(batch.loss_tokens()), "base_model.model.");
}

void ExpectTensorsOfPeft(const std::filesystem::path& adapter,
                         const std::filesystem::path& of_peft) {
  const auto ours = SafetensorsFile::Open(adapter / "adapter_model.safetensors");
  const auto peft = SafetensorsFile::Open(of_peft / "adapter_model.safetensors");
  size_t of_text = 0;
  for (const auto& [name, info] : peft->tensors()) {
    if (name.find("vision") != std::string::npos) continue;
    ++of_text;
    ASSERT_TRUE(ours->Contains(name)) << name;
    EXPECT_TRUE(at::equal(ours->View(name), peft->View(name))) << name;
  }
  EXPECT_EQ(ours->tensors().size(), of_text);
}

std::vector<std::string> TargetParameters(const std::filesystem::path& adapter) {
  std::ifstream file(adapter / "adapter_config.json");
  const nlohmann::json config = nlohmann::json::parse(file);
  const auto found = config.find("target_parameters");
  if (found == config.end() || found->is_null()) return {};
  std::vector<std::string> names = found->get<std::vector<std::string>>();
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace sft::engine
