#include <ATen/ops/empty.h>

#include "worker/engine/cuda/kernels/fp8.h"
#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/cuda/row_views.h"
#include "worker/engine/kernels/fp8_rows.h"

namespace sft::engine::cuda {

using at::Tensor;

void Fp8Quantize(Tensor& out, Tensor& scale, const Tensor& x) {
  CheckFp8Quantize(out, x, scale, "Fp8Quantize");
  const ElementType type = TypeOf(x, "Fp8Quantize");
  if (x.size(0) == 0) return;
  const LaunchScope scope(x);
  C10_CUDA_CHECK(LaunchFp8Quantize(type, {x.size(0), x.size(1)}, Read(x), WriteFp8(out, scale),
                                   scope.stream()));
}

void Fp8QuantizeWith(Tensor& out, const Tensor& x, const Tensor& scale) {
  CheckFp8Quantize(out, x, scale, "Fp8QuantizeWith");
  const ElementType type = TypeOf(x, "Fp8QuantizeWith");
  if (x.numel() == 0) return;
  const LaunchScope scope(x);
  C10_CUDA_CHECK(LaunchFp8QuantizeWith(type, {x.size(0), x.size(1)}, Read(x),
                                       scale.const_data_ptr<float>(), Write(out), scope.stream()));
}

void Fp8QuantizeColumns(Tensor& out, Tensor& scale, const Tensor& x) {
  CheckFp8QuantizeColumns(out, x, scale);
  const ElementType type = TypeOf(x, "Fp8QuantizeColumns");
  const Fp8Shape shape{x.size(0), x.size(1)};
  if (shape.width == 0) return;
  const LaunchScope scope(x);
  Tensor partials = at::empty({Fp8ColumnPartials(shape), shape.width}, scale.options());
  C10_CUDA_CHECK(LaunchFp8QuantizeColumns(type, shape, Read(x), out.size(1),
                                          partials.mutable_data_ptr<float>(), WriteFp8(out, scale),
                                          scope.stream()));
}

void Fp8FromNf4(Tensor& out, const Tensor& codes, const Tensor& absmax_codes,
                const Tensor& nested_absmax, const Tensor& offset, const Tensor& scale,
                bool transposed) {
  const bool nested = CheckFp8FromNf4(out, codes, absmax_codes, nested_absmax, offset, scale);
  if (out.numel() == 0) return;
  Nf4Weight weight{.rows = out.size(transposed ? 1 : 0),
                   .columns = out.size(transposed ? 0 : 1),
                   .codes = codes.const_data_ptr<uint8_t>()};
  if (nested) {
    weight.absmax_codes = absmax_codes.const_data_ptr<uint8_t>();
    weight.nested_absmax = nested_absmax.const_data_ptr<float>();
    weight.offset = offset.const_data_ptr<float>();
  } else {
    weight.absmax = absmax_codes.const_data_ptr<float>();
  }
  const LaunchScope scope(out);
  C10_CUDA_CHECK(LaunchFp8FromNf4(weight, scale.const_data_ptr<float>(), transposed, Write(out),
                                  scope.stream()));
}

void Fp8PlaceFactors(Tensor& matrix, const Tensor& row_scale, at::TensorList a, at::TensorList b,
                     at::IntArrayRef first_row, double scale, bool transposed) {
  const FactorPlaces places = CheckFp8Factors(matrix, row_scale, a, b, first_row, transposed);
  const ElementType type = TypeOf(a[0], "Fp8PlaceFactors");
  const LaunchScope scope(matrix);
  ForFactorMembers(
      places, a, b, first_row, [&](const FactorShape& shape, const FactorMembers& members) {
        C10_CUDA_CHECK(LaunchFp8PlaceFactors(type, shape, members, static_cast<float>(scale),
                                             row_scale.const_data_ptr<float>(), transposed,
                                             Write(matrix), scope.stream()));
      });
}

}  // namespace sft::engine::cuda
