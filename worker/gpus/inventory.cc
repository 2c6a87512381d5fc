#include "worker/gpus/inventory.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <map>

namespace sft::worker {
namespace {

constexpr int kMaxSimulatedGpus = 64;

// Memory of simulated GPUs, so that plans for them are useful; 80 GB for a type not listed.
int64_t MemoryOfType(const std::string& type) {
  static const std::map<std::string, int64_t> kGigabytes = {
      {"A100", 80}, {"H100", 80}, {"H200", 141}, {"B200", 180}, {"L40S", 48}, {"RTX4090", 24}};
  const auto found = kGigabytes.find(type);
  return (found == kGigabytes.end() ? 80 : found->second) * 1'000'000'000;
}

void Fill(v1::Slot& slot, const GpuReading& reading) {
  slot.set_memory_bytes(reading.memory_bytes);
  slot.set_memory_used_bytes(reading.memory_used_bytes);
  slot.set_utilization_percent(reading.utilization_percent);
  slot.set_power_watts(static_cast<float>(reading.power_watts));
  slot.set_temperature_celsius(reading.temperature_celsius);
  slot.set_healthy(reading.recovery.empty());
  slot.set_health_reason(reading.recovery.empty()
                             ? ""
                             : "the driver asks to " + reading.recovery + " before it is used");
}

// The reading of a GPU: by its UUID or, where that cannot be read yet, by its place. Null: it is no
// longer listed.
const GpuReading* ReadingOf(const v1::Slot& slot, int place,
                            const std::vector<GpuReading>& readings) {
  for (const GpuReading& reading : readings) {
    if (!reading.uuid.empty() && reading.uuid == slot.uuid()) return &reading;
  }
  if (place >= static_cast<int>(readings.size())) return nullptr;
  const GpuReading& reading = readings[place];
  return slot.uuid().empty() || reading.uuid.empty() ? &reading : nullptr;
}

}  // namespace

absl::StatusOr<SimulatedGpus> ParseSimulatedGpus(std::string_view text) {
  const size_t colon = text.find(':');
  SimulatedGpus result;
  result.gpu_type = std::string(text.substr(0, colon));
  const std::string_view count = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  const auto [end, error] =
      std::from_chars(count.data(), count.data() + count.size(), result.count);
  const bool type_ok =
      !result.gpu_type.empty() && std::all_of(result.gpu_type.begin(), result.gpu_type.end(),
                                              [](unsigned char c) { return std::isalnum(c) != 0; });
  if (!type_ok || error != std::errc() || end != count.data() + count.size() || result.count < 1 ||
      result.count > kMaxSimulatedGpus) {
    return InvalidArgument(fmt::format(
        "simulated GPUs \"{}\": give TYPE:COUNT with a count of 1 to {}, for example H100:8", text,
        kMaxSimulatedGpus));
  }
  return result;
}

Inventory::Inventory(Probe probe, SimulatedGpus simulated, int cpu_slots, Clock& clock)
    : probe_(std::move(probe)), simulated_(simulated.count > 0), clock_(clock) {
  const MutexLock lock(mutex_);
  for (int i = 0; i < simulated.count; ++i) {
    v1::Slot slot;
    slot.set_gpu_type(simulated.gpu_type);
    slot.set_product_name(simulated.gpu_type + " (simulated)");
    slot.set_uuid(fmt::format("SIMULATED-{}", i));
    slot.set_memory_bytes(MemoryOfType(simulated.gpu_type));
    slot.set_healthy(true);
    slots_.push_back(std::move(slot));
  }
  if (!simulated_) {
    // If the driver does not answer at the start, the node has no GPUs until it is restarted, and
    // the caller logs it. There is nothing to show as unhealthy.
    first_readings_ = probe_().value_or(std::vector<GpuReading>{});
    for (const GpuReading& reading : first_readings_) {
      // A GPU that cannot be read keeps its index, because attempts of an earlier incarnation name
      // slots by it.
      slots_.emplace_back().set_gpu_type(GpuTypeOf(reading.name));
      slots_.back().set_healthy(true);
      pci_.emplace_back();
      sampled_at_.push_back(clock_.Mono());
      unreadable_at_.emplace_back();
      const int slot = static_cast<int>(slots_.size()) - 1;
      if (reading.error.empty()) {
        TakeReading(reading, slot);
      } else {
        slots_.back().set_product_name(reading.name);
        slots_.back().set_uuid(reading.uuid);
        TakeProblem("NVML: " + reading.error, slot);
      }
    }
  }
  gpu_count_ = static_cast<int>(slots_.size());
  for (int i = 0; i < cpu_slots; ++i) {
    v1::Slot slot;
    slot.set_gpu_type("CPU");
    slot.set_product_name("CPU");
    slot.set_healthy(true);
    slots_.push_back(std::move(slot));
  }
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].set_index(static_cast<int>(i));
}

std::vector<v1::Slot> Inventory::Slots() const {
  const MutexLock lock(mutex_);
  return slots_;
}

int Inventory::SlotsLike(int slot) const {
  const MutexLock lock(mutex_);
  const int all = static_cast<int>(slots_.size());
  return std::max(1, slot < gpu_count_ ? gpu_count_ : all - gpu_count_);
}

void Inventory::TakeReading(const GpuReading& reading, int slot) {
  v1::Slot& known = slots_[slot];
  if (!known.healthy() && reading.recovery.empty()) {
    spdlog::info("GPU {} is healthy again", slot);
  }
  if (known.uuid().empty()) {  // unreadable until now
    known.set_gpu_type(GpuTypeOf(reading.name));
    known.set_product_name(reading.name);
    known.set_uuid(reading.uuid);
    pci_[slot] = reading.pci;
  }
  Fill(known, reading);
  sampled_at_[slot] = clock_.Mono();
}

void Inventory::TakeProblem(const std::string& problem, int slot) {
  v1::Slot& known = slots_[slot];
  if (known.health_reason() != problem) spdlog::error("GPU {}: {}", slot, problem);
  known.set_healthy(false);
  known.set_health_reason(problem);
}

void Inventory::Refresh() {
  if (simulated_ || gpu_count_ == 0) return;
  const absl::StatusOr<std::vector<GpuReading>> readings = probe_();
  const MutexLock lock(mutex_);
  for (int i = 0; i < gpu_count_; ++i) {
    v1::Slot& slot = slots_[i];
    if (!readings.ok()) {
      TakeProblem("NVML: " + std::string(Message(readings.status())), i);
      continue;
    }
    const GpuReading* const reading = ReadingOf(slot, i, *readings);
    if (reading == nullptr) {
      TakeProblem("NVML no longer lists it: it fell off the bus or was reset", i);
      slot.set_memory_used_bytes(0);  // a GPU that is gone has no memory in use
      sampled_at_[i] = clock_.Mono();
    } else if (!reading->error.empty()) {
      TakeProblem("NVML: " + reading->error, i);
      unreadable_at_[i] = clock_.Mono();
    } else {
      TakeReading(*reading, i);
    }
  }
}

std::string Inventory::PciOf(int slot) const {
  const MutexLock lock(mutex_);
  return slot >= 0 && slot < static_cast<int>(pci_.size()) ? pci_[slot] : "";
}

void Inventory::SetWaker(std::function<void()> waker) {
  const MutexLock lock(mutex_);
  waker_ = std::move(waker);
}

void Inventory::AskForRefresh() {
  std::function<void()> waker;
  {
    const MutexLock lock(mutex_);
    waker = waker_;
  }
  if (waker) waker();
}

Inventory::Memory Inventory::MemoryOf(int slot) const {
  const MutexLock lock(mutex_);
  // CPU slots and simulated GPUs have no readings.
  if (slot < 0 || slot >= static_cast<int>(sampled_at_.size())) return {0, clock_.Mono()};
  return {slots_[slot].memory_used_bytes(), sampled_at_[slot], unreadable_at_[slot],
          slots_[slot].healthy()};
}

}  // namespace sft::worker
