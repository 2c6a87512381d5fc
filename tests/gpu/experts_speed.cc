#include "tests/gpu/experts_speed.h"

#include <utility>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/expert_linear.h"
#include "worker/engine/nn/experts.h"
#include "worker/engine/weights/frozen_fp8.h"

namespace sft::engine {
namespace {

using at::Tensor;

constexpr int64_t kRank = 16;

struct Mixture {
  const char* name;
  int64_t experts, chosen, hidden, inner;
  plan::ActivationKind kind;
};
constexpr Mixture kMixtures[] = {
    {"20b", 32, 4, 2880, 2880, plan::ActivationKind::kClampedSwiGlu},
    {"30b", 128, 8, 2048, 768, plan::ActivationKind::kSilu},
};

// Even shares of `mean` rows each; or skewed, as 1 / (1 + 12 e / E): the first expert has 4.7 times
// the mean and the last a third of it.
ops::RowGroups Shares(int64_t experts, int64_t mean, bool skewed) {
  std::vector<double> shares;
  double sum = 0.0;
  for (int64_t e = 0; e < experts; ++e) {
    const double place = static_cast<double>(e) / static_cast<double>(experts);
    shares.push_back(skewed ? 1.0 / (1.0 + 12.0 * place) : 1.0);
    sum += shares.back();
  }
  std::vector<int> begins{0};
  double all = 0.0;
  for (const double share : shares) {
    all += share / sum * static_cast<double>(experts * mean);
    begins.push_back(static_cast<int>(all + 0.5));
  }
  return ops::RowGroups(at::tensor(begins, at::kInt).to(at::kCUDA));
}

// fp32 sums of the adapters of one unit, whose stacks are frozen.
class AdapterSums : public GradientSink {
 public:
  explicit AdapterSums(const UnitInfo& unit) {
    for (const ParamInfo& param : unit.params) {
      sums_.push_back(param.trainable
                          ? at::zeros(param.shape, at::TensorOptions(at::kFloat).device(at::kCUDA))
                          : Tensor());
    }
  }
  void BeginStep() override {}
  void BeginMicroBatch(bool /*last*/) override {}
  bool Trains(int /*unit*/, int param) const override { return sums_[param].defined(); }
  Tensor Buffer(int /*unit*/, int param) override { return sums_[param]; }
  void FinishUnit(int /*unit*/) override {}
  const std::vector<Tensor>& Reduce() override { return sums_; }
  bool sharded() const override { return false; }
  int64_t Bytes() const override { return 0; }
  bool fixed() const override { return true; }

 private:
  std::vector<Tensor> sums_;
};

void AddParam(UnitInfo& unit, const std::string& name, const std::vector<int64_t>& shape,
              int64_t experts, bool trainable) {
  ParamInfo param;
  param.name = unit.name + "." + name;
  param.shape = shape;
  param.experts = experts;
  param.trainable = trainable;
  unit.params.push_back(param);
}

void AddStack(UnitInfo& unit, const std::string& name, int64_t experts, int64_t outputs,
              int64_t inputs) {
  unit.shared_matrices.push_back({static_cast<int>(unit.params.size())});
  AddParam(unit, name + ".weight", {experts * outputs, inputs}, experts, false);
  AddParam(unit, name + ".lora_A.weight", {experts * kRank, inputs}, experts, true);
  AddParam(unit, name + ".lora_B.weight", {experts * outputs, kRank}, experts, true);
}

UnitWeights RandomWeights(const UnitInfo& unit) {
  UnitWeights weights(unit);
  for (size_t i = 0; i < unit.params.size(); ++i) {
    weights.params[i] = Random(unit.params[i].shape).mul_(0.02);
  }
  return weights;
}

// The same with the stacks in FP8.
UnitWeights InFp8(const UnitInfo& unit, UnitWeights weights) {
  weights.fp8 = MakeFrozenFp8(unit, weights);
  for (const std::vector<int>& matrix : unit.shared_matrices) weights[matrix[0]] = Tensor();
  return weights;
}

// One stack with rows for it.
struct Linear {
  UnitInfo unit{.name = "block"};
  UnitWeights weights;
  ExpertLinear linear;
  int64_t experts, outputs, inputs;
  Tensor x, y, dx, xa, dxa;  // y is dy, too

  Linear(int64_t experts, int64_t outputs, int64_t inputs, int64_t rows)
      : experts(experts), outputs(outputs), inputs(inputs) {
    AddStack(unit, "stack", experts, outputs, inputs);
    weights = RandomWeights(unit);
    linear = ExpertLinear(unit, "stack");
    x = Random({rows, inputs});
    y = Random({rows, outputs});
    dx = at::empty_like(x);
    xa = Random({rows, kRank});
    dxa = Random({rows, kRank});
  }
  // [E, outputs, inputs], [E, r, inputs], [E, outputs, r].
  Tensor Stack(int param) const {
    return weights.params[param].view({experts, -1, weights.params[param].size(1)});
  }
  double Flops() const { return 2.0 * static_cast<double>(x.size(0) * outputs * inputs); }
  double AdapterFlops() const {
    return 2.0 * static_cast<double>(x.size(0) * (outputs + inputs) * kRank);
  }
};

// Our products. Rates count the adapters' products as well.
void Ours(const Table& table, const std::string& name, Linear& part, const ops::RowGroups& groups) {
  AdapterSums sums(part.unit);
  UnitGradients gradients(sums, 0);
  const Pass pass{.weights = part.weights, .lora = {.scale = 2.0}};
  const double flops = part.Flops() + part.AdapterFlops();
  table.Arithmetic("ours forward " + name, flops,
                   [&] { part.linear.Forward(part.y, part.x, groups, pass, {}); });
  table.Arithmetic("ours dx", flops,
                   [&] { part.linear.InputGradient(part.dx, part.y, groups, pass); });
  table.Arithmetic("ours dA, dB", part.AdapterFlops(), [&] {
    part.linear.AddGradients(part.y, part.x, part.xa, part.dxa, groups, gradients);
  });
}

// The same in FP8: with rows that are there in FP8, and with what converts them.
void OursInFp8(const Table& table, const std::string& name, Linear& part,
               const ops::RowGroups& groups) {
  if (part.inputs % 16 != 0 || part.outputs % 16 != 0) return;
  const UnitWeights weights = InFp8(part.unit, part.weights);
  const Pass pass{.weights = weights, .lora = {.scale = 2.0}};
  const double flops = part.Flops() + part.AdapterFlops();
  Activation x = part.x, dy = part.y;
  for (Activation* rows : {&x, &dy}) {
    rows->fp8 = part.linear.Fp8Room(rows->rows, pass);
    ops::Fp8Quantize(rows->fp8.values, rows->fp8.scale, rows->rows);
  }
  table.Arithmetic("FP8 forward " + name, flops,
                   [&] { part.linear.Forward(part.y, x, groups, pass, {}); });
  table.Arithmetic("FP8 dx", flops, [&] { part.linear.InputGradient(part.dx, dy, groups, pass); });
  table.Arithmetic("FP8 forward, x converted", flops,
                   [&] { part.linear.Forward(part.y, part.x, groups, pass, {}); });
}

// LibTorch's grouped products, one by one, and the gradient of the stack beside them.
void Grouped(const Table& table, const std::string& name, const Linear& part,
             const ops::RowGroups& groups) {
  // LibTorch wants where each expert's rows end.
  const Tensor ends = groups.begins().slice(0, 1), w = part.Stack(0), a = part.Stack(1),
               b = part.Stack(2);
  const auto time = [&](const std::string& what, double flops, const Tensor& left,
                        const Tensor& right) {
    try {
      table.Arithmetic("grouped " + what, flops, [&] { at::_grouped_mm(left, right, ends); });
    } catch (const c10::Error& error) {
      fmt::print("grouped {}: {}\n", what, error.what_without_backtrace());
    }
  };
  const double down = 2.0 * static_cast<double>(part.x.size(0) * part.inputs * kRank);
  const double up = 2.0 * static_cast<double>(part.x.size(0) * part.outputs * kRank);
  time("x W^T " + name, part.Flops(), part.x, w.transpose(1, 2));
  time("dy W", part.Flops(), part.y, w);
  time("dW", part.Flops(), part.y.t(), part.x);
  time("x A^T", down, part.x, a.transpose(1, 2));
  time("xa B^T", up, part.xa, b.transpose(1, 2));
  time("dy B", up, part.y, b);
  time("dxa A", down, part.dxa, a);
  time("dA", down, part.dxa.t(), part.x);
  time("dB", up, part.y.t(), part.xa);
}

void Linears(const Table& table, const Mixture& mixture) {
  for (const int64_t mean : {64, 128, 256, 512, 1024, 2048}) {
    for (const bool skewed : {false, true}) {
      if (skewed && mean != 256 && mean != 1024) continue;
      const ops::RowGroups groups = Shares(mixture.experts, mean, skewed);
      const auto time = [&](const char* what, int64_t outputs, int64_t inputs) {
        Linear part(mixture.experts, outputs, inputs, mixture.experts * mean);
        const std::string name =
            fmt::format("{} {} {}{}", mixture.name, what, mean, skewed ? " skewed" : "");
        Ours(table, name, part, groups);
        OursInFp8(table, name, part, groups);
        Grouped(table, name, part, groups);
      };
      time("gate_up", 2 * mixture.inner, mixture.hidden);
      time("down", mixture.hidden, mixture.inner);
    }
  }
}

// What stands around the products, of a micro-batch of 16,384 tokens.
void Route(const Table& table, const Mixture& mixture) {
  constexpr int64_t kTokens = 16384;
  const int64_t chosen = mixture.chosen;
  const Tensor scores = Random({kTokens, mixture.experts}).to(at::kFloat);
  const Tensor which = std::get<1>(at::topk(scores, chosen, 1));
  const auto [sorted, order] = at::sort(which.reshape({-1}), true, 0, false);
  const Tensor tokens = order.div(chosen, "floor"),
               borders = at::arange(mixture.experts + 1, sorted.options());
  Tensor places = at::empty_like(order);
  const Tensor x = Random({kTokens, mixture.hidden});
  const Tensor rows = Random({kTokens * chosen, mixture.hidden});
  const Tensor weights = at::softmax(std::get<0>(at::topk(scores, chosen, 1)), 1);
  const std::string name = fmt::format(" {} top {}", mixture.name, chosen);
  table.Memory("topk" + name, Bytes(scores), [&] { at::topk(scores, chosen, 1); });
  table.Memory("sort" + name, 3 * Bytes(order),
               [&] { at::sort(which.reshape({-1}), true, 0, false); });
  table.Memory("counts to the host" + name, Bytes(sorted),
               [&, sorted = sorted] { at::searchsorted(sorted, borders).to(at::kCPU); });
  table.Memory("places" + name, 3 * Bytes(order), [&, order = order] {
    places.index_copy_(0, order, at::arange(order.size(0), order.options()));
  });
  Tensor taken = at::empty_like(rows);
  table.Memory("gather" + name, 2 * Bytes(rows), [&] { ops::TakeRows(taken, x, tokens); });
  places.index_copy_(0, order, at::arange(order.size(0), order.options()));
  const Tensor of_tokens = places.view({kTokens, chosen});
  Tensor sum = at::empty_like(x);
  table.Memory("combine" + name, Bytes(rows) + Bytes(x),
               [&] { ops::CombineRows(sum, rows, of_tokens, weights, {}); });
  const Tensor gate_up = Random({kTokens * chosen, 2 * mixture.inner});
  Tensor activated = at::empty({kTokens * chosen, mixture.inner}, gate_up.options());
  table.Memory("activation" + name, Bytes(gate_up) + Bytes(activated),
               [&] { ops::Glu(activated, gate_up, mixture.kind); });
}

// A layer of a model as it is trained, for 16,384 tokens.
void Layer(const Table& table, const Mixture& mixture, bool fp8) {
  constexpr int64_t kTokens = 16384;
  UnitInfo unit{.name = "block"};
  AddParam(unit, "router.weight", {mixture.experts, mixture.hidden}, 0, false);
  AddStack(unit, "gate_up", mixture.experts, 2 * mixture.inner, mixture.hidden);
  AddStack(unit, "down", mixture.experts, mixture.hidden, mixture.inner);
  UnitWeights weights = RandomWeights(unit);
  if (fp8) weights = InFp8(unit, weights);
  Experts experts;
  experts.router = 0;
  experts.gate_up = ExpertLinear(unit, "gate_up");
  experts.down = ExpertLinear(unit, "down");
  experts.chosen = mixture.chosen;
  experts.kind = mixture.kind;
  AdapterSums sums(unit);
  UnitGradients gradients(sums, 0);
  const Pass pass{.weights = weights, .lora = {.scale = 2.0}};
  const Tensor x = Random({kTokens, mixture.hidden}), dy = Random({kTokens, mixture.hidden});
  Tensor y = at::empty_like(x), dx = at::empty_like(x);
  // Of gate, up and down, without the adapters.
  const double flops =
      6.0 * static_cast<double>(kTokens * mixture.chosen * mixture.hidden * mixture.inner);
  const std::string name = fmt::format("layer of {}{}, ", mixture.name, fp8 ? " in FP8" : "");
  table.Arithmetic(name + "forward", flops, [&] {
    Experts::Saved saved;
    experts.Forward(y, x, {}, pass, saved);
  });
  table.Arithmetic(name + "both ways", 2 * flops, [&] {
    Experts::Saved saved;
    experts.Forward(y, x, {}, pass, saved);
    experts.Backward(dy, x, pass, saved, gradients, &dx);
  });
}

}  // namespace

void ExpertSpeeds(const Table& table) {
  for (const Mixture& mixture : kMixtures) {
    for (const bool fp8 : {false, true}) Layer(table, mixture, fp8);
    Route(table, mixture);
    Linears(table, mixture);
  }
}

}  // namespace sft::engine
