#pragma once

#include <ATen/ATen.h>

namespace sft::engine {

// Normal numbers in fp32, the same for a seed each time.
inline at::Tensor Random(at::IntArrayRef shape, int seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kFloat);
}

// |actual - expected| / |expected|.
inline double RelativeError(const at::Tensor& actual, const at::Tensor& expected) {
  return (actual.to(at::kDouble) - expected.to(at::kDouble)).norm().item<double>() /
         (expected.to(at::kDouble).norm().item<double>() + 1e-30);
}

}  // namespace sft::engine
