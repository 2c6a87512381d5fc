#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>

#include "worker/engine/cuda/kernels/glu_factors.h"
#include "worker/engine/cuda/launch_scope.h"
#include "worker/engine/cuda/ops.h"
#include "worker/engine/kernels/glu_factors.h"

namespace sft::engine::cuda {

namespace {

using at::Tensor;

const __nv_bfloat16* Elements(const Tensor& x) {
  return static_cast<const __nv_bfloat16*>(x.const_data_ptr());
}

bool StartOnChunks(const Tensor& rows) {
  return rows.stride(0) % 8 == 0 && reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0;
}

// The same on a 16-byte boundary: factors lie in their unit's buffer wherever they do.
Tensor OnChunks(const Tensor& rows) { return StartOnChunks(rows) ? rows : rows.clone(); }

}  // namespace

bool HasGluFactors(const Tensor& gate_up, int64_t rank) {
  constexpr size_t kSharedBytes = size_t{227} << 10;  // of a block; Hopper's
  return gate_up.scalar_type() == at::kBFloat16 && gate_up.dim() == 2 && gate_up.size(0) > 0 &&
         at::cuda::getDeviceProperties(gate_up.get_device())->sharedMemPerBlockOptin >=
             kSharedBytes &&
         StartOnChunks(gate_up) && cuda::HasGluFactors(gate_up.size(1) / 2, rank);
}

void GluFactorsBackward(Tensor& gate_up, Tensor& dxa, const Tensor& dy, const ops::GluFactors& f) {
  CheckGluFactors(gate_up, dxa, dy, f);
  TORCH_CHECK(dxa.stride(0) % 4 == 0 && reinterpret_cast<uintptr_t>(dxa.data_ptr()) % 8 == 0,
              "GluFactorsBackward: rows of dxa do not start on 8 bytes");
  const GluFactorsShape shape{gate_up.size(0), gate_up.size(1) / 2,
                              static_cast<int>(f.b_gate.size(1))};
  TORCH_CHECK(HasGluFactors(gate_up, shape.rank), "GluFactorsBackward: no kernel for ",
              gate_up.scalar_type(), gate_up.sizes(), " and rank ", shape.rank);
  const LaunchScope scope(gate_up);
  const Tensor from_down = OnChunks(dy), first = OnChunks(f.xa), first_down = OnChunks(f.dxa_down);
  const Tensor gate = OnChunks(f.b_gate), up = OnChunks(f.b_up);
  const int multiprocessors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  const GluFactorsSizes sizes = SizesOfGluFactors(shape, multiprocessors);
  Tensor partials = at::empty({sizes.dxa + sizes.gradients}, gate_up.options().dtype(at::kFloat));
  float* floats = partials.mutable_data_ptr<float>();
  const GluFactorsRows rows{static_cast<__nv_bfloat16*>(gate_up.mutable_data_ptr()),
                            gate_up.stride(0),
                            Elements(from_down),
                            from_down.stride(0),
                            Elements(first),
                            first.stride(0),
                            Elements(first_down),
                            first_down.stride(0),
                            Elements(gate),
                            Elements(up)};
  C10_CUDA_CHECK(LaunchGluFactorsBackward(
      shape, rows, {sizes.runs, floats, floats + sizes.dxa}, f.kind, static_cast<float>(f.scale),
      {f.db_gate.mutable_data_ptr<float>(), f.db_up.mutable_data_ptr<float>(),
       f.da_down.mutable_data_ptr<float>()},
      {dxa.mutable_data_ptr(), dxa.stride(0)}, scope.stream()));
}

}  // namespace sft::engine::cuda
