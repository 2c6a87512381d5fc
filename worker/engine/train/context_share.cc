#include "worker/engine/train/context_share.h"

#include <algorithm>

#include "common/base/round.h"
#include "common/plan/context.h"
#include "worker/engine/train/device_batch.h"

namespace sft::engine {

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

}  // namespace

DeviceBatch ShareToDevice(const MicroBatch& batch, const HeadExchange& exchange,
                          at::Device device) {
  MicroBatch share = batch;
  const int64_t unit = exchange.ranks() * plan::kShareMultiple;
  AddPadding(RoundUp(std::max<int64_t>(share.size(), 1), unit) - share.size(), &share);
  const int64_t count = share.size() / exchange.ranks(), first = exchange.rank() * count;
  share.tokens = Part(share.tokens, first, count);
  share.positions = Part(share.positions, first, count);
  share.targets = Part(share.targets, first, count);
  share.loss_rows.clear();
  for (int64_t i = 0; i < count; ++i) {
    if (share.targets[i] != MicroBatch::kIgnore) share.loss_rows.push_back(static_cast<int32_t>(i));
  }
  DeviceBatch result = ToDevice(share, device);
  result.exchange = &exchange;
  result.first_token = first;
  return result;
}

}  // namespace sft::engine
