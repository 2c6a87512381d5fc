#include "common/rpc/progress.h"

#include <algorithm>
#include <cstdint>

namespace sft::rpc {

void Advance(const v1::Metric& point, v1::Progress& progress) {
  if (point.step() < progress.step()) return;
  progress.set_step(point.step());
  progress.clear_phase();
  if (point.is_eval()) {
    progress.set_val_loss(point.val_loss());
    progress.set_has_val_loss(true);
    if (point.values_size() > 0) *progress.mutable_values() = point.values();
    return;
  }
  if (point.total_steps() > 0) progress.set_total_steps(point.total_steps());
  progress.set_loss(point.loss());
  progress.set_tokens_per_second(point.tokens_per_second());
  progress.set_gpu_memory_bytes(point.gpu_memory_bytes());
  progress.set_mfu(point.mfu());
  progress.set_of_limit(point.of_limit());
  if (point.has_preference()) *progress.mutable_preference() = point.preference();
  if (point.traffic_size() > 0) *progress.mutable_traffic() = point.traffic();
  const int64_t left = std::max<int64_t>(0, point.total_steps() - point.step());
  progress.set_eta_seconds(point.step_seconds() * static_cast<double>(left));
}

}  // namespace sft::rpc
