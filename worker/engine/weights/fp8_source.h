#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "common/plan/execution.h"
#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// Gives out another source's weights, and beside those of the blocks' linears their copies in FP8,
// for weights that are trained: the matrix as the forward reads it and its transpose as the
// gradient of its input does, with a scale a row of each (kernels/ops.h). Both are made of the
// weights in the type of the computation, so they hold nothing that a checkpoint must keep;
// gathered weights are copied once they are whole. Blocks that keep their copies make them once
// after each Invalidate; others at each Acquire, and free them with the Release. Thread-compatible.
class Fp8Source : public WeightSource {
 public:
  struct Options {
    bool weight_gradients = false;  // Fp8Matrix::weight_gradient
    plan::ExecutionPlan run;        // which blocks keep their copies
  };
  // Borrows `layout`. Throws UserError where a linear's inputs or outputs are no multiple of 16,
  // which FP8 products need.
  Fp8Source(const ModelLayout& layout, std::unique_ptr<WeightSource> source, const Options& options,
            const at::Device& device);

  void Prefetch(int unit, WeightUse use) override { source_->Prefetch(unit, use); }
  void Acquire(int unit, UnitWeights& weights) override;
  void Release(int unit) override;
  void Invalidate() override;
  int64_t ResidentBytes() const override;
  bool fixed() const override;  // where every block keeps its copies

 private:
  struct Unit {
    std::vector<Fp8Matrix> matrices;  // by UnitInfo::shared_matrices
    bool keeps = false;
    int acquired = 0;
    int filled = 0;  // bits of WeightUse
  };

  void Fill(Unit& unit, const UnitWeights& weights) const;

  const ModelLayout& layout_;
  std::unique_ptr<WeightSource> source_;
  bool weight_gradients_;
  std::vector<Unit> units_;
};

}  // namespace sft::engine
