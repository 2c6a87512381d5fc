#include "worker/engine/nn/key_gather.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

namespace sft::engine {

using at::Tensor;

namespace {

// rows [T, heads, D] in the order of the tokens, as [nodes, 2, T / (2 nodes), heads, D] in that of
// the nodes that have them: the first pieces, and the second ones, which are the other way round.
struct ByNode {
  ByNode(const Tensor& rows, int64_t nodes)
      : first(
            rows.narrow(0, 0, rows.size(0) / 2).unflatten(0, {nodes, rows.size(0) / (2 * nodes)})),
        second(rows.narrow(0, rows.size(0) / 2, rows.size(0) / 2)
                   .unflatten(0, {nodes, rows.size(0) / (2 * nodes)})) {}
  Tensor first, second;
};

Tensor ToDevice(const std::vector<int64_t>& lengths, at::Device device) {
  std::vector<int32_t> ends = {0};
  for (const int64_t length : lengths) ends.push_back(ends.back() + static_cast<int32_t>(length));
  const Tensor host = at::tensor(ends, at::kInt);
  return device.is_cpu() ? host : host.pin_memory().to(device, /*non_blocking=*/true);
}

// The queries [first, first + count) of all tokens.
KeyGather::Run RunOf(at::IntArrayRef lengths, int64_t first, int64_t count, at::Device device) {
  KeyGather::Run run{.count = count, .number = first};
  const int64_t end = first + count;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    const int64_t from = std::max(begin, first), to = std::min(begin + length, end);
    if (from < to) {
      if (run.lengths.empty()) run.first_key = begin;
      run.lengths.push_back(to - from);
      run.key_lengths.push_back(to - begin);
    }
    begin += length;
  }
  run.keys = end - run.first_key;
  run.cu_seqlens = ToDevice(run.lengths, device);
  run.key_cu_seqlens = ToDevice(run.key_lengths, device);
  return run;
}

}  // namespace

std::vector<int32_t> TokensOfNode(int64_t tokens, int node, int nodes) {
  const int64_t piece = tokens / (2 * nodes);
  std::vector<int32_t> numbers(2 * piece);
  const auto half = numbers.begin() + piece;
  std::iota(numbers.begin(), half, static_cast<int32_t>(node * piece));
  std::iota(half, numbers.end(), static_cast<int32_t>((2 * nodes - 1 - node) * piece));
  return numbers;
}

KeyGather::KeyGather(Communicator& nodes, at::IntArrayRef lengths, at::Device device)
    : nodes_(nodes) {
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  const int64_t pieces = 2 * nodes.world(), piece = tokens / pieces;
  TORCH_CHECK(tokens % pieces == 0, "key gather: ", tokens, " tokens for ", pieces, " pieces");
  for (const int64_t number : {int64_t{nodes.rank()}, pieces - 1 - nodes.rank()}) {
    runs_.push_back(RunOf(lengths, number * piece, piece, device));
  }
  runs_.back().first = piece;
}

KeyGather::Keys KeyGather::Gather(const Tensor& k, const Tensor& v) const {
  const Tensor own = at::cat({k, v}, 1);
  const int64_t nodes = nodes_.world(), tokens = own.size(0);
  const Tensor all = at::empty({nodes, 2, tokens / 2, own.size(1), own.size(2)}, own.options());
  nodes_.AllGather(all, own);
  Keys keys(at::empty({nodes * tokens, own.size(1), own.size(2)}, own.options()));
  ByNode rows(keys.rows, nodes);
  rows.first.copy_(all.select(1, 0));
  rows.second.copy_(all.select(1, 1).flip(0));
  return keys;
}

KeyGather::Keys KeyGather::Zeros(const Tensor& k) const {
  return Keys(at::zeros({nodes_.world() * k.size(0), 2 * k.size(1), k.size(2)},
                        k.options().dtype(at::kFloat)));
}

void KeyGather::Return(const Keys& gradient, Tensor dk, Tensor dv) const {
  const int64_t nodes = nodes_.world(), tokens = dk.size(0), heads = dk.size(1);
  const Tensor parts = at::empty({nodes, 2, tokens / 2, 2 * heads, dk.size(2)}, dk.options());
  const ByNode rows(gradient.rows, nodes);
  parts.select(1, 0).copy_(rows.first);
  parts.select(1, 1).copy_(rows.second.flip(0));
  const Tensor own = at::empty({nodes, tokens, 2 * heads, dk.size(2)}, dk.options());
  nodes_.AllToAll(own, parts);
  Tensor sum = own.select(0, 0).to(at::kFloat);
  for (int64_t i = 1; i < nodes; ++i) sum.add_(own.select(0, i));
  dk.copy_(sum.narrow(1, 0, heads));
  dv.copy_(sum.narrow(1, heads, heads));
}

}  // namespace sft::engine
