#include "common/plan/memory.h"

#include <algorithm>

#include "common/base/round.h"

namespace sft::plan {
namespace {

constexpr int64_t kFp32Bytes = 4, kBf16Bytes = 2;
constexpr int64_t kNf4Block = 64;
constexpr int64_t kNestedBlock = 256;
constexpr int64_t kNf4CutUnit = kNf4Block * kNestedBlock;
constexpr int64_t kInt8CutUnit = 256;
constexpr int64_t kOptimizerBlock = 256;
// MXFP4: half a byte an element and a byte a block of 32.
constexpr int64_t kMxfp4CutUnit = 16384;
constexpr int64_t kMxfp4CutUnitBytes = kMxfp4CutUnit / 2 + kMxfp4CutUnit / kMxfp4Block;

// Layout of the job's quantised weights: pieces that are shared out over ranks, and scales of whole
// rows.
struct QuantSizes {
  int64_t cut_unit = 0;  // elements
  int64_t cut_unit_bytes = 0;
  int64_t row_bytes = 0;
};

QuantSizes QuantSizesOf(const spec::JobSpec& job, const Unit& unit) {
  if (job.quantization.bits == 8) return {kInt8CutUnit, kInt8CutUnit, kFp32Bytes};
  // All of a model alike.
  const bool nested = std::any_of(unit.parameters.begin(), unit.parameters.end(),
                                  [](const Parameter& p) { return p.double_quant; });
  const int64_t scales = nested ? kNestedBlock + kFp32Bytes : kNestedBlock * kFp32Bytes;
  return {kNf4CutUnit, kNf4CutUnit / 2 + scales, 0};
}

int64_t StateBytes(spec::Optimizer optimizer, int64_t elements) {
  switch (optimizer) {
    case spec::Optimizer::kAdamW:
    case spec::Optimizer::kAuto:
      return 2 * kFp32Bytes * elements;
    case spec::Optimizer::kAdamWBf16:
      return 2 * kBf16Bytes * elements;
    case spec::Optimizer::kAdamW8bit:
      if (elements < kMinCodedElements) return 2 * kFp32Bytes * elements;
      return 2 * (elements + CeilDiv(elements, kOptimizerBlock) * kFp32Bytes);
  }
  return 0;
}

// Totals of a unit's parameters before any of it is cut over ranks.
struct UnitSizes {
  int64_t frozen = 0;       // elements not quantised
  int64_t linears = 0;      // of these, weights of linear layers
  int64_t cut_units = 0;    // pieces of quantised weights
  int64_t mxfp4_units = 0;  // of those that are kept in MXFP4
  int64_t rows = 0;         // rows of quantised weights
  int64_t trained = 0;      // elements
};

UnitSizes SizesOf(const Unit& unit, const QuantSizes& quant) {
  UnitSizes sizes;
  for (const Parameter& p : unit.parameters) {
    if (p.trainable) {
      sizes.trained += p.elements;
    } else if (p.mxfp4) {
      sizes.mxfp4_units += CeilDiv(p.elements, kMxfp4CutUnit);
    } else if (p.quantized) {
      sizes.cut_units += CeilDiv(p.elements, quant.cut_unit);
      sizes.rows += p.rows;
    } else {
      sizes.frozen += p.elements;
      if (p.rows > 0) sizes.linears += p.elements;
    }
  }
  return sizes;
}

// Bytes of the states of the first `held` trained elements of a unit: each parameter, or part of
// one, has its own.
int64_t OptimizerBytes(const Unit& unit, spec::Optimizer optimizer, int64_t held) {
  int64_t bytes = 0;
  for (const Parameter& p : unit.parameters) {
    if (!p.trainable) continue;
    const int64_t part = std::min(p.elements, held);
    bytes += StateBytes(optimizer, part);
    held -= part;
  }
  return bytes;
}

}  // namespace

spec::ComputeType ComputeTypeOf(const spec::JobSpec& job, Device device) {
  const spec::ComputeType asked = job.parallelism.compute_type;
  if (asked != spec::ComputeType::kAuto) return asked;
  return device == Device::kGpu ? spec::ComputeType::kBf16 : spec::ComputeType::kFp32;
}

bool Offloads(const spec::JobSpec& job, Device device) {
  return job.parallelism.offload_optimizer && device == Device::kGpu;
}

bool Streams(const spec::JobSpec& job, Device device) {
  return job.parallelism.offload_param && device == Device::kGpu;
}

bool ExpandsBlocks(const spec::JobSpec& job, Device device) {
  const spec::Sharding sharding = job.parallelism.sharding;
  const bool gathers =
      sharding == spec::Sharding::kFullShard || sharding == spec::Sharding::kHybridShard;
  return job.qlora() || (!job.full_finetune() && (Streams(job, device) || gathers));
}

ShardParts PartsOf(const spec::JobSpec& job) {
  const int64_t ranks = job.token_ranks(),
                node = job.compute.gpus_per_node / job.parallelism.tensor_parallel_size;
  switch (job.parallelism.sharding) {
    case spec::Sharding::kDdp:
      break;
    case spec::Sharding::kZero1:
      return {.states = ranks};
    case spec::Sharding::kZero2:
      return {.gradients = ranks, .states = ranks};
    case spec::Sharding::kFullShard:
      return {ranks, ranks, ranks};
    case spec::Sharding::kHybridShard:
      return {node, node, node};
  }
  return {};
}

Memory PlanMemory(const std::vector<Unit>& units, const spec::JobSpec& job, Device device) {
  const bool bf16 = ComputeTypeOf(job, device) == spec::ComputeType::kBf16;
  const bool bf16_master = job.hyperparameters.master_weights == spec::MasterWeights::kBf16;
  const int64_t compute = bf16 ? kBf16Bytes : kFp32Bytes;
  const int64_t master = bf16_master ? kBf16Bytes : kFp32Bytes;
  const ShardParts parts = PartsOf(job);
  Memory memory;
  for (size_t i = 0; i < units.size(); ++i) {
    const Unit& unit = units[i];
    const QuantSizes quant = QuantSizesOf(job, unit);
    UnitSizes sizes = SizesOf(unit, quant);
    const int64_t codes = CeilDiv(sizes.cut_units, parts.weights) * quant.cut_unit_bytes +
                          CeilDiv(sizes.mxfp4_units, parts.weights) * kMxfp4CutUnitBytes;
    const bool streams = Streams(job, device) && IsBlock(units, i);
    if (streams) {
      memory.host_weights += codes;
      // QLoRA keeps only its quantised weights there.
      if (job.qlora()) sizes.linears = 0;
      memory.host_weights += CeilDiv(sizes.linears, parts.weights) * compute;
      sizes.frozen -= sizes.linears;
    }
    int64_t& trained =
        streams && job.full_finetune() ? memory.host_weights : memory.trained_weights;
    trained += CeilDiv(sizes.trained, parts.weights) * compute;
    const int64_t quantized = (streams ? 0 : codes) + sizes.rows * quant.row_bytes;
    memory.quantized_weights += quantized;
    memory.frozen_weights += CeilDiv(sizes.frozen, parts.weights) * compute + quantized;
    const int64_t held = CeilDiv(sizes.trained, parts.states);
    memory.gradients += CeilDiv(sizes.trained, parts.gradients) * kFp32Bytes;
    const int64_t states = OptimizerBytes(unit, job.hyperparameters.optimizer, held);
    if (Offloads(job, device)) {
      memory.host_masters += held * master;
      memory.host_optimizer += states;
      continue;
    }
    if (compute != master) memory.master_weights += held * master;
    memory.optimizer += states;
  }
  return memory;
}

std::vector<MemoryItem> Items(const Memory& memory) {
  return {{"frozen weights", memory.frozen_weights},
          {"trained weights", memory.trained_weights},
          {"master weights", memory.master_weights},
          {"gradients", memory.gradients},
          {"optimizer", memory.optimizer}};
}

}  // namespace sft::plan
