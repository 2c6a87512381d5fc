// A model whose products are in FP8: the norms and SwiGLU quantise the rows that they make.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/unit/worker/engine/kernels/random_tensor.h"
#include "worker/engine/model/adapters.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/decoder.h"
#include "worker/engine/model/families.h"
#include "worker/engine/nn/rows.h"
#include "worker/engine/weights/adapted_source.h"
#include "worker/engine/weights/quantized_source.h"

namespace sft::engine {
namespace {

using at::Tensor;
using plan::Recompute;

constexpr int kBatchTokens = 24;
constexpr double kScale = 2.0;
constexpr Recompute kLevels[] = {Recompute::kNothing, Recompute::kNorms, Recompute::kMlp,
                                 Recompute::kLinears, Recompute::kAll};

// Keeps the gradients of all units.
class MapSink : public GradientSink {
 public:
  explicit MapSink(const ModelLayout& layout) {
    for (int unit = 0; unit < layout.size(); ++unit) {
      const std::vector<ParamInfo>& params = layout.units[unit].params;
      for (int i = 0; i < static_cast<int>(params.size()); ++i) {
        if (params[i].trainable) buffers_[{unit, i}] = at::zeros(params[i].shape);
      }
    }
  }
  void BeginStep() override {}
  void BeginMicroBatch(bool) override {}
  bool Trains(int unit, int param) const override { return buffers_.contains({unit, param}); }
  Tensor Buffer(int unit, int param) override {
    return Trains(unit, param) ? buffers_.at({unit, param}) : Tensor();
  }
  void FinishUnit(int) override {}
  const std::vector<Tensor>& Reduce() override { return none_; }
  bool sharded() const override { return false; }
  int64_t Bytes() const override { return 0; }
  bool fixed() const override { return true; }
  const std::map<std::pair<int, int>, Tensor>& buffers() const { return buffers_; }

 private:
  std::map<std::pair<int, int>, Tensor> buffers_;
  std::vector<Tensor> none_;
};

constexpr char kLlama[] =
    R"({"model_type": "llama", "vocab_size": 96, "hidden_size": 64, "intermediate_size": 256,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "max_position_embeddings": 64})";
// A gated DeltaNet, and attention with an output gate.
constexpr char kHybridInFp8[] =
    R"({"model_type": "qwen3_5_text", "vocab_size": 96, "hidden_size": 64,
      "intermediate_size": 256, "num_hidden_layers": 2, "full_attention_interval": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
      "linear_num_key_heads": 2, "linear_num_value_heads": 8, "linear_key_head_dim": 8,
      "linear_value_head_dim": 8, "max_position_embeddings": 64})";

// A small model of random weights in 4 bits, with adapters on what `targets` name.
class Fp8Model {
 public:
  explicit Fp8Model(std::vector<std::string> targets = {"all-linear"}, const char* config = kLlama)
      : config_(ParseConfig(config, "config.json")) {
    spec::JobSpec job{.training = {.mode = spec::Mode::kLora, .use_qlora = true}};
    job.lora.target_modules = std::move(targets);
    PrepareLayout(layout_, job);
    auto quantized = std::make_unique<QuantizedSource>(
        layout_, MakeNf4Format(true), QuantizedSource::Options{.compute = at::kFloat8_e4m3fn},
        *comm_);
    auto others = std::make_unique<ResidentSource>(layout_);
    for (int unit = 0; unit < layout_.size(); ++unit) {
      const std::vector<ParamInfo>& params = layout_.units[unit].params;
      for (int i = 0; i < static_cast<int>(params.size()); ++i) {
        const Tensor values = Random(params[i].shape, 100 * unit + i) * 0.1;
        if (params[i].quantized) {
          quantized->Load(unit, i, values.view({-1}));
        } else {
          others->Set(unit, i, values);
        }
      }
    }
    auto both = std::make_unique<ComposedSource>();
    both->Add(std::move(quantized));
    both->Add(std::move(others));
    source_ = std::make_unique<AdaptedSource>(layout_, std::move(both), kScale);
  }

  const ModelConfig& config() const { return config_; }
  const ModelLayout& layout() const { return layout_; }
  WeightSource& source() { return *source_; }
  DecoderBlock Block(int unit) const {
    return DecoderBlock::Bind(config_, layout_.units[unit], unit - 1);
  }

 private:
  ModelConfig config_;
  ModelLayout layout_ = MakeLayout(config_);
  std::unique_ptr<Communicator> comm_ = MakeLocalCommunicator(at::kCPU);
  std::unique_ptr<AdaptedSource> source_;
};

// ---- the same bits ----

// The two blocks, forward and backward.
class BlocksRun {
 protected:
  Fp8Model model_;
  std::vector<int64_t> lengths_{kBatchTokens};
  BlockContext context_;
  DecoderBlock::Saved saved_[3];  // by unit

 public:
  virtual ~BlocksRun() = default;

  void Run() {
    const Rope rope(model_.config().ropes[0], model_.config().head_dim, at::kCPU);
    context_ = {{at::tensor({0, kBatchTokens}, at::kInt), lengths_},
                {rope.Tables(at::arange(kBatchTokens))}};
    y = Random({kBatchTokens, model_.config().hidden}, 1);
    for (const int unit : {1, 2}) {
      const AcquiredUnit acquired(model_.source(), model_.layout(), unit);
      y = Forward(unit, y, {acquired.weights(), {kScale}, nullptr});
    }
    const int64_t spare = model_.Block(1).gradient_spare();
    dx.rows = EmptyRows(kBatchTokens, model_.config().hidden, spare, y);
    dx.rows.copy_(Random(dx.rows.sizes(), 2));
    for (const int unit : {2, 1}) {
      const AcquiredUnit acquired(model_.source(), model_.layout(), unit);
      UnitGradients gradients(sink, unit);
      Backward(unit, {acquired.weights(), {kScale}, nullptr}, gradients);
    }
  }

  Tensor y;
  Activation dx;
  MapSink sink{model_.layout()};

 private:
  virtual Tensor Forward(int unit, const Tensor& x, const Pass& pass) = 0;
  // Turns dx into the gradient of the block's input.
  virtual void Backward(int unit, const Pass& pass, UnitGradients& gradients) = 0;
};

class AsTheyAre : public BlocksRun {
 public:
  explicit AsTheyAre(Recompute level) : plan_{.recompute = level} {}

 private:
  Tensor Forward(int unit, const Tensor& x, const Pass& pass) override {
    return model_.Block(unit).Forward(x, context_, pass, plan_, &saved_[unit]);
  }
  void Backward(int unit, const Pass& pass, UnitGradients& gradients) override {
    const DecoderBlock before = model_.Block(1);
    const Projection* reader = unit == 1 ? nullptr : before.GradientReader(gradients, true);
    dx = model_.Block(unit).Backward(std::move(dx), context_, pass, plan_, saved_[unit], gradients,
                                     /*need_dx=*/true, reader);
    EXPECT_EQ(dx.fp8.values.defined(), unit == 2);
  }

  plan::BlockPlan plan_;
};

// By their parts, none of which is told who reads its rows: each product quantises its own.
class Apart : public BlocksRun {
  static Tensor Norm(const Tensor& x, const Tensor& weight, const ops::NormOptions& options,
                     const Projection& reader, Tensor& rstd) {
    Tensor normed = EmptyRows(x.size(0), x.size(1), reader.spare(), x);
    rstd = ops::RmsNorm(normed, x, weight, options);
    return normed;
  }

  Tensor Forward(int unit, const Tensor& x, const Pass& pass) override {
    const DecoderBlock b = model_.Block(unit);
    DecoderBlock::Saved& s = saved_[unit];
    s.input = x;
    s.input_normed = Norm(x, pass.weights[b.attention_ends.before.weight],
                          b.attention_ends.before.options, b.attention.qkv, s.input_statistics);
    s.middle = at::empty_like(x);
    b.attention.Project(s.input_normed, context_.ropes[0], pass, s.attention);
    b.attention.Attend(s.middle, x, context_.documents, pass, nullptr, s.attention);
    s.middle_normed = Norm(s.middle, pass.weights[b.mlp_ends.before.weight],
                           b.mlp_ends.before.options, b.mlp.gate_up, s.middle_statistics);
    s.mlp.gate_up = EmptyRows(kBatchTokens, b.mlp.gate_up.outputs(), b.mlp.gate_up.spare(), x);
    s.mlp.gate_up_xa = b.mlp.gate_up.Forward(s.mlp.gate_up, s.middle_normed, pass);
    Tensor activated = EmptyRows(kBatchTokens, b.mlp.down.inputs(), b.mlp.down.spare(), x);
    ops::Glu(activated, s.mlp.gate_up, plan::ActivationKind::kSilu);
    Tensor result = at::empty_like(x);
    s.mlp.down_xa = b.mlp.down.Forward(result, activated, pass, s.middle);
    return result;
  }
  void Backward(int unit, const Pass& pass, UnitGradients& gradients) override {
    const DecoderBlock b = model_.Block(unit);
    DecoderBlock::Saved& s = saved_[unit];
    Tensor& dy = dx.rows;
    Tensor dnormed = at::empty_like(s.middle);
    b.mlp.Backward(dy, s.middle_normed, pass, s.mlp, gradients, &dnormed);
    ops::RmsNormBackward(dy, dnormed, s.middle, pass.weights[b.mlp_ends.before.weight],
                         s.middle_statistics, plan::NormKind::kRms, dy, false);
    b.attention.Backward(
        dy, [&] { return s.input_normed; }, context_.documents, context_.ropes[0], pass, nullptr,
        s.attention, gradients, &dnormed);
    ops::RmsNormBackward(dy, dnormed, s.input, pass.weights[b.attention_ends.before.weight],
                         s.input_statistics, plan::NormKind::kRms, dy, false);
  }
};

TEST(Fp8DecoderTest, BlocksHaveTheBitsOfRowsThatAreQuantisedApart) {
  const at::NoGradGuard no_grad;
  Apart apart;
  apart.Run();
  for (const Recompute level : kLevels) {
    AsTheyAre blocks(level);
    blocks.Run();
    EXPECT_TRUE(at::equal(blocks.y, apart.y)) << static_cast<int>(level);
    EXPECT_TRUE(at::equal(blocks.dx.rows, apart.dx.rows)) << static_cast<int>(level);
    for (const auto& [place, gradient] : apart.sink.buffers()) {
      EXPECT_GT(gradient.abs().sum().item<float>(), 0.0f);
      EXPECT_TRUE(at::equal(blocks.sink.Buffer(place.first, place.second), gradient))
          << static_cast<int>(level) << " "
          << Fp8Model().layout().units[place.first].params[place.second].name;
    }
  }
}

// ---- nothing twice, nothing in vain ----

struct Counts {
  int products = 0;  // in FP8: each reads rows of its own
  int apart = 0;     // rows that were read again to be quantised
  int made = 0;      // rows that were made in FP8, too
};
Counts counts;

std::unique_ptr<at::ObserverContext> Count(const at::RecordFunction& call) {
  const std::string_view name = call.name();
  // Rows in FP8 are the last argument.
  const auto makes = [&] { return call.inputs().back().toTensor().defined() ? 1 : 0; };
  if (name == "sft::Fp8Gemm") ++counts.products;
  if (name == "sft::Fp8Quantize") ++counts.apart;
  if (name == "sft::RmsNorm") counts.made += makes();
  if (name == "sft::RmsNormBackward") counts.made += makes();
  if (name == "sft::Glu") counts.made += makes();
  return nullptr;
}

// One micro-batch, forward and backward.
void RunBatch(Fp8Model& model, Recompute level, MapSink& sink) {
  Decoder decoder(model.config(), model.layout(), model.source(), at::kCPU,
                  {.lora = {kScale}, .run = {.shallow = level}});
  const Tensor tokens = at::arange(kBatchTokens, at::kLong);
  const DeviceBatch batch{.tokens = tokens,
                          .positions = tokens,
                          .cu_seqlens = at::tensor({0, kBatchTokens}, at::kInt),
                          .lengths = {kBatchTokens},
                          .loss_rows = tokens,
                          .targets = tokens + 1};
  decoder.ForwardBackward(batch, nullptr, sink);
}

// The loss and gradients of one micro-batch.
Counts CountRows(const std::vector<std::string>& targets, Recompute level) {
  Fp8Model model(targets);
  MapSink sink(model.layout());
  counts = {};
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(&Count).needsInputs(true));
  RunBatch(model, level, sink);
  at::removeCallback(handle);
  return counts;
}

TEST(Fp8DecoderTest, AHybridHasTheSameBitsAtEachLevel) {
  const at::NoGradGuard no_grad;
  Fp8Model model({"all-linear"}, kHybridInFp8);
  MapSink kept(model.layout());
  RunBatch(model, Recompute::kNothing, kept);
  for (const Recompute level : kLevels) {
    MapSink sink(model.layout());
    RunBatch(model, level, sink);
    for (const auto& [place, gradient] : kept.buffers()) {
      EXPECT_GT(gradient.abs().sum().item<float>(), 0.0f);
      EXPECT_TRUE(at::equal(sink.Buffer(place.first, place.second), gradient))
          << plan::NameOf(level) << " "
          << model.layout().units[place.first].params[place.second].name;
    }
  }
}

TEST(Fp8DecoderTest, OnlyWhatIsMadeInTilesIsReadAgainToBeQuantised) {
  const at::NoGradGuard no_grad;
  for (const Recompute level : kLevels) {
    const Counts c = CountRows({"all-linear"}, level);
    // Of each block what attention gives and the gradient of gate and up; of the second that of
    // queries, keys and values, and of the loss. The first has no gradient of its input.
    const int restored = level >= Recompute::kLinears ? 2 : 0;
    EXPECT_EQ(c.apart, 2 * 2 + 1 + 1 + restored) << static_cast<int>(level);
    EXPECT_EQ(c.made + c.apart, c.products) << static_cast<int>(level);
  }
}

TEST(Fp8DecoderTest, NothingIsMadeInFp8ThatNoProductReads) {
  const at::NoGradGuard no_grad;
  for (const char* target :
       {"down_proj", "gate_proj", "o_proj", "q_proj", "layers.1.mlp.up_proj"}) {
    for (const Recompute level : kLevels) {
      const Counts c = CountRows({target}, level);
      EXPECT_EQ(c.made + c.apart, c.products) << target << " " << static_cast<int>(level);
    }
  }
}

}  // namespace
}  // namespace sft::engine
