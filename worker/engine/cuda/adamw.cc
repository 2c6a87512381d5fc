#include "worker/engine/cuda/kernels/adamw.h"

#include <algorithm>
#include <array>

#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/kernels/adamw_format.h"

namespace sft::engine::cuda {

namespace {

using at::Tensor;
using at::TensorList;

AdamWState StateOf(const Tensor& m) {
  if (m.scalar_type() == at::kByte) return AdamWState::kCodes;
  return TypeOf(m, "adamw_step_: m") == ElementType::kFloat32 ? AdamWState::kFloat32
                                                              : AdamWState::kBFloat16;
}

void Check(const Tensor& x, int64_t elements, at::ScalarType type, const Tensor& weight,
           const char* name) {
  TORCH_CHECK(x.is_contiguous() && x.numel() == elements && x.scalar_type() == type &&
                  x.device() == weight.device(),
              "adamw_step_: ", name, " is ", x.scalar_type(), " ", x.sizes(), " on ", x.device(),
              ", must be ", type, ", dense, of ", elements, " elements on ", weight.device());
}

// One list of every kind, with all that a launch needs of it checked.
struct Lists {
  TensorList weights, grads, copies, m, v, m_absmax, v_absmax;
  at::IntArrayRef keys, offsets;

  bool coded() const { return m[0].scalar_type() == at::kByte; }

  void CheckSizes() const {
    const size_t count = weights.size();
    TORCH_CHECK(grads.size() == count && m.size() == count && v.size() == count &&
                    keys.size() == count && offsets.size() == count &&
                    (copies.empty() || copies.size() == count),
                "adamw_step_: lists of different lengths for ", count, " weights");
    const size_t scales = coded() ? count : 0;
    TORCH_CHECK(m_absmax.size() == scales && v_absmax.size() == scales,
                "adamw_step_: ", m_absmax.size(), " and ", v_absmax.size(), " absmax, must be ",
                scales);
  }

  void CheckTensors(size_t i) const {
    const Tensor& weight = weights[i];
    const int64_t n = weight.numel();
    Check(weight, n, weights[0].scalar_type(), weights[0], "a weight");
    Check(grads[i], n, grads[0].scalar_type(), weight, "a gradient");
    Check(m[i], n, m[0].scalar_type(), weight, "m");
    Check(v[i], n, m[0].scalar_type(), weight, "v");
    if (!copies.empty()) {
      const bool is_float = weight.scalar_type() == at::kFloat;
      Check(copies[i], n, is_float ? at::kBFloat16 : at::kFloat, weight, "a copy");
    }
    if (coded()) {
      const int64_t blocks = (n + kOptimizerBlock - 1) / kOptimizerBlock;
      Check(m_absmax[i], blocks, at::kFloat, weight, "m_absmax");
      Check(v_absmax[i], blocks, at::kFloat, weight, "v_absmax");
    }
  }

  AdamWTensor At(size_t i) const {
    return {.weight = weights[i].mutable_data_ptr(),
            .grad = grads[i].const_data_ptr(),
            .copy = copies.empty() ? nullptr : copies[i].mutable_data_ptr(),
            .m = m[i].mutable_data_ptr(),
            .v = v[i].mutable_data_ptr(),
            .m_absmax = coded() ? m_absmax[i].mutable_data_ptr<float>() : nullptr,
            .v_absmax = coded() ? v_absmax[i].mutable_data_ptr<float>() : nullptr,
            .key = static_cast<uint64_t>(keys[i]),
            .offset = offsets[i],
            .elements = weights[i].numel()};
  }
};

AdamWScalars ScalarsOf(at::ArrayRef<double> factors) {
  TORCH_CHECK(factors.size() == 8, "adamw_step_: ", factors.size(), " factors, must be 8");
  const auto at = [&](size_t i) { return static_cast<float>(factors[i]); };
  return {.keep = at(0),
          .one_minus_beta1 = at(1),
          .beta2 = at(2),
          .one_minus_beta2 = at(3),
          .step_size = at(4),
          .sqrt_bias2 = at(5),
          .epsilon = at(6),
          .grad_scale = at(7)};
}

}  // namespace

void AdamWStep(TensorList weights, TensorList grads, TensorList copies, TensorList m, TensorList v,
               TensorList m_absmax, TensorList v_absmax, at::IntArrayRef keys,
               at::IntArrayRef offsets, const std::optional<Tensor>& maps,
               at::ArrayRef<double> factors) {
  TORCH_CHECK(!weights.empty() && !grads.empty() && !m.empty(),
              "adamw_step_: no weight, gradient or state");
  const Lists lists{weights, grads, copies, m, v, m_absmax, v_absmax, keys, offsets};
  lists.CheckSizes();
  const AdamWTypes types = {TypeOf(weights[0], "adamw_step_: weight"),
                            TypeOf(grads[0], "adamw_step_: gradient"), StateOf(m[0])};
  TORCH_CHECK(!lists.coded() || maps, "adamw_step_: codes need maps");
  if (maps) Check(*maps, 4 * 256, at::kFloat, weights[0], "maps");
  const AdamWScalars scalars = ScalarsOf(factors);
  const float* tables = maps ? maps->const_data_ptr<float>() : nullptr;
  const LaunchScope scope(weights[0]);
  std::array<AdamWTensor, kAdamWTensors> batch;
  int count = 0;
  const auto launch = [&] {
    C10_CUDA_CHECK(LaunchAdamW(types, batch.data(), count, scalars, tables, scope.stream()));
    count = 0;
  };
  for (size_t i = 0; i < weights.size(); ++i) {
    lists.CheckTensors(i);
    if (weights[i].numel() == 0) continue;
    batch[count++] = lists.At(i);
    if (count == kAdamWTensors) launch();
  }
  launch();
}

}  // namespace sft::engine::cuda
