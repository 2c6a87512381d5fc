// The gated delta rule on tensor cores, of the parts that delta_tiles.cuh names, range by range of
// the slots.
#include <algorithm>

#include "worker/engine/cuda/kernels/delta_chunks.h"
#include "worker/engine/cuda/kernels/early.cuh"
#include "worker/engine/cuda/kernels/vec.cuh"

namespace sft::engine::cuda {
namespace {

constexpr int64_t kFewestSlots = 32;  // of a range: fewer would not fill a GPU

// Calls visit(pointer of `slots`, bytes a slot) for each part.
template <typename Visit>
void ForParts(const DeltaShape& shape, bool backward, DeltaSlots& slots, const Visit& visit) {
  const int64_t keys = shape.key_heads, values = shape.value_heads, size = shape.key_size;
  const int64_t rows = kDeltaSlotTokens * size * 2, state = size * size * 2;
  const int64_t scores = kDeltaSlotTokens * kDeltaSlotTokens * 2;
  for (auto* part : {&slots.q, &slots.k}) visit(*part, keys * rows);
  for (auto* part : {&slots.u, &slots.w}) visit(*part, values * rows);
  visit(slots.p, values * scores);
  visit(slots.factors, keys * 2 * kDeltaSlotTokens * 4);
  visit(slots.decays, values * 2 * kDeltaSlotTokens * 4);
  if (!backward) return;
  visit(slots.inverse, values * scores);
  for (auto* part : {&slots.state, &slots.dstate}) visit(*part, values * state);
  for (auto* part : {&slots.values, &slots.dvalues}) visit(*part, values * rows);
}

int64_t SlotBytes(const DeltaShape& shape, bool backward) {
  DeltaSlots slots;
  int64_t bytes = 0;
  ForParts(shape, backward, slots, [&](auto*&, int64_t part) { bytes += part; });
  return bytes;
}

DeltaSlots SplitSlots(const DeltaShape& shape, bool backward, int64_t count, void* workspace) {
  DeltaSlots slots;
  auto* next = static_cast<unsigned char*>(workspace);
  ForParts(shape, backward, slots, [&]<typename T>(T*& pointer, int64_t part) {
    pointer = reinterpret_cast<T*>(next);
    next += count * part;
  });
  return slots;
}

int64_t SlotCount(const DeltaShape& shape) {
  return shape.tokens / kDeltaSlotTokens + shape.documents.documents;
}

// Floats of the states of all value heads.
int64_t StateFloats(const DeltaShape& shape) {
  return static_cast<int64_t>(shape.value_heads) * shape.key_size * shape.value_size;
}

// States between ranges that are kept at a time: of the backward those before each range, and two
// of gradients.
int64_t KeptStates(const DeltaPlan& plan) { return plan.backward ? plan.ranges + 3 : 2; }

DeltaRange RangeOf(const DeltaShape& shape, const DeltaPlan& plan, int64_t index) {
  return {index * plan.slots, std::min((index + 1) * plan.slots, SlotCount(shape))};
}

// Calls the launches one after the other until one fails.
template <typename... Launch>
cudaError_t InTurn(const Launch&... launch) {
  cudaError_t error = cudaSuccess;
  static_cast<void>(((error = launch(), error == cudaSuccess) && ...));
  return error;
}

template <typename... Rows>
bool AreWide(const Rows&... rows) {
  return (RowsAreWide<__nv_bfloat16>(rows.data, rows.stride) && ...);
}

bool TakesHeads(const DeltaShape& shape) {
  return shape.key_size == shape.value_size && (shape.key_size == 64 || shape.key_size == 128) &&
         CurrentDevice().major >= 8 && CurrentDevice().block_shared_bytes >= 163 << 10;
}

}  // namespace

bool HasDeltaChunks(ElementType type, const DeltaShape& shape, const DeltaOperands& operands,
                    MutableRows out) {
  return type == ElementType::kBFloat16 && TakesHeads(shape) &&
         AreWide(operands.q, operands.k, operands.v, out);
}

bool HasDeltaChunks(ElementType type, const DeltaShape& shape, const DeltaOperands& operands,
                    const DeltaGradients& gradients) {
  return type == ElementType::kBFloat16 && TakesHeads(shape) &&
         AreWide(operands.q, operands.k, operands.v, gradients.dout, gradients.dq, gradients.dk,
                 gradients.dv);
}

DeltaPlan PlanDelta(const DeltaShape& shape, bool backward, int64_t most_bytes) {
  DeltaPlan plan{.backward = backward};
  const int64_t all = SlotCount(shape), slot = SlotBytes(shape, backward);
  plan.ranges = CeilDiv(all, std::max(most_bytes / slot, kFewestSlots));
  plan.slots = CeilDiv(all, plan.ranges);
  plan.bytes = plan.slots * slot + KeptStates(plan) * StateFloats(shape) * 4;
  return plan;
}

cudaError_t LaunchDeltaChunks(const DeltaShape& shape, const DeltaOperands& operands,
                              MutableRows out, const DeltaPlan& plan, void* workspace,
                              cudaStream_t stream) {
  auto* states = static_cast<float*>(workspace);
  const int64_t state = StateFloats(shape);
  const DeltaSlots slots = SplitSlots(shape, false, plan.slots, states + KeptStates(plan) * state);
  cudaError_t error = cudaSuccess;
  for (int64_t i = 0; i < plan.ranges && error == cudaSuccess; ++i) {
    const DeltaRange range = RangeOf(shape, plan, i);
    error = InTurn([&] { return LaunchDeltaPrepare(shape, operands, slots, range, stream); },
                   [&] {
                     return LaunchDeltaScan(shape, slots, range, states + i % 2 * state,
                                            states + (i + 1) % 2 * state, out, stream);
                   });
  }
  return error;
}

cudaError_t LaunchDeltaChunksBackward(const DeltaShape& shape, const DeltaOperands& operands,
                                      const DeltaGradients& gradients, const DeltaPlan& plan,
                                      void* workspace, cudaStream_t stream) {
  const int64_t state = StateFloats(shape);
  auto* states = static_cast<float*>(workspace);  // before range i, and behind the last
  float* dstates = states + (plan.ranges + 1) * state;
  const DeltaSlots slots = SplitSlots(shape, true, plan.slots, states + KeptStates(plan) * state);
  const auto make = [&](int64_t i) {
    const DeltaRange range = RangeOf(shape, plan, i);
    return InTurn([&] { return LaunchDeltaPrepare(shape, operands, slots, range, stream); },
                  [&] {
                    return LaunchDeltaScan(shape, slots, range, states + i * state,
                                           states + (i + 1) * state, MutableRows{}, stream);
                  });
  };
  cudaError_t error = cudaSuccess;
  for (int64_t i = 0; i < plan.ranges && error == cudaSuccess; ++i) error = make(i);
  for (int64_t i = plan.ranges - 1; i >= 0 && error == cudaSuccess; --i) {
    const DeltaRange range = RangeOf(shape, plan, i);
    error = InTurn(
        [&] { return i + 1 < plan.ranges ? make(i) : cudaSuccess; },
        [&] {
          return LaunchDeltaScanBackward(shape, slots, range, dstates + (i + 1) % 2 * state,
                                         dstates + i % 2 * state, gradients.dout, stream);
        },
        [&] { return LaunchDeltaGradients(shape, operands, gradients, slots, range, stream); });
  }
  return error;
}

}  // namespace sft::engine::cuda
