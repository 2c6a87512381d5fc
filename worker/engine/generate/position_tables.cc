#include "worker/engine/generate/position_tables.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/where.h>

#include <algorithm>

namespace sft::engine {

using at::Tensor;

namespace {

// Cosines of so few positions are computed by one thread in one call on a CPU.
constexpr int64_t kPositions = 8;

// Parts [part][rope] end to end: one table of each rope.
std::vector<RopeTables> Join(const std::vector<std::vector<RopeTables>>& parts) {
  const auto joined = [&](size_t rope, at::Tensor RopeTables::*table) {
    std::vector<Tensor> tensors;
    for (const std::vector<RopeTables>& part : parts) tensors.push_back(part[rope].*table);
    return tensors.front().defined() ? at::cat(tensors) : Tensor();
  };
  std::vector<RopeTables> tables(parts.front().size());
  for (size_t rope = 0; rope < tables.size(); ++rope) {
    tables[rope] = {joined(rope, &RopeTables::cos), joined(rope, &RopeTables::sin),
                    joined(rope, &RopeTables::query_scale)};
  }
  return tables;
}

Tensor Select(const Tensor& table, const Tensor& positions) {
  return table.defined() ? at::index_select(table, 0, positions) : Tensor();
}

}  // namespace

std::vector<RopeTables> PositionTables::Make(const std::vector<RopeTables>& present, int64_t count,
                                             bool long_document) const {
  const auto options = at::TensorOptions(device_).dtype(at::kLong);
  const int64_t length = long_document ? long_from_ + 1 : 1;
  const int64_t piece = device_.is_cpu() ? kPositions : count - present_;
  std::vector<std::vector<RopeTables>> parts;
  if (!present.empty()) parts.push_back(present);
  for (int64_t first = present_; first < count; first += piece) {
    parts.push_back(decoder_.RopeTablesAt(at::arange(first, first + piece, options),
                                          at::full({piece}, length, options)));
  }
  return Join(parts);
}

bool PositionTables::Reserve(int64_t count) {
  if (count <= present_) return false;
  const int64_t wanted = std::max(count, std::min(2 * present_, present_ + 4096));
  const int64_t rounded = (wanted + kPositions - 1) / kPositions * kPositions;
  of_short_ = Make(of_short_, rounded, /*long_document=*/false);
  if (long_from_ > 0) of_long_ = Make(of_long_, rounded, /*long_document=*/true);
  present_ = rounded;
  return true;
}

std::vector<RopeTables> PositionTables::At(const Tensor& positions, const Tensor& is_long) const {
  std::vector<RopeTables> tables;
  for (size_t i = 0; i < of_short_.size(); ++i) {
    const RopeTables& of_short = of_short_[i];
    tables.push_back({Select(of_short.cos, positions), Select(of_short.sin, positions),
                      Select(of_short.query_scale, positions)});
    if (long_from_ == 0 || !of_short.cos.defined()) continue;
    const Tensor rows = is_long.unsqueeze(1);
    tables[i].cos = at::where(rows, Select(of_long_[i].cos, positions), tables[i].cos);
    tables[i].sin = at::where(rows, Select(of_long_[i].sin, positions), tables[i].sin);
  }
  return tables;
}

}  // namespace sft::engine
