#include "worker/rank/step_profile.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <set>

namespace sft::rank {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

void StepProfile::AfterStep(int64_t step, bool on_gpu) {
  if (path_.empty()) return;
  if (step == kStep - 1) Start(on_gpu);
  if (step == kStep) Stop();
}

void StepProfile::Start(bool on_gpu) {
  const ProfilerConfig config(ProfilerState::KINETO);
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (on_gpu) activities.insert(ActivityType::CUDA);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
}

void StepProfile::Stop() {
  profiler::disableProfiler()->save(path_);
  fmt::print("wrote the trace of step {} to {}\n", kStep, path_);
}

}  // namespace sft::rank
