#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace sft::rank {

// Records what the device and the host do in one optimizer step and writes it as a Chrome trace
// (chrome://tracing, Perfetto). For finding out where a step's time goes: slows that step down.
class StepProfile {
 public:
  // The step that is recorded: allocations and plans of the first ones are behind it.
  static constexpr int64_t kStep = 4;

  // `path` empty: records nothing.
  explicit StepProfile(std::string path) : path_(std::move(path)) {}

  // To be called when the process has ended its step `step` (from 1).
  void AfterStep(int64_t step, bool on_gpu);

 private:
  void Start(bool on_gpu);
  void Stop();

  std::string path_;
};

}  // namespace sft::rank
