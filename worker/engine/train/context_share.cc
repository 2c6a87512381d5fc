#include "worker/engine/train/context_share.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

#include "common/base/round.h"
#include "common/plan/context.h"
#include "worker/engine/train/device_batch.h"

namespace sft::engine {

using at::Tensor;

namespace {

void AddPadding(int64_t tokens, MicroBatch* batch) {
  if (tokens == 0) return;
  for (int64_t position = 0; position < tokens; ++position) {
    batch->tokens.push_back(0);
    batch->targets.push_back(MicroBatch::kIgnore);
    batch->positions.push_back(static_cast<int32_t>(position));
  }
  batch->cu_seqlens.push_back(static_cast<int32_t>(batch->tokens.size()));
  batch->max_seqlen = std::max(batch->max_seqlen, static_cast<int32_t>(tokens));
}

std::vector<int32_t> Part(const std::vector<int32_t>& values, int64_t first, int64_t count) {
  return {values.begin() + first, values.begin() + first + count};
}

// What rank `rank` of `ranks` has.
struct Share {
  DeviceBatch batch;
  std::vector<int32_t> positions;  // of all tokens
};

Share ShareOf(const MicroBatch& batch, int rank, int ranks, at::Device device) {
  MicroBatch share = batch;
  const int64_t unit = ranks * plan::kShareMultiple;
  AddPadding(RoundUp(std::max<int64_t>(share.size(), 1), unit) - share.size(), &share);
  const int64_t count = share.size() / ranks, first = rank * count;
  Share result{.positions = share.positions};
  share.tokens = Part(share.tokens, first, count);
  share.positions = Part(share.positions, first, count);
  share.targets = Part(share.targets, first, count);
  share.loss_rows.clear();
  for (int64_t i = 0; i < count; ++i) {
    if (share.targets[i] != MicroBatch::kIgnore) share.loss_rows.push_back(static_cast<int32_t>(i));
  }
  result.batch = ToDevice(share, device);
  result.batch.first_token = first;
  return result;
}

}  // namespace

DeviceBatch ShareToDevice(const MicroBatch& batch, const HeadExchange& exchange,
                          at::Device device) {
  DeviceBatch share = ShareOf(batch, exchange.rank(), exchange.ranks(), device).batch;
  share.exchange = &exchange;
  return share;
}

DeviceBatch ShareToDevice(const MicroBatch& batch, const TokenExchange& sharers,
                          at::Device device) {
  auto [share, positions] = ShareOf(batch, sharers.rank(), sharers.ranks(), device);
  share.sharers = &sharers;
  const Tensor host = at::tensor(positions, at::TensorOptions(at::kInt));
  share.all_positions = (device.is_cpu() ? host : host.pin_memory().to(device, true)).to(at::kLong);
  return share;
}

}  // namespace sft::engine
