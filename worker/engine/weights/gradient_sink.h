#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace sft::engine {

// A sum as a product adds to it: sum = alpha a b + beta sum (ops::Gemm).
struct ProductSum {
  at::Tensor sum;  // undefined for a frozen parameter
  double beta = 1.0;
};

// Receives gradients. The backward adds into Buffer, or has a product written into Product, and
// says FinishUnit when a unit has all its contributions of a micro-batch; the sink decides when
// they meet those of the other ranks. Sums over micro-batches are fp32 and unnormalised: the
// trainer scales once, in the optimizer's update.
//
// Sinks communicate in FinishUnit or Reduce, so every rank finishes the units in the same order.
// Thread-compatible.
class GradientSink {
 public:
  virtual ~GradientSink() = default;

  // Starts an optimizer step: all gradients are zero, from the first Buffer or FinishUnit on. Until
  // then those of the step before stay, for an optimizer that is still at work.
  virtual void BeginStep() = 0;
  // `last`: no micro-batch follows in this step, so finished units may be reduced at once.
  virtual void BeginMicroBatch(bool last) = 0;
  virtual bool Trains(int unit, int param) const = 0;
  // The gradient of a parameter, in its shape, to be added to; undefined for a frozen one. fp32,
  // or the type that it is sent in where one contribution a micro-batch is all that a block's
  // parameters get. Valid until FinishUnit.
  virtual at::Tensor Buffer(int unit, int param) = 0;
  // Buffer for a weight of a block whose one contribution to a micro-batch is a product; nothing
  // else asks for its Buffer.
  virtual ProductSum Product(int unit, int param) { return {Buffer(unit, param), 1.0}; }
  virtual void FinishUnit(int unit) = 0;
  // The summed gradients over micro-batches and ranks of the optimizer's parts, in the order of
  // TrainableStore::parts(); 1-D. Valid until the next BeginStep.
  virtual const std::vector<at::Tensor>& Reduce() = 0;
  // True if the parts differ between ranks (for the norm over all of them).
  virtual bool sharded() const = 0;
  virtual int64_t Bytes() const = 0;
  // True if Buffer gives the same tensor each time and Product that one with a beta of 1, so that
  // work that adds to them may be recorded (kernels/graph.h).
  virtual bool fixed() const = 0;
};

}  // namespace sft::engine
