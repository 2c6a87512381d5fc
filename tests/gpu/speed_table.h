#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "worker/engine/cuda/loader.h"

// What the programs share that time operations on an idle GPU.

namespace sft::engine {

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

inline at::Tensor Random(at::IntArrayRef sizes) {
  return at::randn(sizes, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
}

// As activations lie: columns to spare, rows that start on multiples of 64 elements.
inline at::Tensor RandomRows(int64_t rows, int64_t width) {
  return Random({rows, (width + 63) / 64 * 64 + 64}).narrow(1, 0, width);
}

inline double Bytes(const at::Tensor& x) {
  return static_cast<double>(x.numel() * x.element_size());
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
    std::fflush(stdout);  // a file gets each line, whatever comes after it
  }
  void Arithmetic(const std::string& name, double flops, const std::function<void()>& work) const {
    const double seconds = timer_.Seconds(work);
    fmt::print("{:<34} {:>9.3f} {:>10.0f} TFLOP/s\n", name, seconds * 1e3, flops / seconds / 1e12);
    std::fflush(stdout);
  }

 private:
  Timer timer_;
  double copy_ = 0.0;
};

}  // namespace sft::engine
