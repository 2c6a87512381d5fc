#include "worker/engine/optim/grad_norm.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>
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

namespace {

struct UnitSquares {
  int unit = 0;
  double squares = 0;
};

// On a CPU of each part; on a device of each unit, whose parts one kernel reads.
std::vector<UnitSquares> SquaresOf(const std::vector<UnitGradient>& parts) {
  const at::NoGradGuard no_grad;
  std::vector<UnitSquares> all;
  std::vector<at::Tensor> norms;
  std::vector<size_t> places;
  for (size_t i = 0; i < parts.size();) {
    const int unit = parts[i].unit;
    std::vector<at::Tensor> on_device;
    for (; i < parts.size() && parts[i].unit == unit; ++i) {
      const at::Tensor& values = parts[i].values;
      if (!values.defined() || values.numel() == 0) continue;
      if (values.is_cpu()) {
        all.push_back({unit, SquaredNormCpu(values)});
      } else {
        on_device.push_back(values);
      }
    }
    for (const at::Tensor& joined : JoinAdjacent(on_device)) {
      places.push_back(all.size());
      all.push_back({unit, 0});
      norms.push_back(at::linalg_vector_norm(joined, 2, {}, false, at::kFloat));
    }
  }
  if (norms.empty()) return all;
  const at::Tensor squares = at::stack(norms).to(at::kDouble).square().cpu();
  for (size_t i = 0; i < places.size(); ++i) {
    all[places[i]].squares = squares.const_data_ptr<double>()[i];
  }
  return all;
}

double Sum(const std::vector<UnitSquares>& squares) {
  double sum = 0;
  for (const UnitSquares& each : squares) sum += each.squares;
  return sum;
}

// Those of all stages, in the order of the units.
std::vector<UnitSquares> Gathered(const std::vector<UnitSquares>& own, Communicator& stages) {
  std::vector<int64_t> counts = AllGatherInt64(stages, static_cast<int64_t>(own.size()) * 2);
  std::vector<double> mine;
  for (const UnitSquares& each : own) {
    mine.push_back(each.unit);
    mine.push_back(each.squares);
  }
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const at::Tensor part = at::tensor(mine, at::kDouble).to(stages.device());
  at::Tensor whole = at::empty({total}, part.options());
  stages.AllGather(whole, part, std::move(counts));
  const at::Tensor host = whole.cpu();
  const double* values = host.const_data_ptr<double>();
  std::vector<UnitSquares> all;
  for (int64_t i = 0; i < total; i += 2) {
    all.push_back({static_cast<int>(values[i]), values[i + 1]});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const UnitSquares& a, const UnitSquares& b) { return a.unit < b.unit; });
  return all;
}

}  // namespace

double SquaredNorm(std::span<const at::Tensor> grads) {
  std::vector<UnitGradient> parts;
  for (const at::Tensor& grad : grads) parts.push_back({0, grad});
  return Sum(SquaresOf(parts));
}

double GlobalGradNorm(const std::vector<UnitGradient>& parts, Communicator& stages,
                      Communicator& shards) {
  std::vector<UnitSquares> squares = SquaresOf(parts);
  if (stages.world() > 1) squares = Gathered(squares, stages);
  double sum = Sum(squares);
  if (shards.world() > 1) sum = AllReduceSumDouble(shards, sum);
  return std::sqrt(sum);
}

double ClipFactor(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

}  // namespace sft::engine
