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

// Cosines of so few positions are computed by one thread in one call.
constexpr int64_t kPositions = 8;

Tensor Joined(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return b;
  return at::cat({a, b});
}

void Append(std::vector<RopeTables>& tables, const std::vector<RopeTables>& more) {
  tables.resize(more.size());
  for (size_t i = 0; i < more.size(); ++i) {
    tables[i].cos = Joined(tables[i].cos, more[i].cos);
    tables[i].sin = Joined(tables[i].sin, more[i].sin);
    tables[i].query_scale = Joined(tables[i].query_scale, more[i].query_scale);
  }
}

Tensor Select(const Tensor& table, const Tensor& positions) {
  return table.defined() ? at::index_select(table, 0, positions) : Tensor();
}

}  // namespace

std::vector<RopeTables> PositionTables::Make(int64_t first, int64_t count,
                                             bool long_document) const {
  const auto options = at::TensorOptions(device_).dtype(at::kLong);
  const int64_t length = long_document ? long_from_ + 1 : 1;
  std::vector<RopeTables> tables;
  for (int64_t done = 0; done < count; done += kPositions) {
    const Tensor positions = at::arange(first + done, first + done + kPositions, options);
    Append(tables, decoder_.RopeTablesAt(positions, at::full({kPositions}, length, options)));
  }
  return tables;
}

void PositionTables::Reserve(int64_t count) {
  if (count <= present_) return;
  const int64_t wanted = std::max(count, std::min(2 * present_, present_ + 4096));
  const int64_t more = (wanted - present_ + kPositions - 1) / kPositions * kPositions;
  Append(of_short_, Make(present_, more, /*long_document=*/false));
  if (long_from_ > 0) Append(of_long_, Make(present_, more, /*long_document=*/true));
  present_ += more;
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
