#include "worker/engine/optim/grad_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "worker/engine/kernels/cpu_ops.h"

namespace sft::engine {
namespace {

constexpr int64_t kChunk = 8192;

// Eight running sums: the compiler keeps them in one vector register.
SFT_SIMD_CLONES double SumOfSquares(const float* values, int64_t count) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int k = 0; k < 8; ++k) {
      const double value = values[i + k];
      sums[k] += value * value;
    }
  }
  double rest = 0;
  for (; i < count; ++i) rest += static_cast<double>(values[i]) * values[i];
  return std::accumulate(sums, sums + 8, rest);
}

double SquaredNormCpu(const at::Tensor& grad) {
  const at::Tensor flat = grad.contiguous().view(-1);
  const int64_t elements = flat.numel();
  std::vector<double> sums((elements + kChunk - 1) / kChunk);
  at::parallel_for(0, static_cast<int64_t>(sums.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t count = std::min(kChunk, elements - i * kChunk);
      const at::Tensor piece = flat.narrow(0, i * kChunk, count).to(at::kFloat);
      sums[i] = SumOfSquares(piece.const_data_ptr<float>(), count);
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

double SquaredNorm(std::span<const at::Tensor> grads) {
  at::NoGradGuard no_grad;
  double sum = 0;
  // On a device the norms are gathered first, so that the host waits once.
  std::vector<at::Tensor> device_norms;
  for (const at::Tensor& grad : grads) {
    if (!grad.defined() || grad.numel() == 0) continue;
    if (grad.is_cpu()) {
      sum += SquaredNormCpu(grad);
    } else {
      device_norms.push_back(at::linalg_vector_norm(grad, 2, {}, false, at::kFloat));
    }
  }
  if (!device_norms.empty()) {
    sum += at::stack(device_norms).to(at::kDouble).square().sum().item<double>();
  }
  return sum;
}

double GlobalGradNorm(std::span<const at::Tensor> replicated, std::span<const at::Tensor> sharded,
                      bool has_shards, Communicator& comm) {
  double sum = SquaredNorm(replicated);
  if (has_shards) sum += AllReduceSumDouble(comm, SquaredNorm(sharded));
  return std::sqrt(sum);
}

double ClipFactor(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace sft::engine
