#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "sft/v1/node.pb.h"
#include "worker/gpus/gpu_probe.h"

namespace sft::worker {

// Simulated GPUs: "H100:8". Ranks on them run on the CPU.
struct SimulatedGpus {
  std::string gpu_type;
  int count = 0;
};
absl::StatusOr<SimulatedGpus> ParseSimulatedGpus(std::string_view text);

// The node's slots: its GPUs (real or simulated) first, then its CPU slots. The order, and so the
// index, is fixed for the life of the process. Thread-safe.
class Inventory {
 public:
  using Probe = std::function<absl::StatusOr<std::vector<GpuReading>>()>;

  // Calls `probe` once, unless GPUs are simulated. `clock` is borrowed.
  Inventory(Probe probe, SimulatedGpus simulated, int cpu_slots, Clock& clock);

  std::vector<v1::Slot> Slots() const;
  bool simulated() const { return simulated_; }
  // The readings of the first probe; empty for simulated GPUs.
  const std::vector<GpuReading>& first_readings() const { return first_readings_; }
  int gpu_count() const { return gpu_count_; }
  // GPUs of the machine, offered here or not.
  int machine_gpus() const { return std::max(gpu_count_, machine_gpus_); }
  // Called before the inventory is used.
  void SetMachineGpus(int count) { machine_gpus_ = count; }
  // True when ranks on this slot compute on a real GPU.
  bool IsGpu(int slot) const { return !simulated_ && slot >= 0 && slot < gpu_count_; }
  int SlotsLike(int slot) const;

  // Probes again. A failed probe marks every GPU unhealthy, with the reason; a single GPU that
  // cannot be read only that one. Blocks for as long as the probe does.
  void Refresh();
  // Requests newer readings: calls the function given to SetWaker, if it was set.
  void AskForRefresh();
  void SetWaker(std::function<void()> waker);
  // Memory in use at the last good reading, and the time of that reading.
  struct Memory {
    int64_t used_bytes = 0;
    MonoTime at;
    // When the driver last answered but could not read this GPU; zero: never.
    MonoTime unreadable_at{};
    bool healthy = true;  // health of the slot
  };
  Memory MemoryOf(int slot) const;
  // "0000:18:00"; empty: no GPU, or not known.
  std::string PciOf(int slot) const;

 private:
  void TakeReading(const GpuReading& reading, int slot) SFT_REQUIRES(mutex_);
  void TakeProblem(const std::string& problem, int slot) SFT_REQUIRES(mutex_);

  const Probe probe_;
  const bool simulated_;
  Clock& clock_;
  int gpu_count_ = 0;                       // constant after construction
  int machine_gpus_ = 0;                    // constant too
  std::vector<GpuReading> first_readings_;  // constant too
  mutable Mutex mutex_;
  std::vector<v1::Slot> slots_ SFT_GUARDED_BY(mutex_);
  // By GPU.
  std::vector<std::string> pci_ SFT_GUARDED_BY(mutex_);
  std::vector<MonoTime> sampled_at_ SFT_GUARDED_BY(mutex_);
  std::vector<MonoTime> unreadable_at_ SFT_GUARDED_BY(mutex_);
  std::function<void()> waker_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::worker
