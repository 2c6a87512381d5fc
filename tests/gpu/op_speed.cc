// Times the CUDA operations at the shapes of Qwen3-8B and -32B and prints, for each, milliseconds
// and the share of the device's copy bandwidth or the rate in TFLOP/s. Run on an idle GPU.

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "common/base/clock.h"
#include "worker/engine/cuda/loader.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

constexpr int64_t kTokens = 4096;

class Timer {
 public:
  explicit Timer(const CudaDevices& devices) : devices_(devices) {}

  // Median seconds of a call: batches of calls are timed, so that launches overlap the work.
  double Seconds(const std::function<void()>& work) const {
    constexpr int kBatches = 7;
    work();
    devices_.Synchronize(0);
    const double once = Batch(work, 1);
    const int calls = std::clamp(static_cast<int>(0.02 / std::max(once, 1e-6)), 1, 500);
    std::vector<double> times;
    for (int i = 0; i < kBatches; ++i) times.push_back(Batch(work, calls) / calls);
    std::nth_element(times.begin(), times.begin() + kBatches / 2, times.end());
    return times[kBatches / 2];
  }

 private:
  double Batch(const std::function<void()>& work, int calls) const {
    const MonoTime begin = Clock::Real().Mono();
    for (int i = 0; i < calls; ++i) work();
    devices_.Synchronize(0);
    return std::chrono::duration<double>(Clock::Real().Mono() - begin).count();
  }

  const CudaDevices& devices_;
};

at::Tensor Random(at::IntArrayRef sizes) {
  return at::randn(sizes, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
}

class Table {
 public:
  explicit Table(const CudaDevices& devices) : timer_(devices) {
    const at::Tensor from = Random({int64_t{1} << 29}), to = at::empty_like(from);
    const double seconds = timer_.Seconds([&] { to.copy_(from); });
    copy_ = 2.0 * static_cast<double>(from.nbytes()) / seconds;
    fmt::print("{:<34} {:>9} {:>10} {:>8}\n", "operation", "ms", "GB/s", "of copy");
    fmt::print("{:<34} {:>9.3f} {:>10.0f} {:>8}\n", "copy 1 GiB", seconds * 1e3, copy_ / 1e9,
               "1.00");
  }

  // `bytes`: each input read once, each output written once.
  void Memory(const std::string& name, double bytes, const std::function<void()>& work) const {
    const double seconds = timer_.Seconds(work);
    fmt::print("{:<34} {:>9.3f} {:>10.0f} {:>8.2f}\n", name, seconds * 1e3, bytes / seconds / 1e9,
               bytes / seconds / copy_);
  }
  void Arithmetic(const std::string& name, double flops, const std::function<void()>& work) const {
    const double seconds = timer_.Seconds(work);
    fmt::print("{:<34} {:>9.3f} {:>10.0f} TFLOP/s\n", name, seconds * 1e3, flops / seconds / 1e12);
  }

 private:
  Timer timer_;
  double copy_ = 0.0;
};

void Nf4(const Table& table) {
  const at::Tensor w = Random({5120, 25600});
  const double n = static_cast<double>(w.numel());
  const auto quantised = ops::Nf4Quantize(w);
  const auto nested = ops::AbsmaxQuantize(quantised.absmax);
  at::Tensor out = at::empty_like(w);
  table.Memory("nf4 quantise 5120x25600", 2.5625 * n, [&] { ops::Nf4Quantize(w); });
  table.Memory("nf4 de-quantise 5120x25600", 2.5625 * n,
               [&] { ops::Nf4Dequantize(out, quantised.codes, quantised.absmax); });
  table.Memory("nf4 de-quantise nested 5120x25600", 2.5157 * n, [&] {
    ops::Nf4DequantizeNested(out, quantised.codes, nested.codes, nested.nested_absmax,
                             nested.offset);
  });
  at::Tensor small = Random({4096, 1024}).view(-1);
  const auto small_codes = ops::Nf4Quantize(small);
  table.Memory("nf4 de-quantise 4096x1024", 2.5625 * static_cast<double>(small.numel()),
               [&] { ops::Nf4Dequantize(small, small_codes.codes, small_codes.absmax); });
}

void Rows(const Table& table, const std::string& name, int64_t rows, int64_t width) {
  const at::Tensor x = Random({rows, width}), w = Random({width}), dy = Random({rows, width});
  const at::Tensor rstd = std::get<1>(ops::RmsNorm(x, w, 1e-6));
  const double bytes = static_cast<double>(x.nbytes());
  table.Memory("rms_norm " + name, 2 * bytes, [&] { ops::RmsNorm(x, w, 1e-6); });
  table.Memory("rms_norm backward " + name, 3 * bytes,
               [&] { ops::RmsNormBackward(dy, x, w, rstd, false); });
  table.Memory("rms_norm backward + weight " + name, 3 * bytes,
               [&] { ops::RmsNormBackward(dy, x, w, rstd, true); });
}

void Elementwise(const Table& table) {
  const at::Tensor gate = Random({kTokens, 25600}), up = Random({kTokens, 25600});
  const double bytes = static_cast<double>(gate.nbytes());
  table.Memory("swiglu 4096x25600", 3 * bytes, [&] { ops::Swiglu(gate, up); });
  table.Memory("swiglu backward 4096x25600", 5 * bytes,
               [&] { ops::SwigluBackward(gate, gate, up); });
  at::Tensor q = Random({kTokens, 64, 128});
  const at::Tensor angles = Random({kTokens, 64}).to(at::kFloat);
  const at::Tensor cos = angles.cos(), sin = angles.sin();
  table.Memory("rope 4096x64x128", 2 * static_cast<double>(q.nbytes()),
               [&] { ops::Rope(q, cos, sin, false); });
  at::Tensor logits = Random({kTokens, 151936});
  const at::Tensor targets = at::arange(kTokens, at::TensorOptions(at::kLong).device(at::kCUDA));
  table.Memory("cross_entropy 4096x151936", static_cast<double>(logits.nbytes()),
               [&] { ops::CrossEntropy(logits, targets, false); });
  table.Memory("cross_entropy + gradient", 2 * static_cast<double>(logits.nbytes()),
               [&] { ops::CrossEntropy(logits, targets, true); });
}

void Attention(const Table& table, const std::string& name, const std::vector<int64_t>& lengths) {
  constexpr int64_t kHeads = 64, kKeyHeads = 8, kSize = 128;
  std::vector<int> offsets{0};
  double pairs = 0.0;
  for (const int64_t length : lengths) {
    offsets.push_back(offsets.back() + static_cast<int>(length));
    pairs += 0.5 * static_cast<double>(length * length);
  }
  const ops::Documents documents{at::tensor(offsets, at::kInt).to(at::kCUDA), lengths};
  const at::Tensor q = Random({kTokens, kHeads, kSize}), k = Random({kTokens, kKeyHeads, kSize});
  const at::Tensor v = Random({kTokens, kKeyHeads, kSize}), dout = Random({kTokens, kHeads, kSize});
  const double scale = 0.088388;
  const auto [out, lse] = ops::Attention(q, k, v, documents, scale, 0);
  const double flops = 4.0 * pairs * kHeads * kSize;
  table.Arithmetic("attention " + name, flops,
                   [&] { ops::Attention(q, k, v, documents, scale, 0); });
  table.Arithmetic("attention backward " + name, 2.5 * flops, [&, &out = out, &lse = lse] {
    ops::AttentionBackward(dout, q, k, v, out, lse, documents, scale, 0);
  });
}

int Main() {
  const CudaPlugin& plugin = LoadCudaPlugin(DefaultCudaPluginPath());
  if (plugin.devices->Count() == 0) {
    fmt::print("no GPU on this machine: nothing timed\n");
    return 0;
  }
  plugin.devices->Select(0);
  fmt::print("{}\n", plugin.devices->Properties(0).name);
  const Table table(*plugin.devices);
  Nf4(table);
  Rows(table, "4096x5120", kTokens, 5120);
  Rows(table, "262144x128", kTokens * 64, 128);
  Elementwise(table);
  Attention(table, "1x4096", {4096});
  Attention(table, "1000,96,3000", {1000, 96, 3000});
  Attention(table, "8x512", std::vector<int64_t>(8, 512));
  return 0;
}

}  // namespace
}  // namespace sft::engine

int main() { return sft::engine::Main(); }
