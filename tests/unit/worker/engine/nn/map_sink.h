#pragma once

#include <ATen/ATen.h>

#include <map>
#include <vector>

#include "worker/engine/weights/gradient_sink.h"
#include "worker/engine/weights/layout.h"

namespace sft::engine {

// Keeps the gradients of one unit by position.
class MapSink : public GradientSink {
 public:
  explicit MapSink(const UnitInfo& unit) {
    for (size_t i = 0; i < unit.params.size(); ++i) {
      if (unit.params[i].trainable) buffers_[static_cast<int>(i)] = at::zeros(unit.params[i].shape);
    }
  }
  void BeginStep() override {}
  void BeginMicroBatch(bool) override {}
  bool Trains(int, int param) const override { return buffers_.contains(param); }
  at::Tensor Buffer(int, int param) override {
    const auto found = buffers_.find(param);
    return found == buffers_.end() ? at::Tensor() : found->second;
  }
  void FinishUnit(int) override {}
  const std::vector<at::Tensor>& Reduce() override { return none_; }
  bool sharded() const override { return false; }
  int64_t Bytes() const override { return 0; }
  bool fixed() const override { return true; }

 private:
  std::map<int, at::Tensor> buffers_;
  std::vector<at::Tensor> none_;
};

}  // namespace sft::engine
