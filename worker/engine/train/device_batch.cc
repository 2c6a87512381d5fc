#include "worker/engine/train/device_batch.h"

#include <span>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

namespace sft::engine {

namespace {

using at::Tensor;

// A copy that outlives `values`.
Tensor Copy(std::span<const int32_t> values, at::ScalarType type, at::Device device) {
  const auto size = static_cast<int64_t>(values.size());
  if (size == 0) return at::empty({0}, at::TensorOptions(device).dtype(type));
  const Tensor view = at::from_blob(const_cast<int32_t*>(values.data()), {size}, at::kInt);
  return view.to(device, type, /*non_blocking=*/false, /*copy=*/true);
}

MicroBatch OneToken() {
  MicroBatch batch;
  batch.tokens = {0};
  batch.targets = {MicroBatch::kIgnore};
  batch.positions = {0};
  batch.cu_seqlens = {0, 1};
  batch.max_seqlen = 1;
  return batch;
}

}  // namespace

DeviceBatch ToDevice(const MicroBatch& batch, at::Device device) {
  if (batch.empty()) return ToDevice(OneToken(), device);
  DeviceBatch result;
  result.tokens = Copy(batch.tokens, at::kLong, device);
  result.positions = Copy(batch.positions, at::kLong, device);
  result.cu_seqlens = Copy(batch.cu_seqlens, at::kInt, device);
  for (int64_t i = 0; i < batch.documents(); ++i) {
    result.lengths.push_back(batch.cu_seqlens[i + 1] - batch.cu_seqlens[i]);
  }
  std::vector<int32_t> targets;
  targets.reserve(batch.loss_rows.size());
  for (int32_t row : batch.loss_rows) targets.push_back(batch.targets[row]);
  result.loss_rows = Copy(batch.loss_rows, at::kLong, device);
  result.targets = Copy(targets, at::kLong, device);
  return result;
}

}  // namespace sft::engine
