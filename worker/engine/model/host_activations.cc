#include "worker/engine/model/host_activations.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "common/base/round.h"
#include "worker/engine/nn/rows.h"

namespace sft::engine {

using at::Tensor;

namespace {

constexpr int64_t kGranule = int64_t{1}
                             << 21;  // of host memory, so that a row more changes nothing

// What is large of what a block keeps.
std::array<Tensor*, HostActivations::kTensors> RowsOf(DecoderBlock::Saved& saved) {
  return {&saved.input,         &saved.middle,          &saved.attention_out.rows,
          &saved.mlp_out.rows,  &saved.attention.qkv,   &saved.attention.out,
          &saved.attention.lse, &saved.delta.projected, &saved.delta.heads,
          &saved.mlp.gate_up,   &saved.experts.gate_up};
}

// Elements from the tensor's first to its last one, the columns to spare of its last row included.
int64_t SpanOf(const Tensor& tensor) {
  int64_t span = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    span = std::max(span, tensor.size(i) * tensor.stride(i));
  }
  const auto stored = static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
  return std::min(span, stored - tensor.storage_offset());
}

}  // namespace

HostActivations::HostActivations(at::Device device, size_t layers, int64_t most_tokens)
    : device_(device), most_tokens_(most_tokens), lane_(device, /*slots=*/1), places_(layers) {}

void HostActivations::Put(size_t layer, DecoderBlock::Saved& saved) {
  Await();
  // It stands in the spare columns of what leaves.
  saved.attention.o_xa = ApartFrom(saved.attention.out, saved.attention.o_xa);
  lane_.Follow();
  const int64_t tokens = saved.input.size(0);
  const auto tensors = RowsOf(saved);
  for (size_t i = 0; i < tensors.size(); ++i) {
    Place& place = places_[layer][i];
    Tensor& rows = *tensors[i];
    place.span = rows.defined() ? SpanOf(rows) : 0;
    if (place.span == 0) continue;
    place.sizes = rows.sizes().vec();
    place.strides = rows.strides().vec();
    place.type = rows.scalar_type();
    const int64_t bytes = place.span * static_cast<int64_t>(rows.element_size());
    if (!place.bytes.defined() || place.bytes.numel() < bytes) {
      lane_.WaitOnHost(0);     // nothing reads or writes it any more
      place.bytes = Tensor();  // before there is another
      const int64_t of_token = CeilDiv(bytes, tokens);
      const int64_t room = of_token * std::max(tokens, most_tokens_);
      place.bytes = PinnedBuffer(RoundUp(room, kGranule), at::kByte, device_);
    }
    lane_.Start(0, OnHost(place), rows.as_strided({place.span}, {1}));
    leaving_.push_back(std::exchange(rows, Tensor()));
  }
}

void HostActivations::Fetch(size_t layer, DecoderBlock::Saved& saved) {
  const auto tensors = RowsOf(saved);
  std::array<Tensor, kTensors> flat;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Place& place = places_[layer][i];
    if (place.span == 0) continue;
    flat[i] = at::empty({place.span}, at::TensorOptions(device_).dtype(place.type));
    *tensors[i] = flat[i].as_strided(place.sizes, place.strides);
  }
  lane_.Follow();  // what used this memory before is done
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (flat[i].defined()) lane_.Start(0, flat[i], OnHost(places_[layer][i]));
  }
}

Tensor HostActivations::OnHost(const Place& place) {
  const auto size = static_cast<int64_t>(c10::elementSize(place.type));
  return place.bytes.narrow(0, 0, place.span * size).view(place.type);
}

void HostActivations::Await() {
  lane_.Join();
  leaving_.clear();
}

int64_t HostActivations::Bytes() const {
  int64_t bytes = 0;
  for (const auto& layer : places_) {
    for (const Place& place : layer) bytes += place.bytes.defined() ? place.bytes.numel() : 0;
  }
  return bytes;
}

}  // namespace sft::engine
