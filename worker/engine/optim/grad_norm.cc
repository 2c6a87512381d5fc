#include "worker/engine/optim/grad_norm.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <unordered_map>
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

// The host waits once, for the sum.
double SquaredNormOnDevice(std::span<const at::Tensor> grads) {
  std::vector<at::Tensor> norms;
  for (const at::Tensor& grad : JoinAdjacent(grads)) {
    norms.push_back(at::linalg_vector_norm(grad, 2, {}, false, at::kFloat));
  }
  if (norms.empty()) return 0;
  return at::stack(norms).to(at::kDouble).square().sum().item<double>();
}

}  // namespace

std::vector<at::Tensor> JoinAdjacent(std::span<const at::Tensor> tensors) {
  struct Run {
    size_t storage;  // number of its storage, or of the tensor itself where it is not dense
    int64_t begin;
    int64_t end;
    at::Tensor first;
  };
  std::vector<Run> runs;
  std::unordered_map<const void*, size_t> storages;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    const void* key = &tensor;
    if (tensor.is_contiguous()) key = tensor.storage().unsafeGetStorageImpl();
    const size_t storage = storages.emplace(key, storages.size()).first->second;
    const int64_t begin = tensor.storage_offset();
    runs.push_back({storage, begin, begin + tensor.numel(), tensor});
  }
  std::stable_sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) {
    return std::tie(a.storage, a.begin) < std::tie(b.storage, b.begin);
  });
  std::vector<Run> joined;
  for (const Run& run : runs) {
    if (!joined.empty() && joined.back().storage == run.storage && joined.back().end == run.begin &&
        joined.back().first.scalar_type() == run.first.scalar_type()) {
      joined.back().end = run.end;
    } else {
      joined.push_back(run);
    }
  }
  std::vector<at::Tensor> result;
  for (const Run& run : joined) {
    const int64_t elements = run.end - run.begin;
    result.push_back(elements == run.first.numel()
                         ? run.first
                         : run.first.as_strided({elements}, {1}, run.begin));
  }
  return result;
}

double SquaredNorm(std::span<const at::Tensor> grads) {
  at::NoGradGuard no_grad;
  double sum = 0;
  std::vector<at::Tensor> on_device;
  for (const at::Tensor& grad : grads) {
    if (!grad.defined() || grad.numel() == 0) continue;
    if (grad.is_cpu()) {
      sum += SquaredNormCpu(grad);
    } else {
      on_device.push_back(grad);
    }
  }
  return sum + SquaredNormOnDevice(on_device);
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
