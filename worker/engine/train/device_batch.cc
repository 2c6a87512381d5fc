#include "worker/engine/train/device_batch.h"

#include <ATen/ops/from_blob.h>

#include <span>
#include <vector>

namespace sft::engine {

namespace {

using at::Tensor;

// Lists of numbers that go to a device in one transfer, which nobody waits for: the host goes on to
// launch while the device is busy with the micro-batch before.
class Parcel {
 public:
  // Returns the list's place.
  int Add(std::span<const int32_t> values) {
    values_.insert(values_.end(), values.begin(), values.end());
    ends_.push_back(static_cast<int64_t>(values_.size()));
    return static_cast<int>(ends_.size()) - 1;
  }
  void Send(at::Device device) {
    const Tensor host = at::from_blob(values_.data(), {ends_.back()}, at::kInt);
    sent_ = device.is_cpu() ? host.clone() : host.pin_memory().to(device, /*non_blocking=*/true);
  }
  Tensor Get(int list, at::ScalarType type) const {
    const int64_t begin = list == 0 ? 0 : ends_[list - 1];
    return sent_.narrow(0, begin, ends_[list] - begin).to(type);
  }

 private:
  std::vector<int32_t> values_;
  std::vector<int64_t> ends_;
  Tensor sent_;
};

MicroBatch OneToken() {
  MicroBatch batch;
  batch.tokens = {0};
  batch.targets = {MicroBatch::kIgnore};
  batch.positions = {0};
  batch.cu_seqlens = {0, 1};
  batch.max_seqlen = batch.longest_row = 1;
  return batch;
}

}  // namespace

DeviceBatch ToDevice(const MicroBatch& batch, at::Device device) {
  if (batch.empty()) return ToDevice(OneToken(), device);
  std::vector<int32_t> targets;
  targets.reserve(batch.loss_rows.size());
  for (int32_t row : batch.loss_rows) targets.push_back(batch.targets[row]);
  Parcel parcel;
  const int tokens_at = parcel.Add(batch.tokens), positions_at = parcel.Add(batch.positions);
  const int cu_seqlens_at = parcel.Add(batch.cu_seqlens);
  const int loss_rows_at = parcel.Add(batch.loss_rows), targets_at = parcel.Add(targets);
  parcel.Send(device);
  DeviceBatch result;
  result.tokens = parcel.Get(tokens_at, at::kLong);
  result.positions = parcel.Get(positions_at, at::kLong);
  result.cu_seqlens = parcel.Get(cu_seqlens_at, at::kInt);
  result.loss_rows = parcel.Get(loss_rows_at, at::kLong);
  result.targets = parcel.Get(targets_at, at::kLong);
  for (int64_t i = 0; i < batch.documents(); ++i) {
    result.lengths.push_back(batch.cu_seqlens[i + 1] - batch.cu_seqlens[i]);
  }
  result.longest_row = batch.longest_row;
  return result;
}

}  // namespace sft::engine
