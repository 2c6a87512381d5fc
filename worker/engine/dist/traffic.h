#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"

namespace sft::engine {

// What the collectives of one axis of the ranks' grid cost a rank in a step.
struct AxisTraffic {
  std::string axis;  // "shard", "replicate", "world"
  // Part of the step in which computing waited for them, and so for the slowest rank. What is
  // waited for on a stream beside the computation is not part of it.
  double exposed_share = 0;
  // Bytes that this rank sends (as rings do), over the time of the whole step.
  double gigabytes_per_second = 0;
};

// Measures that. A CPU waits by the clock; on a GPU each wait lies between two events of the
// stream that the step began on, which are read a step later, when they have passed. Used by the
// rank's training thread alone.
class TrafficMeter {
 public:
  // `clock` is borrowed.
  TrafficMeter(at::Device device, Clock& clock) : device_(device), clock_(clock) {}

  // What is not between the two is not counted: checkpoints, validation.
  void BeginStep();
  void EndStep();
  // Of the last step that has ended, axes in the order of their first use; empty before.
  std::vector<AxisTraffic> LastStep();

  // The index of an axis by its name.
  size_t Axis(std::string_view name);
  void AddBytes(size_t axis, double bytes);
  void BeginWait();
  void EndWait(size_t axis);

 private:
  struct Wait {
    size_t axis;
    c10::Event begin, end;
  };
  struct Sum {
    double seconds = 0;  // of waits on a CPU
    double bytes = 0;
  };
  struct Step {
    MonoTime begun{};
    double seconds = 0;
    std::vector<Sum> sums;  // by axis
    std::vector<Wait> waits;
  };
  c10::Event TakeEvent();

  const at::Device device_;
  Clock& clock_;
  std::vector<std::string> names_;
  bool open_ = false;
  Step step_, last_;
  std::optional<c10::Stream> stream_;  // that the step began on
  std::optional<MonoTime> wait_begun_;
  std::optional<c10::Event> wait_event_;
  std::vector<c10::Event> spare_;  // made once, used again
};

}  // namespace sft::engine
