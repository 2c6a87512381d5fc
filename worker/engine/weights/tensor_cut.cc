#include "worker/engine/weights/tensor_cut.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "worker/engine/base/error.h"

namespace sft::engine {

using at::Tensor;
using Along = TensorCut::Along;

namespace {

int64_t Product(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// Rows [first, first + count) of the whole.
struct RowRange {
  int64_t first = 0, count = 0;
};

// Those that the rank with that part has, in the order of the part.
std::vector<RowRange> RowsOf(const TensorCut& cut, int part) {
  std::vector<int64_t> linears = cut.joined;
  if (linears.empty()) linears = {cut.whole.front()};
  std::vector<RowRange> rows;
  int64_t before = 0;
  for (const int64_t height : linears) {
    const int64_t own = height / cut.parts;
    rows.push_back({before + part * own, own});
    before += height;
  }
  return rows;
}

// What a rank has of the parameter, whose shape is `own` there.
TensorCut CutOf(const ParamInfo& param, const std::vector<int64_t>& own, int ranks, int rank) {
  TensorCut cut{.ranks = ranks, .whole = param.shape, .joined = param.joined};
  for (size_t axis = 0; axis < param.shape.size(); ++axis) {
    if (own[axis] == param.shape[axis]) continue;
    const bool again = cut.along != Along::kNothing;
    cut.along = axis == 0 ? Along::kRows : Along::kColumns;
    cut.parts = static_cast<int>(param.shape[axis] / own[axis]);
    if (again || axis > 1 || cut.parts * own[axis] != param.shape[axis] || ranks % cut.parts != 0) {
      throw InternalError(fmt::format("{}: [{}] is no part of [{}] over {} ranks", param.name,
                                      fmt::join(own, ", "), fmt::join(param.shape, ", "), ranks));
    }
  }
  cut.part = rank / cut.sharers();
  return cut;
}

// A rectangle of rows and columns of the whole, and where its first element stands in a flat
// buffer of rows of `stride`.
struct Rectangle {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
  int64_t begin = 0, stride = 0;
};

// The rectangles that a range consists of: the end of a row, whole rows, the beginning of one.
std::vector<Rectangle> RectanglesOf(const CutRange& range) {
  std::vector<Rectangle> rectangles;
  int64_t done = 0;
  while (done < range.count) {
    const int64_t at = range.first + done, row = at / range.columns, inside = at % range.columns;
    const int64_t left = range.count - done;
    Rectangle rectangle{.row = row,
                        .rows = 1,
                        .column = range.column + inside,
                        .columns = std::min(left, range.columns - inside),
                        .begin = done,
                        .stride = range.columns};
    if (inside == 0 && left >= range.columns) {
      rectangle.rows = left / range.columns;
      rectangle.columns = range.columns;
    }
    done += rectangle.rows * rectangle.columns;
    rectangles.push_back(rectangle);
  }
  return rectangles;
}

// The view of rows [row, row + rows) and columns [column, column + columns) of the whole in the
// buffer of a rectangle.
Tensor ViewOf(const Tensor& flat, const Rectangle& within, int64_t row, int64_t rows,
              int64_t column, int64_t columns) {
  const int64_t begin = within.begin + (row - within.row) * within.stride + column - within.column;
  return flat.as_strided({rows, columns}, {within.stride, 1}, flat.storage_offset() + begin);
}

}  // namespace

ModelLayout CutOver(const ModelLayout& whole, const ModelLayout& own, int ranks, int rank) {
  ModelLayout layout = whole;
  layout.tensor_ranks = ranks;
  for (int unit = 0; unit < layout.size(); ++unit) {
    std::vector<ParamInfo>& params = layout.units[unit].params;
    for (size_t i = 0; i < params.size(); ++i) {
      const std::vector<int64_t>& shape = own.units[unit].params[i].shape;
      params[i].cut = CutOf(params[i], shape, ranks, rank);
      params[i].shape = shape;
    }
  }
  return layout;
}

CutRange WholeRange(const ParamInfo& param) {
  const std::vector<int64_t>& shape = param.whole_shape();
  const int64_t columns = shape.size() < 2 ? 1 : Product(shape) / std::max<int64_t>(shape[0], 1);
  return {.count = Product(shape), .columns = columns, .whole_columns = columns};
}

std::vector<CutRange> RangesOf(const ParamInfo& param, int64_t first, int64_t count) {
  CutRange range = WholeRange(param);
  range.first = first;
  range.count = count;
  const TensorCut& cut = param.cut;
  if (cut.along == Along::kNothing) return {range};
  if (cut.along == Along::kColumns) {
    range.columns = param.shape[1];
    range.column = cut.part * range.columns;
    return {range};
  }
  std::vector<CutRange> ranges;
  int64_t begin = 0;  // of the rows in the part
  for (const RowRange& rows : RowsOf(cut, cut.part)) {
    const int64_t elements = rows.count * range.columns;
    const int64_t from = std::max(begin, first), until = std::min(begin + elements, first + count);
    if (from < until) {
      CutRange part = range;
      part.begin = from - first;
      part.count = until - from;
      part.first = rows.first * range.columns + from - begin;
      ranges.push_back(part);
    }
    begin += elements;
  }
  return ranges;
}

Tensor ReadPart(const ParamInfo& param, int64_t first, int64_t count,
                const std::function<Tensor(int64_t first, int64_t count)>& read) {
  std::vector<Tensor> pieces;
  for (const CutRange& range : RangesOf(param, first, count)) {
    if (range.is_flat()) {
      pieces.push_back(read(range.first, range.count));
      continue;
    }
    // The whole rows that it touches.
    const int64_t row = range.first / range.columns;
    const int64_t rows = (range.first + range.count - 1) / range.columns + 1 - row;
    pieces.push_back(read(row * range.whole_columns, rows * range.whole_columns)
                         .view({rows, range.whole_columns})
                         .narrow(1, range.column, range.columns)
                         .reshape({-1})
                         .narrow(0, range.first - row * range.columns, range.count));
  }
  if (pieces.empty()) return read(0, 0);
  return pieces.size() == 1 ? pieces.front() : at::cat(pieces);
}

Tensor PartOf(const ParamInfo& param, const Tensor& whole) {
  const Tensor flat = whole.reshape({-1});
  return ReadPart(param, 0, param.numel(),
                  [&flat](int64_t first, int64_t count) { return flat.narrow(0, first, count); })
      .view(param.shape);
}

Tensor WholeOf(const ParamInfo& param, std::span<const Tensor> parts) {
  const TensorCut& cut = param.cut;
  if (cut.along == Along::kNothing) return parts[0];
  Tensor whole = at::empty(cut.whole, parts[0].options());
  for (int part = 0; part < cut.parts; ++part) {
    const Tensor& own = parts[static_cast<size_t>(part * cut.sharers())];
    if (cut.along == Along::kColumns) {
      whole.narrow(1, part * param.shape[1], param.shape[1]).copy_(own);
      continue;
    }
    int64_t begin = 0;
    for (const RowRange& rows : RowsOf(cut, part)) {
      whole.narrow(0, rows.first, rows.count).copy_(own.narrow(0, begin, rows.count));
      begin += rows.count;
    }
  }
  return whole;
}

int64_t CopyCommon(const CutRange& from_range, const Tensor& from, const CutRange& to_range,
                   const Tensor& to) {
  int64_t copied = 0;
  for (const Rectangle& a : RectanglesOf(from_range)) {
    for (const Rectangle& b : RectanglesOf(to_range)) {
      const int64_t row = std::max(a.row, b.row), column = std::max(a.column, b.column);
      const int64_t rows = std::min(a.row + a.rows, b.row + b.rows) - row;
      const int64_t columns = std::min(a.column + a.columns, b.column + b.columns) - column;
      if (rows <= 0 || columns <= 0) continue;
      ViewOf(to, b, row, rows, column, columns).copy_(ViewOf(from, a, row, rows, column, columns));
      copied += rows * columns;
    }
  }
  return copied;
}

}  // namespace sft::engine
