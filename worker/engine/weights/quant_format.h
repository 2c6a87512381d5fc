#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <vector>

#include "worker/engine/dist/communicator.h"
#include "worker/engine/weights/layout.h"

// A quantised weight is kept as planes of raw bytes. A flattened weight is cut into cut units: so
// many elements whose bytes are whole in every plane, the only places where bytes may be divided
// over ranks. The planes of a weight of n elements are padded to whole cut units.

namespace sft::engine {

// One of the byte arrays that a quantised weight consists of.
struct PlaneSpec {
  at::ScalarType type;
  int64_t per_cut_unit;  // elements of the plane
};

// A weight's bytes, or one rank's cut units of them.
struct QuantizedPart {
  std::vector<at::Tensor> planes;  // flat, cut units * per_cut_unit elements each
  at::Tensor constants;            // whole-tensor values that every rank needs; may be undefined
  // The weight itself where it is not quantised but stands among weights that are; else undefined.
  at::Tensor plain;
};

// Immutable; any thread.
class QuantFormat {
 public:
  virtual ~QuantFormat() = default;

  // True for the quantised weights that this rank keeps, in this format.
  bool Holds(const ParamInfo& param) const { return param.held && Keeps(param); }

  virtual int64_t cut_unit() const = 0;
  virtual std::vector<PlaneSpec> planes() const = 0;

  // Quantises the elements of one weight that this rank holds: `part` is flat fp32 or bf16, on the
  // device where the bytes are to be, and a whole number of cut units but for the end of the
  // weight, whose rows have `columns` elements. `counts[r]`: elements of rank r; the bytes of all
  // ranks are those of quantising the whole. With one count the weight is whole here; with more,
  // formats that have statistics of the whole weight communicate, so every rank calls it, with an
  // empty part if it holds none.
  virtual QuantizedPart Quantize(const at::Tensor& part, int64_t columns,
                                 std::span<const int64_t> counts, Communicator& comm) const = 0;

  // Writes the whole weight into `out` (fp32 or bf16, rows or flat); planes hold all its cut units.
  virtual void Dequantize(at::Tensor out, std::span<const at::Tensor> planes,
                          const at::Tensor& constants) const = 0;

  // The whole weight in FP8: divided by the scale of its row of `out`, float8 rows [N, K] with
  // scale [N], or with `transposed` its transpose, float8 rows [K, N] with scale [K]
  // (kernels/ops.h). Throws InternalError where the format has none.
  virtual void DequantizeFp8(at::Tensor out, std::span<const at::Tensor> planes,
                             const at::Tensor& constants, const at::Tensor& scale,
                             bool transposed) const = 0;

  // Of a whole weight's planes elements [first, first + count) of the part that a rank has of it
  // (TensorCut), without padding; `first` is a multiple of the cut unit. NF4 with quantised scales
  // gives planes of MakeNf4Format(false), which de-quantise to the same bits: a part's scales are
  // in fp32. Rows of NF4 are cut between blocks. Throws InternalError where the format has none.
  virtual QuantizedPart Take(const QuantizedPart& whole, const ParamInfo& param, int64_t first,
                             int64_t count) const;

  int64_t CutUnits(int64_t elements) const { return (elements + cut_unit() - 1) / cut_unit(); }
  // Bytes of a weight of `elements`.
  int64_t Bytes(int64_t elements) const;

 private:
  virtual bool Keeps(const ParamInfo& param) const { return param.quantized && !param.mxfp4; }
};

// What a format leaves of a whole weight [N, K], fp32 or bf16: fp32 [N, K] on the same device.
at::Tensor AfterQuantizing(const QuantFormat& format, const at::Tensor& weight, Communicator& comm);

// NF4 (kernels/nf4_tables.h), with the absmax kept as fp32 or quantised again.
std::unique_ptr<QuantFormat> MakeNf4Format(bool double_quant);

// No quantisation: the weights themselves in `compute`, for a base that lies in host memory or is
// cut over the ranks. No FP8.
std::unique_ptr<QuantFormat> MakePlainFormat(at::ScalarType compute);

// MXFP4 (kernels/mxfp4_format.h), which is kept as it was published: it quantises nothing. No FP8.
std::unique_ptr<QuantFormat> MakeMxfp4Format();

// INT8 with a scale a row (kernels/int8_format.h). The scales are the weight's constants: they are
// whole on every rank (4 bytes a row), so codes may be cut within a row. No FP8.
std::unique_ptr<QuantFormat> MakeInt8Format();

}  // namespace sft::engine
