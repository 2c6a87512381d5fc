#include "worker/engine/weights/quant_format.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/base/round.h"
#include "worker/engine/base/error.h"
#include "worker/engine/kernels/int8_format.h"
#include "worker/engine/kernels/mxfp4_format.h"
#include "worker/engine/kernels/nf4_tables.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/weights/tensor_cut.h"

namespace sft::engine {

namespace {

using at::Tensor;

// Zeros of `size` with `values` from `first` on.
Tensor Padded(const Tensor& values, int64_t size, int64_t first = 0) {
  if (values.numel() == size) return values;
  Tensor padded = at::zeros({size}, values.options());
  padded.narrow(0, first, values.numel()).copy_(values);
  return padded;
}

// Of a plane with one value for each `per` elements of a whole weight, those of a part's elements
// [first, first + count).
Tensor TakePlane(const Tensor& plane, int64_t per, const ParamInfo& param, int64_t first,
                 int64_t count) {
  std::vector<Tensor> pieces;
  for (const CutRange& range : RangesOf(param, first, count)) {
    const int64_t begin = range.first / per, size = CeilDiv(range.count, per);
    if (range.is_flat()) {
      pieces.push_back(plane.narrow(0, begin, size));
      continue;
    }
    const Tensor rows = plane.narrow(0, 0, WholeRange(param).count / per)
                            .view({-1, range.whole_columns / per})
                            .narrow(1, range.column / per, range.columns / per);
    pieces.push_back(rows.reshape({-1}).narrow(0, begin, size));
  }
  return pieces.empty() ? plane.narrow(0, 0, 0) : at::cat(pieces);
}

class Nf4Format : public QuantFormat {
 public:
  explicit Nf4Format(bool double_quant) : double_quant_(double_quant) {}

  int64_t cut_unit() const override { return kNf4CutUnit; }

  std::vector<PlaneSpec> planes() const override {
    const PlaneSpec codes{at::kByte, kNf4CutUnit / 2};
    if (!double_quant_) return {codes, {at::kFloat, kNestedBlock}};
    return {codes, {at::kByte, kNestedBlock}, {at::kFloat, 1}};
  }

  QuantizedPart Quantize(const Tensor& part, int64_t /*columns*/, std::span<const int64_t> counts,
                         Communicator& comm) const override {
    const int64_t units = CutUnits(part.numel());
    ops::Nf4Codes nf4 = QuantizeOrEmpty(part);
    QuantizedPart result;
    result.planes.push_back(Padded(nf4.codes, units * kNf4CutUnit / 2));
    if (!double_quant_) {
      result.planes.push_back(Padded(nf4.absmax, units * kNestedBlock));
      return result;
    }
    AddNested(nf4.absmax, units, counts, comm, result);
    return result;
  }

  void Dequantize(Tensor out, std::span<const Tensor> planes,
                  const Tensor& constants) const override {
    const int64_t n = out.numel();
    const int64_t blocks = CeilDiv(n, kNf4Block);
    const Tensor codes = planes[0].narrow(0, 0, CeilDiv(n, 2));
    const Tensor absmax = planes[1].narrow(0, 0, blocks);
    if (!double_quant_) {
      ops::Nf4Dequantize(out, codes, absmax);
      return;
    }
    ops::Nf4DequantizeNested(out, codes, absmax,
                             planes[2].narrow(0, 0, CeilDiv(blocks, kNestedBlock)), constants);
  }

  QuantizedPart Take(const QuantizedPart& whole, const ParamInfo& param, int64_t first,
                     int64_t count) const override {
    const bool nested = whole.planes.size() > 2;
    const Tensor absmax = nested ? PlainAbsmax(whole, WholeRange(param).count) : whole.planes[1];
    return {.planes = {TakePlane(whole.planes[0], 2, param, first, count),
                       TakePlane(absmax, kNf4Block, param, first, count)}};
  }

  void DequantizeFp8(Tensor out, std::span<const Tensor> planes, const Tensor& constants,
                     const Tensor& scale, bool transposed) const override {
    const int64_t n = out.numel();
    const int64_t blocks = CeilDiv(n, kNf4Block);
    const Tensor nested =
        double_quant_ ? planes[2].narrow(0, 0, CeilDiv(blocks, kNestedBlock)) : Tensor();
    ops::Fp8FromNf4(out, planes[0].narrow(0, 0, CeilDiv(n, 2)), planes[1].narrow(0, 0, blocks),
                    nested, double_quant_ ? constants : Tensor(), scale, transposed);
  }

 private:
  // The blocks' scales as the kernels make them of quantised ones: what a block of codes that all
  // stand for 1 comes to.
  static Tensor PlainAbsmax(const QuantizedPart& whole, int64_t elements) {
    constexpr int64_t kNestedAtATime = 1024;
    constexpr int kOnes = 0xff;  // two codes of 15, the value 1
    const int64_t blocks = CeilDiv(elements, kNf4Block);
    const Tensor absmax = at::empty({blocks}, whole.planes[2].options());
    for (int64_t first = 0; first < blocks; first += kNestedAtATime * kNestedBlock) {
      const int64_t count = std::min<int64_t>(kNestedAtATime * kNestedBlock, blocks - first);
      const Tensor ones = at::full({count * kNf4Block / 2}, kOnes, whole.planes[0].options());
      Tensor scaled = at::empty({count * kNf4Block}, absmax.options());
      ops::Nf4DequantizeNested(
          scaled, ones, whole.planes[1].narrow(0, first, count),
          whole.planes[2].narrow(0, first / kNestedBlock, CeilDiv(count, kNestedBlock)),
          whole.constants);
      absmax.narrow(0, first, count).copy_(scaled.view({count, kNf4Block}).select(1, 0));
    }
    return absmax;
  }

  static ops::Nf4Codes QuantizeOrEmpty(const Tensor& part) {
    if (part.numel() > 0) return ops::Nf4Quantize(part);
    return {at::empty({0}, part.options().dtype(at::kByte)),
            at::empty({0}, part.options().dtype(at::kFloat))};
  }

  // The mean of absmax is the whole tensor's: all ranks see all of it, and keep their own blocks.
  static void AddNested(const Tensor& absmax, int64_t units, std::span<const int64_t> counts,
                        Communicator& comm, QuantizedPart& result) {
    Tensor whole = absmax;
    int64_t first = 0;
    if (counts.size() > 1) {
      std::vector<int64_t> blocks;
      for (int64_t count : counts) blocks.push_back(CeilDiv(count, kNf4Block));
      whole =
          at::empty({std::accumulate(blocks.begin(), blocks.end(), int64_t{0})}, absmax.options());
      comm.AllGather(whole, absmax, blocks);
      first = std::accumulate(blocks.begin(), blocks.begin() + comm.rank(), int64_t{0});
    }
    if (absmax.numel() == 0) {
      // Holds nothing of this weight, but the constants are needed to de-quantise it.
      result.planes.push_back(at::empty({0}, absmax.options().dtype(at::kByte)));
      result.planes.push_back(absmax);
      result.constants = ops::AbsmaxQuantize(whole).offset;
      return;
    }
    ops::NestedAbsmax nested = ops::AbsmaxQuantize(whole);
    const Tensor codes = nested.codes.narrow(0, first, absmax.numel());
    const Tensor maxima =
        nested.nested_absmax.narrow(0, first / kNestedBlock, CeilDiv(absmax.numel(), kNestedBlock));
    result.planes.push_back(Padded(codes.clone(), units * kNestedBlock));
    result.planes.push_back(Padded(maxima.clone(), units));
    result.constants = nested.offset;
  }

  bool double_quant_;
};

class Mxfp4Format : public QuantFormat {
 public:
  int64_t cut_unit() const override { return kMxfp4CutUnit; }

  std::vector<PlaneSpec> planes() const override {
    return {{at::kByte, kMxfp4CutUnit / 2}, {at::kByte, kMxfp4CutUnit / kMxfp4Block}};
  }

  QuantizedPart Quantize(const Tensor& /*part*/, int64_t /*columns*/,
                         std::span<const int64_t> /*counts*/, Communicator&) const override {
    throw InternalError("MXFP4 is kept as it was published, not made");
  }

  void Dequantize(Tensor out, std::span<const Tensor> planes,
                  const Tensor& /*constants*/) const override {
    ops::Mxfp4Dequantize(out, planes[0], planes[1]);
  }

  void DequantizeFp8(Tensor /*out*/, std::span<const Tensor> /*planes*/,
                     const Tensor& /*constants*/, const Tensor& /*scale*/,
                     bool /*transposed*/) const override {
    throw InternalError("MXFP4 has no products in FP8");
  }

 private:
  bool Keeps(const ParamInfo& param) const override { return param.quantized && param.mxfp4; }
};

class Int8Format : public QuantFormat {
 public:
  // Codes are whole anywhere; this keeps every weight's on a 256-byte boundary.
  int64_t cut_unit() const override { return 256; }

  std::vector<PlaneSpec> planes() const override { return {{at::kChar, cut_unit()}}; }

  QuantizedPart Quantize(const Tensor& part, int64_t columns, std::span<const int64_t> counts,
                         Communicator& comm) const override {
    const bool whole = counts.size() == 1;
    const int64_t n = part.numel();
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0}) / columns;
    const int64_t first =
        whole ? 0 : std::accumulate(counts.begin(), counts.begin() + comm.rank(), int64_t{0});
    // The rows that the part touches, zero where they are other ranks'.
    const int64_t first_row = first / columns;
    const int64_t before = first - first_row * columns;
    const int64_t touched = n == 0 ? 0 : CeilDiv(before + n, columns);
    const Tensor weight = Padded(part, touched * columns, before).view({touched, columns});
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    Tensor absmax = at::linalg_vector_norm(weight, kInfinity, {1}, false, at::kFloat);
    if (!whole) absmax = LargestOfRanks(Padded(absmax, rows, first_row), comm);
    QuantizedPart result;
    result.constants = absmax * kInt8Step;
    if (n == 0) {
      result.planes.push_back(at::empty({0}, part.options().dtype(at::kChar)));
      return result;
    }
    const Tensor codes = ops::Int8Quantize(weight, absmax.narrow(0, first_row, touched)).view({-1});
    result.planes.push_back(Padded(codes.narrow(0, before, n), CutUnits(n) * cut_unit()));
    return result;
  }

  void Dequantize(Tensor out, std::span<const Tensor> planes, const Tensor& scale) const override {
    Tensor rows = out.dim() == 2 ? out : out.view({1, -1});
    ops::Int8Dequantize(rows, planes[0].narrow(0, 0, out.numel()).view(rows.sizes()), scale);
  }

  // Rows that are cut keep the scale of the whole row.
  QuantizedPart Take(const QuantizedPart& whole, const ParamInfo& param, int64_t first,
                     int64_t count) const override {
    QuantizedPart part{.planes = {TakePlane(whole.planes[0], 1, param, first, count)}};
    part.constants = whole.constants;
    if (param.cut.along == TensorCut::Along::kRows) {
      const int64_t columns = param.shape[1];
      std::vector<Tensor> scales;
      for (const CutRange& rows : RangesOf(param, 0, param.numel())) {
        scales.push_back(whole.constants.narrow(0, rows.first / columns, rows.count / columns));
      }
      part.constants = at::cat(scales);
    }
    return part;
  }

  void DequantizeFp8(Tensor, std::span<const Tensor>, const Tensor&, const Tensor&,
                     bool) const override {
    throw InternalError("FP8 products with INT8 weights");
  }

 private:
  static Tensor LargestOfRanks(const Tensor& absmax, Communicator& comm) {
    const Tensor all = at::empty({comm.world(), absmax.numel()}, absmax.options());
    comm.AllGather(all.view({-1}), absmax);
    return all.amax({0});
  }
};

class PlainFormat : public QuantFormat {
 public:
  explicit PlainFormat(at::ScalarType compute) : compute_(compute) {}

  // Whole anywhere; this keeps every weight's elements on a 256-byte boundary.
  int64_t cut_unit() const override { return 128; }

  std::vector<PlaneSpec> planes() const override { return {{compute_, cut_unit()}}; }

  QuantizedPart Quantize(const Tensor& part, int64_t /*columns*/, std::span<const int64_t>,
                         Communicator&) const override {
    const Tensor elements = part.to(compute_);
    return {{Padded(elements, CutUnits(part.numel()) * cut_unit())}, {}};
  }

  void Dequantize(Tensor out, std::span<const Tensor> planes, const Tensor&) const override {
    out.copy_(planes[0].narrow(0, 0, out.numel()).view(out.sizes()));
  }

  void DequantizeFp8(Tensor, std::span<const Tensor>, const Tensor&, const Tensor&,
                     bool) const override {
    throw InternalError("FP8 products with weights that are not quantised");
  }

 private:
  at::ScalarType compute_;
};

}  // namespace

QuantizedPart QuantFormat::Take(const QuantizedPart&, const ParamInfo& param, int64_t,
                                int64_t) const {
  throw InternalError(param.name + " is in a format that is not cut");
}

int64_t QuantFormat::Bytes(int64_t elements) const {
  int64_t bytes = 0;
  for (const PlaneSpec& plane : planes()) {
    bytes += CutUnits(elements) * plane.per_cut_unit *
             static_cast<int64_t>(c10::elementSize(plane.type));
  }
  return bytes;
}

at::Tensor AfterQuantizing(const QuantFormat& format, const Tensor& weight, Communicator& comm) {
  const int64_t count = weight.numel();
  const QuantizedPart part =
      format.Quantize(weight.reshape({-1}), weight.size(1), {&count, 1}, comm);
  Tensor left = at::empty(weight.sizes(), weight.options().dtype(at::kFloat));
  format.Dequantize(left, part.planes, part.constants);
  return left;
}

std::unique_ptr<QuantFormat> MakeNf4Format(bool double_quant) {
  return std::make_unique<Nf4Format>(double_quant);
}

std::unique_ptr<QuantFormat> MakePlainFormat(at::ScalarType compute) {
  return std::make_unique<PlainFormat>(compute);
}

std::unique_ptr<QuantFormat> MakeMxfp4Format() { return std::make_unique<Mxfp4Format>(); }

std::unique_ptr<QuantFormat> MakeInt8Format() { return std::make_unique<Int8Format>(); }

}  // namespace sft::engine
