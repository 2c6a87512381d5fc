// Tensor-core products of bf16 within a warp, and copies into shared memory that run by themselves.
// Fragments are those of the PTX manual's mma.m16n8k16: lane l holds rows l / 4 and l / 4 + 8 of a
// and of the sums, column l / 4 of b.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace sft::engine::cuda {

// d += a [16, 16] b [16, 8], summed in fp32.
__device__ __forceinline__ void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Four matrices [8, 8] whose rows start at the addresses that lanes 0..7, 8..15, ... give.
__device__ __forceinline__ void LoadMatrices(uint32_t (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(SharedAddress(row))
               : "memory");
}
// The same, each transposed.
__device__ __forceinline__ void LoadTransposed(uint32_t (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(SharedAddress(row))
               : "memory");
}

// 16 bytes from global into shared memory; zeros where `there` is false.
__device__ __forceinline__ void CopyAsync(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(SharedAddress(to)),
               "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void EndGroup() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
// Waits until at most kLeft of the groups that this thread ended are under way.
template <int kLeft>
__device__ __forceinline__ void WaitForGroups() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kLeft) : "memory");
}

__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace sft::engine::cuda
