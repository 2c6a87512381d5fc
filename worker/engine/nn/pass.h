#pragma once

#include <ATen/core/Tensor.h>

#include "worker/engine/nn/dropout.h"
#include "worker/engine/weights/gradient_sink.h"
#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// Scale and dropout of the adapter path of every adapted linear.
struct LoraScaling {
  double scale = 0.0;  // alpha / r, or alpha / sqrt(r); times MatrixInfo::Member::scale_ratio
  double dropout = 0.0;
};

class HeadExchange;
class KeyGather;
class TokenExchange;
class RouterBalance;

// The unit being run, as its layers see it.
struct Pass {
  const UnitWeights& weights;
  LoraScaling lora;
  // Null: no dropout (validation, generation).
  const DropoutKey* dropout = nullptr;
  // Forward only, for generation: the bits of a row do not depend on the rows beside it, and
  // products are made in tiles of so many rows (ops::RowProduct). 0: rows may see each other.
  int64_t tile = 0;
  // [T, 1] of the activations' type: 1 in rows that the adapters act on, 0 in those that see the
  // base alone. Undefined: they act on all.
  at::Tensor adapter_rows = {};
  // Of the experts' routers, while training; null: they are not balanced.
  RouterBalance* balance = nullptr;
  // Where the micro-batch's tokens are cut over ranks: the exchange in the node, and the gathering
  // of keys over nodes; null: the rank, or the node, has all of them.
  const HeadExchange* exchange = nullptr;
  const KeyGather* keys = nullptr;
  // Of the ranks that share the matrices; null: the rank has them whole.
  const TokenExchange* sharers = nullptr;

  bool drops() const { return dropout != nullptr && lora.dropout > 0.0; }
};

// Gradients of one unit, for the backward of its layers to add to.
class UnitGradients {
 public:
  UnitGradients(GradientSink& sink, int unit) : sink_(sink), unit_(unit) {}

  // Undefined for a frozen parameter and for param < 0.
  at::Tensor Buffer(int param) { return param < 0 ? at::Tensor() : sink_.Buffer(unit_, param); }
  // For a weight whose whole gradient of a micro-batch is one product.
  ProductSum Product(int param) { return sink_.Product(unit_, param); }
  bool Wants(int param) const { return param >= 0 && sink_.Trains(unit_, param); }
  // No-op for a frozen parameter.
  void Add(int param, const at::Tensor& gradient) {
    if (at::Tensor buffer = Buffer(param); buffer.defined()) buffer.add_(gradient);
  }

 private:
  GradientSink& sink_;
  int unit_;
};

}  // namespace sft::engine
