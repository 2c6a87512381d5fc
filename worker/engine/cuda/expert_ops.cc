#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>

#include "worker/engine/cuda/hopper.h"
#include "worker/engine/cuda/kernels/expert_rows.h"
#include "worker/engine/cuda/kernels/grouped_gemm.h"
#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/cuda/row_views.h"
#include "worker/engine/kernels/grouped_checks.h"

namespace sft::engine::cuda {

using at::Tensor;

namespace {

// The most columns of the thinner operand that GroupedGradient's kernel is used for: it reads the
// other operand once for 64 of them.
constexpr int64_t kThinColumns = 256;

int Multiprocessors(const Tensor& on) {
  return at::cuda::getDeviceProperties(on.get_device())->multiProcessorCount;
}

// What TMA asks of memory.
bool StartsAligned(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}
bool RowsAreAligned(const Tensor& x) { return StartsAligned(x) && x.stride(0) % 8 == 0; }
bool MatricesAreAligned(const Tensor& x) {
  const int64_t along = x.stride(2) == 1 ? x.stride(1) : x.stride(2);
  return StartsAligned(x) && along % 8 == 0 && x.stride(0) % 8 == 0;
}

// True for matrices that are dense along the outputs; those of one row or column, where both
// strides are 1, count as dense along the sum.
bool IsAcross(const Tensor& b) { return b.stride(1) != 1; }

GroupMatrices MatricesOf(const Tensor& b, bool across) {
  return {b.const_data_ptr(), across ? b.stride(1) : b.stride(2), b.stride(0), across};
}

bool KernelTakes(const Tensor& out, const Tensor& a, const Tensor& b,
                 const ops::GroupedAddend& addend) {
  if (!HasGroupedGemm(a, addend.a.defined() ? addend.a.size(1) : 0)) return false;
  if (b.size(0) > kMaxGroups || out.size(1) % 8 != 0) return false;
  if (!RowsAreAligned(a) || !RowsAreAligned(out) || !MatricesAreAligned(b)) return false;
  if (addend.bias.defined() && !StartsAligned(addend.bias)) return false;
  return !addend.a.defined() || (RowsAreAligned(addend.a) && MatricesAreAligned(addend.b) &&
                                 IsAcross(addend.b) == IsAcross(b));
}

}  // namespace

bool HasGroupedGemm(const Tensor& a, int64_t more_columns) {
  return a.scalar_type() == at::kBFloat16 && a.size(1) % 8 == 0 && more_columns % 8 == 0 &&
         IsHopper(a);
}

void GroupedGemm(Tensor& out, const Tensor& a, const Tensor& b, const ops::GroupedAddend& addend,
                 double alpha, const ops::RowGroups& groups) {
  CheckGroupedGemm(out, a, b, addend, alpha, groups);
  if (out.numel() == 0) return;
  if (!KernelTakes(out, a, b, addend)) {
    GemmByGroup(out, a, b, addend, alpha, groups, Gemm, AddBias);
    return;
  }
  GroupedProduct product;
  product.begins = groups.begins().const_data_ptr<int32_t>();
  product.groups = static_cast<int>(groups.count());
  product.rows = a.size(0);
  product.outputs = static_cast<int>(out.size(1));
  product.depth = static_cast<int>(a.size(1));
  product.a = Read(a);
  product.b = MatricesOf(b, IsAcross(b));
  if (addend.a.defined()) {
    product.more_depth = static_cast<int>(addend.a.size(1));
    product.more_a = Read(addend.a);
    product.more_b = MatricesOf(addend.b, IsAcross(addend.b));
  }
  if (addend.bias.defined()) product.bias = addend.bias.const_data_ptr();
  product.out = Write(out);
  product.alpha = static_cast<float>(alpha);
  Tensor ticket = at::empty({1}, groups.begins().options());
  product.ticket = ticket.mutable_data_ptr<int32_t>();
  const LaunchScope scope(out);
  C10_CUDA_CHECK(LaunchGroupedGemm(product, Multiprocessors(out), scope.stream()));
}

namespace {

bool AddendFits(const ops::GroupedAddend& addend) {
  return addend.a.size(1) % 8 == 0 && RowsAreAligned(addend.a) && MatricesAreAligned(addend.b);
}

// Throws unless the kernel takes the product.
void CheckFp8Kernel(const Tensor& out, const ops::Fp8Rows& a, const Tensor& b,
                    const Tensor& b_scale, const ops::GroupedAddend& addend) {
  constexpr const char* kName = "GroupedFp8Gemm";
  TORCH_CHECK(IsHopper(out) && out.scalar_type() == at::kBFloat16, kName, ": ", out.scalar_type(),
              " on this GPU, where the kernel is for bf16 on compute capability 9.0");
  TORCH_CHECK(b.size(0) <= kMaxGroups && b.size(1) % 8 == 0 && b.size(2) % 16 == 0, kName,
              ": matrices of ", b.sizes());
  TORCH_CHECK(RowsAreAligned(out) && StartsAligned(a.values) && a.values.stride(0) % 16 == 0 &&
                  StartsAligned(b) && b.stride(0) % 16 == 0 && b.stride(1) % 16 == 0 &&
                  StartsAligned(b_scale) && (!addend.bias.defined() || StartsAligned(addend.bias)),
              kName, ": rows must start on 16 bytes");
}

}  // namespace

void GroupedFp8Gemm(Tensor& out, const ops::Fp8Rows& a, const Tensor& b, const Tensor& b_scale,
                    const ops::GroupedAddend& addend, bool fast_sums,
                    const ops::RowGroups& groups) {
  CheckGroupedFp8Gemm(out, a, b, b_scale, addend, groups);
  if (out.numel() == 0) return;
  CheckFp8Kernel(out, a, b, b_scale, addend);
  GroupedFp8Product product;
  product.begins = groups.begins().const_data_ptr<int32_t>();
  product.groups = static_cast<int>(groups.count());
  product.rows = out.size(0);
  product.outputs = static_cast<int>(b.size(1));
  product.depth = static_cast<int>(b.size(2));
  product.a = Read(a.values);
  product.a_scale = a.scale.const_data_ptr<float>();
  product.b = {b.const_data_ptr(), b.stride(1), b.stride(0), /*across=*/false};
  product.b_scale = b_scale.const_data_ptr<float>();
  const bool joins = addend.a.defined() && AddendFits(addend);
  if (joins) {
    product.more_depth = static_cast<int>(addend.a.size(1));
    product.more_a = Read(addend.a);
    product.more_b = MatricesOf(addend.b, IsAcross(addend.b));
  }
  if (addend.bias.defined()) product.bias = addend.bias.const_data_ptr();
  product.out = Write(out);
  product.fast_sums = fast_sums;
  Tensor ticket = at::empty({1}, groups.begins().options());
  product.ticket = ticket.mutable_data_ptr<int32_t>();
  {
    const LaunchScope scope(out);
    C10_CUDA_CHECK(LaunchGroupedFp8Gemm(product, Multiprocessors(out), scope.stream()));
  }
  if (addend.a.defined() && !joins) AddByGroup(out, addend, groups, Gemm);
}

void GroupedGradient(Tensor& sums, const Tensor& a, const Tensor& b, double alpha, double beta,
                     const ops::RowGroups& groups) {
  CheckGroupedGradient(sums, a, b, groups);
  if (sums.numel() == 0) return;
  // The kernel reads one of them once for 64 columns of the other: gradients of adapters.
  const bool a_is_thin = a.size(1) < b.size(1);
  const Tensor& thin = a_is_thin ? a : b;
  const Tensor& wide = a_is_thin ? b : a;
  if (!HasGroupedGemm(a, b.size(1)) || groups.count() > kMaxGroups || !RowsAreAligned(a) ||
      !RowsAreAligned(b) || thin.size(1) > kThinColumns) {
    GradientByGroup(sums, a, b, alpha, beta, groups, Gemm);
    return;
  }
  if (beta == 0.0) {
    sums.zero_();
  } else if (beta != 1.0) {
    sums.mul_(beta);
  }
  if (a.size(0) == 0) return;
  GroupedSums of;
  of.begins = groups.begins().const_data_ptr<int32_t>();
  of.groups = static_cast<int>(groups.count());
  of.rows = a.size(0);
  of.wide_columns = static_cast<int>(wide.size(1));
  of.thin_columns = static_cast<int>(thin.size(1));
  of.wide = Read(wide);
  of.thin = Read(thin);
  of.type = TypeOf(sums, "GroupedGradient");
  of.sums = sums.mutable_data_ptr();
  of.group_stride = sums.stride(0);
  of.wide_stride = sums.stride(a_is_thin ? 2 : 1);
  of.thin_stride = sums.stride(a_is_thin ? 1 : 2);
  of.alpha = static_cast<float>(alpha);
  const LaunchScope scope(sums);
  C10_CUDA_CHECK(LaunchGroupedGradient(of, Multiprocessors(sums), scope.stream()));
}

void TakeRows(Tensor& out, const Tensor& x, const Tensor& of) {
  CheckTakeRows(out, x, of);
  if (out.numel() == 0) return;
  const LaunchScope scope(out);
  C10_CUDA_CHECK(LaunchTakeRows(TypeOf(x, "TakeRows"), {out.size(0), out.size(1)}, Read(x),
                                of.const_data_ptr<int64_t>(), Write(out), scope.stream()));
}

void CombineRows(Tensor& y, const Tensor& x, const Tensor& places, const Tensor& weights,
                 const Tensor& addend) {
  CheckCombineRows(y, x, places, weights, addend);
  if (y.numel() == 0) return;
  CombinedRows of;
  of.places = places.const_data_ptr<int64_t>();
  if (weights.defined()) of.weights = weights.const_data_ptr<float>();
  of.choices = static_cast<int>(places.size(1));
  of.x = Read(x);
  if (addend.defined()) {
    of.addend = Read(addend);
    of.addend_type = TypeOf(addend, "CombineRows");
  }
  const LaunchScope scope(y);
  C10_CUDA_CHECK(LaunchCombineRows(TypeOf(y, "CombineRows"), {y.size(0), y.size(1)}, of, Write(y),
                                   scope.stream()));
}

Tensor WeighedGluBackward(Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up,
                          const Tensor& weights, plan::ActivationKind kind,
                          const ops::Fp8Rows& fp8) {
  CheckWeighedGluBackward(dgate_up, dy, gate_up, weights);
  const ElementType type = TypeOf(dy, "WeighedGluBackward");
  const RowsShape shape{dy.size(0), dy.size(1)};
  Fp8Output quantised = WriteFp8Too(fp8, dgate_up, "WeighedGluBackward");
  Tensor products = at::empty({dy.size(0)}, dy.options().dtype(at::kFloat));
  if (dy.numel() == 0) return products.zero_();
  const bool apart =
      fp8.values.defined() &&
      !WeighedGluWritesFp8(type, shape, Read(dy), Read(gate_up), Read(dgate_up), quantised.rows);
  if (apart) quantised = {};
  const LaunchScope scope(dy);
  C10_CUDA_CHECK(LaunchWeighedGluBackward(
      type, shape, kind, Read(dy), Read(gate_up), weights.const_data_ptr<float>(), Write(dgate_up),
      products.mutable_data_ptr<float>(), quantised, scope.stream()));
  if (apart) {
    Tensor values = fp8.values, scale = fp8.scale;
    Fp8Quantize(values, scale, dgate_up);
  }
  return products;
}

}  // namespace sft::engine::cuda
