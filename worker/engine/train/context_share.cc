#include "worker/engine/train/context_share.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

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

Tensor ToLongs(const std::vector<int32_t>& values, at::Device device) {
  const Tensor host = at::tensor(values, at::TensorOptions(at::kInt));
  return (device.is_cpu() ? host : host.pin_memory().to(device, true)).to(at::kLong);
}

// The batch with as many tokens for each of `ranks`.
MicroBatch Padded(const MicroBatch& batch, int64_t ranks) {
  MicroBatch padded = batch;
  const int64_t tokens = RoundUp(std::max<int64_t>(batch.size(), 1), ranks * plan::kShareMultiple);
  AddPadding(tokens - batch.size(), &padded);
  return padded;
}

// The tokens of these numbers, of all the documents.
MicroBatch PartOf(const MicroBatch& batch, const std::vector<int32_t>& numbers) {
  MicroBatch part = batch;
  const auto take = [&](const std::vector<int32_t>& values) {
    std::vector<int32_t> taken;
    taken.reserve(numbers.size());
    for (const int32_t number : numbers) taken.push_back(values[number]);
    return taken;
  };
  part.tokens = take(batch.tokens);
  part.positions = take(batch.positions);
  part.targets = take(batch.targets);
  part.loss_rows.clear();
  for (size_t i = 0; i < part.targets.size(); ++i) {
    if (part.targets[i] != MicroBatch::kIgnore) part.loss_rows.push_back(static_cast<int32_t>(i));
  }
  return part;
}

// What rank `rank` has of tokens that are cut over `ranks`.
std::vector<int32_t> ShareOf(const std::vector<int32_t>& numbers, int rank, int ranks) {
  const int64_t count = static_cast<int64_t>(numbers.size()) / ranks;
  return {numbers.begin() + rank * count, numbers.begin() + (rank + 1) * count};
}

}  // namespace

DeviceBatch ShareToDevice(const MicroBatch& batch, const HeadExchange& exchange,
                          Communicator& nodes, at::Device device) {
  const MicroBatch all = Padded(batch, int64_t{exchange.ranks()} * nodes.world());
  const std::vector<int32_t> numbers = ShareOf(
      TokensOfNode(all.size(), nodes.rank(), nodes.world()), exchange.rank(), exchange.ranks());
  DeviceBatch share = ToDevice(PartOf(all, numbers), device);
  if (exchange.ranks() > 1) share.exchange = &exchange;
  share.numbers = ToLongs(numbers, device);
  if (nodes.world() > 1) share.keys = std::make_shared<KeyGather>(nodes, share.lengths, device);
  return share;
}

DeviceBatch ShareToDevice(const MicroBatch& batch, const TokenExchange& sharers,
                          at::Device device) {
  const MicroBatch all = Padded(batch, sharers.ranks());
  std::vector<int32_t> numbers(all.tokens.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  DeviceBatch share =
      ToDevice(PartOf(all, ShareOf(numbers, sharers.rank(), sharers.ranks())), device);
  share.sharers = &sharers;
  share.all_positions = ToLongs(all.positions, device);
  return share;
}

}  // namespace sft::engine
