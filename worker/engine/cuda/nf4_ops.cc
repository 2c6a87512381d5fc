#include <ATen/ops/empty.h>
#include <ATen/ops/mean.h>

#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/kernels/nf4_tables.h"
#include "worker/engine/kernels/rows.h"

namespace sft::engine::cuda {

namespace {

using at::Tensor;

int64_t Blocks(int64_t n, int64_t block) { return (n + block - 1) / block; }

void CheckOut(const Tensor& out, const Tensor& codes, int64_t blocks) {
  if (!out.is_contiguous()) {
    TORCH_CHECK(out.dim() == 2, "Nf4Dequantize: out is ", out.sizes(), " with strides ",
                out.strides(), ", must be rows or dense");
    CheckRows(out, out.size(0), out.size(1), out, "Nf4Dequantize: out");
  }
  TORCH_CHECK(codes.is_contiguous(), "Nf4Dequantize: codes must be contiguous");
  TORCH_CHECK(codes.numel() == (out.numel() + 1) / 2, "Nf4Dequantize: ", out.numel(),
              " elements need ", (out.numel() + 1) / 2, " bytes of codes, got ", codes.numel());
  TORCH_CHECK(blocks == Blocks(out.numel(), kNf4Block), "Nf4Dequantize: got ", blocks,
              " absmax for ", out.numel(), " elements");
  TORCH_CHECK(reinterpret_cast<uintptr_t>(codes.const_data_ptr()) % 4 == 0,
              "Nf4Dequantize: codes must start on a multiple of 4 bytes");
}

// Without gaps: one row.
int64_t Columns(const Tensor& out) { return out.is_contiguous() ? out.numel() : out.size(1); }
MutableRows Target(Tensor& out) {
  return {out.mutable_data_ptr(), out.is_contiguous() ? out.numel() : out.stride(0)};
}

}  // namespace

ops::Nf4Codes Nf4Quantize(const Tensor& weight) {
  TORCH_CHECK(weight.is_contiguous(), "Nf4Quantize: weight must be contiguous");
  const ElementType type = TypeOf(weight, "Nf4Quantize");
  const int64_t n = weight.numel();
  Tensor codes = at::empty({(n + 1) / 2}, weight.options().dtype(at::kByte));
  Tensor absmax = at::empty({Blocks(n, kNf4Block)}, weight.options().dtype(at::kFloat));
  if (n == 0) return {codes, absmax};
  const LaunchScope scope(weight);
  C10_CUDA_CHECK(LaunchNf4Quantize(type, weight.const_data_ptr(), n,
                                   codes.mutable_data_ptr<uint8_t>(),
                                   absmax.mutable_data_ptr<float>(), scope.stream()));
  return {codes, absmax};
}

ops::NestedAbsmax AbsmaxQuantize(const Tensor& absmax) {
  TORCH_CHECK(absmax.scalar_type() == at::kFloat && absmax.is_contiguous(),
              "AbsmaxQuantize: absmax must be contiguous fp32");
  const int64_t n = absmax.numel();
  Tensor codes = at::empty({n}, absmax.options().dtype(at::kByte));
  Tensor nested = at::empty({Blocks(n, kNestedBlock)}, absmax.options());
  Tensor offset = absmax.mean();
  if (n == 0) return {codes, nested, offset};
  const LaunchScope scope(absmax);
  C10_CUDA_CHECK(LaunchAbsmaxQuantize(
      absmax.const_data_ptr<float>(), n, offset.const_data_ptr<float>(),
      codes.mutable_data_ptr<uint8_t>(), nested.mutable_data_ptr<float>(), scope.stream()));
  return {codes, nested, offset};
}

void Nf4Dequantize(Tensor& out, const Tensor& codes, const Tensor& absmax) {
  const ElementType type = TypeOf(out, "Nf4Dequantize");
  CheckOut(out, codes, absmax.numel());
  if (out.numel() == 0) return;
  const LaunchScope scope(out);
  C10_CUDA_CHECK(LaunchNf4Dequantize(type, codes.const_data_ptr<uint8_t>(),
                                     absmax.const_data_ptr<float>(), out.numel(), Target(out),
                                     Columns(out), scope.stream()));
}

void Nf4DequantizeNested(Tensor& out, const Tensor& codes, const Tensor& absmax_codes,
                         const Tensor& nested_absmax, const Tensor& offset) {
  const ElementType type = TypeOf(out, "Nf4DequantizeNested");
  CheckOut(out, codes, absmax_codes.numel());
  TORCH_CHECK(nested_absmax.numel() == Blocks(absmax_codes.numel(), kNestedBlock),
              "Nf4DequantizeNested: got ", nested_absmax.numel(), " nested absmax for ",
              absmax_codes.numel(), " absmax codes");
  if (out.numel() == 0) return;
  const LaunchScope scope(out);
  C10_CUDA_CHECK(LaunchNf4DequantizeNested(
      type, codes.const_data_ptr<uint8_t>(), absmax_codes.const_data_ptr<uint8_t>(),
      nested_absmax.const_data_ptr<float>(), offset.const_data_ptr<float>(), out.numel(),
      Target(out), Columns(out), scope.stream()));
}

}  // namespace sft::engine::cuda
