#pragma once

#include <ATen/core/grad_mode.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/gpu_test.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/optim/grad_norm.h"
#include "worker/engine/train/training_model.h"

namespace sft::engine {
inline constexpr int kSteps = 5;
inline constexpr int kMicroBatches = 2;

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> masters, changes;
  int64_t gpu_bytes = 0;      // of the model before the first step
  int64_t between_bytes = 0;  // and after the last
};

// Trains a small model for five steps of two micro-batches, by one way or another.
class SmallTrainingTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    dir_ = OwnFolder(std::string("sft_small_training_") + info->name());
    WriteTinyModel(dir_, Config());
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // Wide enough that one matrix goes to the host in several pieces.
  static std::string Config() {
    return R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 20480,
      "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4,
      "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 64,
      "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16"})";
  }

  static MicroBatch Rows(int seed) {
    constexpr int kTokens = 64;
    MicroBatch batch;
    for (int i = 0; i < kTokens; ++i) {
      batch.tokens.push_back((seed * 31 + i * 7) % 20480);
      batch.targets.push_back((seed * 31 + (i + 1) * 7) % 20480);
      batch.positions.push_back(i);
      batch.loss_rows.push_back(i);
    }
    batch.cu_seqlens = {0, kTokens};
    batch.max_seqlen = kTokens;
    return batch;
  }

  // Without `run`, as without a plan.
  Outcome Train(const spec::JobSpec& job, double rate = 1e-3,
                const std::optional<plan::ExecutionPlan>& run = std::nullopt) const {
    const at::NoGradGuard no_grad;
    const auto comm = MakeLocalCommunicator(at::Device(at::kCUDA, 0));
    const int64_t before = Plugin().devices->Memory(0).allocated;
    TrainingModel model(job, dir_, *comm, run);
    Outcome outcome;
    outcome.gpu_bytes = Plugin().devices->Memory(0).allocated - before;
    std::vector<at::Tensor> initial;
    for (const TrainablePart& part : model.store().parts()) {
      initial.push_back(part.master.cpu().clone());
    }
    const double scale = 1.0 / (64 * kMicroBatches);
    for (int step = 0; step < kSteps; ++step) {
      model.BeginStep();
      double sum = 0;
      for (int micro = 0; micro < kMicroBatches; ++micro) {
        sum +=
            model.ForwardBackward(Rows(2 * step + micro), step, micro, micro + 1 == kMicroBatches)
                .item<double>();
      }
      outcome.losses.push_back(sum * scale);
      outcome.norms.push_back(model.ReduceGradients(scale));
      model.Update(rate, scale * ClipFactor(outcome.norms.back(), 1.0));
    }
    outcome.between_bytes = Plugin().devices->Memory(0).allocated - before;
    for (const TrainablePart& part : model.store().parts()) {
      outcome.masters.push_back(part.master.cpu().clone());
      outcome.changes.push_back(outcome.masters.back() - initial[outcome.changes.size()]);
    }
    return outcome;
  }

  static double Norm(const at::Tensor& tensor) { return tensor.norm().item<double>(); }

  static spec::JobSpec Job(spec::Mode mode) {
    spec::JobSpec job;
    job.training.mode = mode;
    job.quantization.bits = 0;
    job.hyperparameters.weight_decay = 0.1;
    return job;
  }

  std::filesystem::path dir_;
};

}  // namespace sft::engine
