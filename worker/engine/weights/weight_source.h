#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "worker/engine/weights/layout.h"

namespace sft::engine {

// The passes that a unit's weights are wanted for.
enum class WeightUse { kForward = 1, kBackward = 2, kBoth = 3 };

inline bool Includes(WeightUse use, WeightUse part) {
  return (static_cast<int>(use) & static_cast<int>(part)) != 0;
}

// A shared matrix in FP8, with a scale a row (kernels/ops.h). N outputs, K inputs, R adapter ranks.
// For a stack of E experts their matrices stand one below the other: forward [E N, K], backward
// [E K, N].
struct Fp8Matrix {
  at::Tensor forward;            // float8 rows [N, K + R]
  at::Tensor forward_scale;      // fp32 [N]
  at::Tensor backward;           // float8 rows [K, N + R]: the transpose
  at::Tensor backward_scale;     // fp32 [K]
  bool weight_gradient = false;  // the product of its gradient is in FP8, too
};

// A shared matrix in NF4, as ops::Nf4Prepack gives it: N outputs, K inputs.
struct Nf4Matrix {
  at::Tensor codes;   // uint8 [N, K / 2]
  at::Tensor absmax;  // fp32 [N, K / 64]
};

// What DoRA makes of the outputs of a shared matrix, fp32 [N] each: output i of the weights and
// adapters, without bias, is multiplied by gain = magnitude / norm, where norm is that of row i of
// W + s B A. Outputs without a magnitude have a gain of 1.
struct RowGains {
  at::Tensor gain, norm;
};

// A unit's weights in the type of the computation.
struct UnitWeights {
  UnitWeights() = default;
  explicit UnitWeights(const UnitInfo& unit, WeightUse wanted = WeightUse::kBoth)
      : use(wanted), params(unit.params.size()) {}

  WeightUse use = WeightUse::kBoth;  // what the source must have ready

  std::vector<at::Tensor> params;  // by position in UnitInfo::params; undefined: no source holds it
  // By UnitInfo::shared_matrices; set by JoinMatrices. Rows [N, K], or [N + R, K + R] where the
  // source left room for the adapters; undefined where no source holds the weights.
  std::vector<at::Tensor> matrices;
  // By UnitInfo::shared_matrices, where the products are in FP8; else empty. What `use` leaves out
  // may hold anything or be undefined. Frozen weights given so are undefined in `params` and
  // `matrices`.
  std::vector<Fp8Matrix> fp8;
  // By UnitInfo::shared_matrices, where generation reads the weights in NF4; else empty. Those
  // given so are undefined in `params` and `matrices`.
  std::vector<Nf4Matrix> nf4;
  // By UnitInfo::shared_matrices, undefined where no member has a magnitude; empty without DoRA.
  std::vector<RowGains> gains;
  // Weights that the source wrote anew since the unit was last acquired, as bits of WeightUse:
  // adapters that stood in the room beside them are gone.
  int rewritten = 0;

  at::Tensor& operator[](int param) { return params[param]; }
  const at::Tensor& operator[](int param) const { return params[param]; }
};

// Views the weights that share a matrix as that matrix. A source must have laid them one below the
// other, as rows of MatrixInfo::stride or dense: throws InternalError otherwise.
void JoinMatrices(const UnitInfo& unit, UnitWeights& weights);

// Source of units' weights: resident, gathered from shards, de-quantised, streamed from the host,
// or several of these one after the other. The model acquires a unit, computes, releases it, and
// says which unit it will want next. Sources that communicate do so in Prefetch or Acquire, so
// every rank must walk the units in the same order.
//
// Thread-compatible: one thread of the rank walks.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Starts what can be started for `unit`; does not wait. Optional before Acquire.
  virtual void Prefetch(int unit, WeightUse use) = 0;
  // Puts this source's parameters of `unit` into `weights` (made by the caller). They stay valid
  // and unchanged until the matching Release. A unit may be acquired more than once; at most
  // SlotPool::kSlots units are acquired at a time.
  virtual void Acquire(int unit, UnitWeights& weights) = 0;
  virtual void Release(int unit) = 0;
  // The weights were updated: nothing kept from before may be given out any more.
  virtual void Invalidate() = 0;
  // Bytes that stay allocated between steps.
  virtual int64_t ResidentBytes() const = 0;
  // True if Acquire gives the same tensors each time, with nothing to be done between one unit and
  // the next but where weights changed: work that reads them may then be recorded
  // (kernels/graph.h).
  virtual bool fixed() const = 0;
};

// Several sources, each with some of the parameters.
class ComposedSource : public WeightSource {
 public:
  // Null is no source.
  void Add(std::unique_ptr<WeightSource> source) {
    if (source) sources_.push_back(std::move(source));
  }

  void Prefetch(int unit, WeightUse use) override;
  void Acquire(int unit, UnitWeights& weights) override;
  void Release(int unit) override;
  void Invalidate() override;
  int64_t ResidentBytes() const override;
  bool fixed() const override;

 private:
  std::vector<std::unique_ptr<WeightSource>> sources_;
};

// Tensors that are simply there. They may be views of storage that an optimizer updates in place.
class ResidentSource : public WeightSource {
 public:
  explicit ResidentSource(const ModelLayout& layout);
  void Set(int unit, int param, at::Tensor tensor);
  // Allocates the matrices of a unit with room for the adapters and sets the weights that stand in
  // them, uninitialised, for the caller to fill. Not those of quantised weights.
  void AllocateMatrices(const UnitInfo& info, int unit, const at::TensorOptions& options);
  // In place of the weights of the unit's matrices, of which each is undefined or a whole one:
  // those are given up.
  void SetFp8(const UnitInfo& info, int unit, std::vector<Fp8Matrix> matrices);
  const at::Tensor& Get(int unit, int param) const { return units_[unit][param]; }
  const UnitWeights& Get(int unit) const { return units_[unit]; }

  void Prefetch(int, WeightUse) override {}
  void Acquire(int unit, UnitWeights& weights) override;
  void Release(int) override {}
  void Invalidate() override {}
  int64_t ResidentBytes() const override;
  bool fixed() const override { return true; }

 private:
  std::vector<UnitWeights> units_;
};

// Acquires a unit for a scope.
class AcquiredUnit {
 public:
  AcquiredUnit(WeightSource& source, const ModelLayout& layout, int unit,
               WeightUse use = WeightUse::kBoth)
      : source_(source), unit_(unit), weights_(layout.units[unit], use) {
    source_.Acquire(unit, weights_);
    JoinMatrices(layout.units[unit], weights_);
  }
  ~AcquiredUnit() { source_.Release(unit_); }
  AcquiredUnit(const AcquiredUnit&) = delete;
  AcquiredUnit& operator=(const AcquiredUnit&) = delete;

  const UnitWeights& weights() const { return weights_; }

 private:
  WeightSource& source_;
  int unit_;
  UnitWeights weights_;
};

}  // namespace sft::engine
