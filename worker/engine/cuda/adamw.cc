#include "worker/engine/cuda/kernels/adamw.h"

#include <algorithm>
#include <array>

#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/kernels/adamw_format.h"

namespace sft::engine::cuda {

namespace {

using at::Tensor;

AdamWState StateOf(const Tensor& m) {
  if (m.scalar_type() == at::kByte) return AdamWState::kCodes;
  return TypeOf(m, "AdamWStep: m") == ElementType::kFloat32 ? AdamWState::kFloat32
                                                            : AdamWState::kBFloat16;
}

void Check(const Tensor& x, int64_t elements, at::ScalarType type, const Tensor& weight,
           const char* name) {
  TORCH_CHECK(x.is_contiguous() && x.numel() == elements && x.scalar_type() == type &&
                  x.device() == weight.device(),
              "AdamWStep: ", name, " is ", x.scalar_type(), " ", x.sizes(), " on ", x.device(),
              ", must be ", type, ", dense, of ", elements, " elements on ", weight.device());
}

bool Coded(const ops::AdamWTensors& t) { return t.m[0].scalar_type() == at::kByte; }

void CheckSizes(const ops::AdamWTensors& t) {
  const size_t count = t.weights.size();
  TORCH_CHECK(t.grads.size() == count && t.m.size() == count && t.v.size() == count &&
                  t.keys.size() == count && t.offsets.size() == count &&
                  (t.copies.empty() || t.copies.size() == count),
              "AdamWStep: lists of different lengths for ", count, " weights");
  const size_t scales = Coded(t) ? count : 0;
  TORCH_CHECK(t.m_absmax.size() == scales && t.v_absmax.size() == scales,
              "AdamWStep: ", t.m_absmax.size(), " and ", t.v_absmax.size(), " absmax, must be ",
              scales);
}

void CheckTensors(const ops::AdamWTensors& t, size_t i) {
  const Tensor& weight = t.weights[i];
  const int64_t n = weight.numel();
  Check(weight, n, t.weights[0].scalar_type(), t.weights[0], "a weight");
  Check(t.grads[i], n, t.grads[0].scalar_type(), weight, "a gradient");
  Check(t.m[i], n, t.m[0].scalar_type(), weight, "m");
  Check(t.v[i], n, t.m[0].scalar_type(), weight, "v");
  if (!t.copies.empty()) {
    const bool is_float = weight.scalar_type() == at::kFloat;
    Check(t.copies[i], n, is_float ? at::kBFloat16 : at::kFloat, weight, "a copy");
  }
  if (Coded(t)) {
    const int64_t blocks = (n + kOptimizerBlock - 1) / kOptimizerBlock;
    Check(t.m_absmax[i], blocks, at::kFloat, weight, "m_absmax");
    Check(t.v_absmax[i], blocks, at::kFloat, weight, "v_absmax");
  }
}

AdamWTensor TensorAt(const ops::AdamWTensors& t, size_t i) {
  return {.weight = t.weights[i].mutable_data_ptr(),
          .grad = t.grads[i].const_data_ptr(),
          .copy = t.copies.empty() ? nullptr : t.copies[i].mutable_data_ptr(),
          .m = t.m[i].mutable_data_ptr(),
          .v = t.v[i].mutable_data_ptr(),
          .m_absmax = Coded(t) ? t.m_absmax[i].mutable_data_ptr<float>() : nullptr,
          .v_absmax = Coded(t) ? t.v_absmax[i].mutable_data_ptr<float>() : nullptr,
          .key = static_cast<uint64_t>(t.keys[i]),
          .offset = t.offsets[i],
          .elements = t.weights[i].numel()};
}

AdamWScalars ScalarsOf(const ops::AdamWFactors& f) {
  return {f.keep,      f.one_minus_beta1, f.beta2,   f.one_minus_beta2,
          f.step_size, f.sqrt_bias2,      f.epsilon, f.grad_scale};
}

}  // namespace

// A launch for every kAdamWTensors tensors.
void AdamWStep(const ops::AdamWTensors& t, const Tensor& maps, const ops::AdamWFactors& factors) {
  TORCH_CHECK(!t.weights.empty() && !t.grads.empty() && !t.m.empty(),
              "AdamWStep: no weight, gradient or state");
  CheckSizes(t);
  const AdamWTypes types = {TypeOf(t.weights[0], "AdamWStep: weight"),
                            TypeOf(t.grads[0], "AdamWStep: gradient"), StateOf(t.m[0])};
  TORCH_CHECK(!Coded(t) || maps.defined(), "AdamWStep: codes need maps");
  if (maps.defined()) Check(maps, 4 * 256, at::kFloat, t.weights[0], "maps");
  const AdamWScalars scalars = ScalarsOf(factors);
  const float* tables = maps.defined() ? maps.const_data_ptr<float>() : nullptr;
  const LaunchScope scope(t.weights[0]);
  std::array<AdamWTensor, kAdamWTensors> batch;
  int count = 0;
  const auto launch = [&] {
    C10_CUDA_CHECK(LaunchAdamW(types, batch.data(), count, scalars, tables, scope.stream()));
    count = 0;
  };
  for (size_t i = 0; i < t.weights.size(); ++i) {
    CheckTensors(t, i);
    if (t.weights[i].numel() == 0) continue;
    batch[count++] = TensorAt(t, i);
    if (count == kAdamWTensors) launch();
  }
  launch();
}

}  // namespace sft::engine::cuda
