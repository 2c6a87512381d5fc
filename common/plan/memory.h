#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/plan/parameters.h"
#include "common/spec/job_spec.h"

// Memory that stays on a rank for the whole run, in bytes, computed from shapes alone. Activations,
// gathered weights and communication buffers are not counted here.

namespace sft::plan {

enum class Device { kCpu, kGpu };

// The compute type of a rank on this device: the job's or, if it names none, bf16 on a GPU and fp32
// on a CPU. Never kAuto.
spec::ComputeType ComputeTypeOf(const spec::JobSpec& job, Device device);

// The number of ranks that share each thing; 1 means that every rank holds it whole.
struct ShardParts {
  int64_t weights = 1;
  int64_t gradients = 1;
  int64_t states = 1;  // optimizer states and master weights
};
ShardParts PartsOf(const spec::JobSpec& job);

// True when masters and optimizer states live in host memory beside another device; Streams, when
// the blocks' weights do.
bool Offloads(const spec::JobSpec& job, Device device);
bool Streams(const spec::JobSpec& job, Device device);
// True when blocks' frozen weights are expanded into buffers from other bytes: de-quantised, copied
// from host memory, or gathered from the ranks. Such copies may be kept.
bool ExpandsBlocks(const spec::JobSpec& job, Device device);

// Memory held by one rank. C: bytes of the compute type (bf16 2, fp32 4). M: bytes of the master
// weights (fp32 4; bf16 2). n: elements; over a unit's N ranks the fullest shard has ceil(n / N).
// PartsOf says what is sharded.
struct Memory {
  // Frozen weights: C * n; 4-bit ones n / 2 code bytes and, for each 64 elements, one scale: fp32,
  // or with double_quant 1 byte and 4 / 256; padded to 16384 elements. 8-bit ones n code bytes,
  // padded to 256, and on every rank 4 bytes a row.
  int64_t frozen_weights = 0;
  int64_t quantized_weights = 0;  // the 4-bit or 8-bit part of frozen_weights
  // Trained weights in the compute type: C * n.
  int64_t trained_weights = 0;
  // Master weights that the optimizer updates: M * n, none where C and M are one type.
  int64_t master_weights = 0;
  // fp32 accumulators: 4 * n.
  int64_t gradients = 0;
  // Two moments: adamw 8 * n, adamw_bf16 4 * n, adamw_8bit 2 * (n + 4 * ceil(n / 256)) for tensors
  // from 4096 elements.
  int64_t optimizer = 0;
  // In host memory, not on a GPU: with offload_optimizer the two above. Masters are then the
  // optimizer's own even where C and M are one type.
  int64_t host_masters = 0;
  int64_t host_optimizer = 0;
  // With offload_param, in host memory: the blocks' quantised weights, the other frozen linears, or
  // all trained weights. Full fine-tuning trains them, LoRA does not.
  int64_t host_weights = 0;

  int64_t weights() const { return frozen_weights + trained_weights + master_weights; }
  int64_t total() const { return weights() + gradients + optimizer; }
};

// The memory of rank 0, whose shards are the fullest, with compute.gpu_count ranks.
Memory PlanMemory(const std::vector<Unit>& units, const spec::JobSpec& job, Device device);

// One category of Memory by name, in the order of the struct.
struct MemoryItem {
  std::string category;
  int64_t bytes = 0;
};
std::vector<MemoryItem> Items(const Memory& memory);

}  // namespace sft::plan
