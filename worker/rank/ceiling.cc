#include "worker/rank/ceiling.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/duration.h"
#include "common/base/json.h"
#include "common/base/round.h"
#include "common/io/file.h"
#include "common/spec/visit.h"
#include "worker/engine/kernels/ops.h"

namespace sft::rank {
namespace {

using at::Tensor;
namespace ops = engine::ops;

constexpr double kWarmUp = 0.05, kWindow = 0.2;  // seconds
// The most tokens that products and attention are timed with. More tokens give the same rates but
// need more memory: with 500,000 the operands took more than the job itself.
constexpr int64_t kMostProductTokens = 16384, kMostAttentionTokens = 65536;

// By type of GPU and all that the rates depend on.
std::string CacheFile(const CeilingShapes& s, const Device& device, const std::string& cache_dir) {
  std::string gpu = device.cuda->devices->Properties(device.torch.index()).name;
  std::replace_if(
      gpu.begin(), gpu.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '-');
  return fmt::format("{}/ceiling-{}-{}-{}-{}-{}-{}-{}x{}-{}{}{}.json", cache_dir, gpu,
                     s.model.hidden, s.model.intermediate, s.model.heads, s.model.kv_heads,
                     s.model.head_dim, s.rows, s.row_tokens, spec::EnumName(s.matmul),
                     s.weight_gradients ? "-weight-gradients" : "",
                     s.deterministic ? "" : "-any-order");
}

std::optional<engine::Ceiling> ReadCached(const std::string& path) {
  const auto text = io::ReadFile(path);
  if (!text.ok()) return std::nullopt;
  const auto json = ParseJson(*text);
  if (!json.is_object()) return std::nullopt;
  const engine::Ceiling ceiling{.products = json.value("products", 0.0),
                                .attention = json.value("attention", 0.0)};
  if (ceiling.products <= 0 || ceiling.attention <= 0) return std::nullopt;
  return ceiling;
}

CeilingShapes Bounded(CeilingShapes shapes) {
  shapes.row_tokens = std::clamp<int64_t>(shapes.row_tokens, 1, kMostAttentionTokens);
  shapes.rows = std::clamp<int64_t>(shapes.rows, 1, kMostAttentionTokens / shapes.row_tokens);
  return shapes;
}

class Bench {
 public:
  Bench(const CeilingShapes& shapes, const Device& device, Clock& clock)
      : s_(shapes),
        device_(device),
        clock_(clock),
        tokens_(std::min(shapes.rows * shapes.row_tokens, kMostProductTokens)) {}

  // The four products of a block forward, those of the gradients of their inputs, and those of the
  // gradients of their weights where these are asked for.
  double Products() {
    const int64_t q = s_.model.heads * s_.model.head_dim;
    const int64_t kv = s_.model.kv_heads * s_.model.head_dim;
    const std::pair<int64_t, int64_t> matrices[] = {{s_.model.hidden, q + 2 * kv},
                                                    {q, s_.model.hidden},
                                                    {s_.model.hidden, 2 * s_.model.intermediate},
                                                    {s_.model.intermediate, s_.model.hidden}};
    double flops = 0;
    std::vector<std::function<void()>> runs;
    for (const auto& [in, out] : matrices) {
      const int products = s_.weight_gradients ? 3 : 2;
      flops += products * 2 * static_cast<double>(tokens_ * in * out);
      if (s_.weight_gradients) runs.push_back(WeightGradient(in, out));
      if (s_.matmul != spec::Matmul::kBf16) {
        runs.push_back(Fp8Product(in, out, /*fast_sums=*/false));
        runs.push_back(Fp8Product(out, in, /*fast_sums=*/true));
      } else {
        runs.push_back(Forward(in, out));
        runs.push_back(Backward(in, out));
      }
    }
    return flops / Seconds([&] {
             for (const auto& run : runs) run();
           });
  }

  // Forward and backward; counted as StepFlops does.
  double Attention() {
    const int64_t size = s_.model.head_dim, heads = s_.model.heads, kv = s_.model.kv_heads;
    const std::vector<int64_t> lengths(s_.rows, s_.row_tokens);
    std::vector<int> offsets{0};
    for (const int64_t length : lengths)
      offsets.push_back(offsets.back() + static_cast<int>(length));
    const ops::Documents documents{at::tensor(offsets, at::kInt).to(device_.torch), lengths};
    const int64_t tokens = s_.rows * s_.row_tokens;
    const Tensor q = Random({tokens, heads, size}), k = Random({tokens, kv, size});
    const Tensor v = Random({tokens, kv, size}), dout = Random({tokens, heads, size});
    Tensor out = at::empty_like(q), dq = at::empty_like(q), dk = at::empty_like(k);
    Tensor dv = at::empty_like(v);
    const double scale = 1.0 / std::sqrt(static_cast<double>(size));
    const double pairs = static_cast<double>(tokens) * static_cast<double>(s_.row_tokens + 1) / 2;
    return 12 * pairs * static_cast<double>(heads * size) / Seconds([&] {
             const Tensor lse = ops::Attention(out, q, k, v, documents, scale, 0);
             ops::AttentionBackward(dq, dk, dv, dout, q, k, v, out, lse, documents, scale, 0);
           });
  }

 private:
  // Random: what the values are decides the power that a product takes.
  Tensor Random(at::IntArrayRef shape) const {
    return at::randn(shape, at::TensorOptions(device_.torch).dtype(at::kBFloat16));
  }

  std::function<void()> Fp8Product(int64_t in, int64_t out, bool fast_sums) const {
    const Tensor x = Random({tokens_, in}), w = Random({out, in});
    const auto scales = at::TensorOptions(device_.torch).dtype(at::kFloat);
    Tensor y = at::empty({tokens_, out}, x.options());
    Tensor x8 = at::empty_like(x, x.options().dtype(at::kFloat8_e4m3fn));
    Tensor w8 = at::empty_like(w, w.options().dtype(at::kFloat8_e4m3fn));
    Tensor x_scale = at::empty({tokens_}, scales), w_scale = at::empty({out}, scales);
    ops::Fp8Quantize(x8, x_scale, x);
    ops::Fp8Quantize(w8, w_scale, w);
    return [=]() mutable { ops::Fp8Gemm(y, x8, x_scale, w8, w_scale, {}, fast_sums); };
  }

  std::function<void()> WeightGradient(int64_t in, int64_t out) const {
    const auto sums = at::TensorOptions(device_.torch).dtype(at::kFloat);
    Tensor dw = at::empty({out, in}, sums);
    if (s_.matmul != spec::Matmul::kFp8) {
      const Tensor dy = Random({tokens_, out}), x = Random({tokens_, in});
      return [=]() mutable { ops::Gemm(dw, dy.t(), x, 1.0, 0.0); };
    }
    const auto bytes = sums.dtype(at::kFloat8_e4m3fn);
    const int64_t tokens = RoundUp(tokens_, 16);
    Tensor dy8 = at::empty({out, tokens}, bytes), x8 = at::empty({in, tokens}, bytes);
    Tensor dy_scale = at::empty({out}, sums), x_scale = at::empty({in}, sums);
    ops::Fp8QuantizeColumns(dy8, dy_scale, Random({tokens_, out}));
    ops::Fp8QuantizeColumns(x8, x_scale, Random({tokens_, in}));
    return [=]() mutable { ops::Fp8Gemm(dw, dy8, dy_scale, x8, x_scale, {}, false); };
  }

  std::function<void()> Forward(int64_t in, int64_t out) const {
    const Tensor x = Random({tokens_, in}), w = Random({out, in});
    Tensor y = at::empty({tokens_, out}, x.options());
    return [x, w, y]() mutable { ops::Gemm(y, x, w.t(), 1.0, 0.0); };
  }

  std::function<void()> Backward(int64_t in, int64_t out) const {
    const Tensor dy = Random({tokens_, out}), w = Random({out, in});
    Tensor dx = at::empty({tokens_, in}, dy.options());
    return [dy, w, dx]() mutable { ops::Gemm(dx, dy, w, 1.0, 0.0); };
  }

  // Of one run, from as many as fit into the window.
  template <typename Run>
  double Seconds(const Run& run) const {
    const auto timed = [&](int count) {
      const MonoTime begin = clock_.Mono();
      for (int i = 0; i < count; ++i) run();
      device_.cuda->devices->Synchronize(device_.torch.index());
      return SecondsOf(clock_.Mono() - begin);
    };
    timed(1);  // libraries choose and load their kernels
    const double once = std::max(timed(1), 1e-6);
    timed(std::max(1, static_cast<int>(kWarmUp / once)));
    const int count = std::max(2, static_cast<int>(kWindow / once));
    return timed(count) / count;
  }

  const CeilingShapes& s_;
  const Device& device_;
  Clock& clock_;
  int64_t tokens_;  // of products
};

}  // namespace

engine::Ceiling MeasureCeiling(const CeilingShapes& asked, const Device& device, Clock& clock,
                               const std::string& cache_dir) {
  const CeilingShapes shapes = Bounded(asked);
  const std::string path = CacheFile(shapes, device, cache_dir);
  if (const auto cached = ReadCached(path)) return *cached;
  engine::Ceiling ceiling;
  const MonoTime begin = clock.Mono();
  ops::SetDeterministic(shapes.deterministic);
  {
    Bench bench(shapes, device, clock);
    ceiling.products = bench.Products();
    ceiling.attention = bench.Attention();
  }
  device.cuda->devices->ReleaseCached(device.torch.index());
  fmt::print("measured what this GPU reaches in {:.1f} s\n", SecondsOf(clock.Mono() - begin));
  const nlohmann::json json = {{"products", ceiling.products}, {"attention", ceiling.attention}};
  if (const absl::Status status = io::WriteFileAtomic(path, DumpJson(json)); !status.ok()) {
    fmt::print("the measured rates are not kept: {}\n", Message(status));
  }
  return ceiling;
}

}  // namespace sft::rank
