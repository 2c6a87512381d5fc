#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/plan/plan.h"

// The choice between ways to divide a job over its GPUs, by their plans.

namespace sft::plan {

// A layout is chosen before a simpler one where it is faster by more than this, which is about the
// error between plans of two layouts (docs/benchmarks/splits.md).
inline constexpr double kWorthALayout = 0.03;
// It is said of a layout that a job does not name, but would be faster in, from here.
inline constexpr double kClearlyFaster = 0.10;

// One of several jobs that differ in their layout, with its plan's figures.
struct PlannedLayout {
  size_t job = 0;  // of those asked for
  double tokens_per_second = 0;
  int64_t memory_bytes = 0;  // a rank's peak
};

// Plans a job in several layouts, the simplest first, on GPUs of `gpu_bytes`: the one to take, then
// the fastest of the others. All are in the most precise optimizer and masters ("auto") with which
// the job fits in any of them. Those that cannot be among the two are not planned to the end. Empty
// where the job fits in none.
std::vector<PlannedLayout> ChooseLayout(const ModelShape& shape, const GpuRates& gpu,
                                        int64_t gpu_bytes, const std::vector<spec::JobSpec>& jobs);

}  // namespace sft::plan
