// What Hopper has for kernels that multiply from shared memory: barriers that count bytes, copies
// of tiles by TMA, and products of warp groups (wgmma). Names as the PTX manual's; for sm_90a
// alone.
//
// Tiles in shared memory are rows of 64 bf16 (128 bytes) in the 128-byte swizzle, as TMA writes
// them: 16-byte piece p of row r stands at p ^ (r % 8). A tile starts on 1,024 bytes.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "worker/engine/cuda/kernels/mma.cuh"

namespace sft::engine::cuda {

// A barrier in shared memory. Waiting for parity 1 of one that has not completed a phase returns at
// once.
__device__ __forceinline__ void InitBarrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals));
}
__device__ __forceinline__ void Arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
__device__ __forceinline__ void ArriveAndExpect(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void WaitFor(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "wait: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra done;\nbra wait;\ndone:\n}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

// The box of a map at the element x of head y of token z, and dense bytes.
__device__ __forceinline__ void CopyBox(void* to, const CUtensorMap* map, int x, int y, int z,
                                        uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%3, %4, %5}], [%2];" ::"r"(SharedAddress(to)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ __forceinline__ void CopyBytes(void* to, const void* from, int bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(to)),
      "l"(from), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}

// Dense bytes from shared memory, to be there or to be added as floats; of this thread's group of
// copies.
__device__ __forceinline__ void SendBytes(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(SharedAddress(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void AddFloats(void* to, const void* from, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(SharedAddress(from)), "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void EndSending() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until what was sent has been read, and until it is there.
__device__ __forceinline__ void WaitUntilRead() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void WaitUntilThere() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// What ordinary instructions wrote to shared memory, and read of global memory, before copies and
// products that follow.
__device__ __forceinline__ void OrderShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void OrderGlobal() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Barrier number 1 of a block: kThreads wait for it or pass it, all of a warp alike.
template <int kThreads>
__device__ __forceinline__ void WaitAtBarrier() {
  asm volatile("barrier.cta.sync.aligned 1, %0;" ::"n"(kThreads) : "memory");
}
template <int kThreads>
__device__ __forceinline__ void PassBarrier() {
  asm volatile("barrier.cta.arrive.aligned 1, %0;" ::"n"(kThreads) : "memory");
}

// What will be read soon.
__device__ __forceinline__ void FetchToL1(const void* of) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(of));
}

template <int kCount>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Describes a matrix in shared memory. `rows`: its rows of 64 elements run along the sum; groups of
// 8 rows are 1,024 bytes apart. `columns`: they run across it, and its next 64 columns are `next`
// bytes away.
__device__ __forceinline__ uint64_t DescribeRows(const void* tile) {
  return uint64_t{(SharedAddress(tile) & 0x3FFFF) >> 4} | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}
__device__ __forceinline__ uint64_t DescribeColumns(const void* tile, int next) {
  return DescribeRows(tile) | static_cast<uint64_t>(next >> 4) << 16;
}

__device__ __forceinline__ void BeginProducts() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void EndProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kLeft groups of this warp group's products are under way.
template <int kLeft>
__device__ __forceinline__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

#define SFT_EIGHT(d, o)                                                                       \
  "+f"(d[o]), "+f"(d[o + 1]), "+f"(d[o + 2]), "+f"(d[o + 3]), "+f"(d[o + 4]), "+f"(d[o + 5]), \
      "+f"(d[o + 6]), "+f"(d[o + 7])

// One step of 16 of a product of a warp group. Warp w holds rows 16 w to 16 w + 15 of d; of 8
// columns each lane has d[4 j .. 4 j + 3], as mma.m16n8k16 has them.

// d [64, 64] = a b, or with `add` d += a b. kAcross: the matrix is described by DescribeColumns.
template <bool kAAcross, bool kBAcross>
__device__ __forceinline__ void Multiply64(float (&d)[32], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, %35, %36;\n}\n"
      : SFT_EIGHT(d, 0), SFT_EIGHT(d, 8), SFT_EIGHT(d, 16), SFT_EIGHT(d, 24)
      : "l"(a), "l"(b), "r"(int{add}), "n"(int{kAAcross}), "n"(int{kBAcross}));
}

#define SFT_SIXTY_FOUR(d)                                                                 \
  SFT_EIGHT(d, 0), SFT_EIGHT(d, 8), SFT_EIGHT(d, 16), SFT_EIGHT(d, 24), SFT_EIGHT(d, 32), \
      SFT_EIGHT(d, 40), SFT_EIGHT(d, 48), SFT_EIGHT(d, 56)
#define SFT_D64                                                                                  \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
  "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

// d [64, 128] += a b, where b is described by DescribeColumns; a in registers, as mma.m16n8k16 has
// it.
__device__ __forceinline__ void Multiply128(float (&d)[64], const uint32_t* a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " SFT_D64
               ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;\n"
               : SFT_SIXTY_FOUR(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#define SFT_D128                                                                                   \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"    \
  "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"   \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,"   \
  "%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,"   \
  "%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113," \
  "%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}"

// d [64, 256] = a b, or with `add` d += a b; a described by DescribeRows.
template <bool kBAcross>
__device__ __forceinline__ void Multiply256(float (&d)[128], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " SFT_D128
      ", %128, %129, p, 1, 1, 0, %131;\n}\n"
      : SFT_SIXTY_FOUR((d)), SFT_EIGHT(d, 64), SFT_EIGHT(d, 72), SFT_EIGHT(d, 80), SFT_EIGHT(d, 88),
        SFT_EIGHT(d, 96), SFT_EIGHT(d, 104), SFT_EIGHT(d, 112), SFT_EIGHT(d, 120)
      : "l"(a), "l"(b), "r"(int{add}), "n"(int{kBAcross}));
}

#define SFT_D96                                                                                  \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
  "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70," \
  "%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93," \
  "%94,%95}"

// The same with 192 columns.
template <bool kBAcross>
__device__ __forceinline__ void Multiply192(float (&d)[96], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 " SFT_D96
      ", %96, %97, p, 1, 1, 0, %99;\n}\n"
      : SFT_SIXTY_FOUR((d)), SFT_EIGHT(d, 64), SFT_EIGHT(d, 72), SFT_EIGHT(d, 80), SFT_EIGHT(d, 88)
      : "l"(a), "l"(b), "r"(int{add}), "n"(int{kBAcross}));
}

// The same two in FP8 (e4m3): one step of 32 of the sum, both operands described by DescribeRows.
__device__ __forceinline__ void MultiplyFp8(float (&d)[128], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 " SFT_D128
      ", %128, %129, p, 1, 1;\n}\n"
      : SFT_SIXTY_FOUR((d)), SFT_EIGHT(d, 64), SFT_EIGHT(d, 72), SFT_EIGHT(d, 80), SFT_EIGHT(d, 88),
        SFT_EIGHT(d, 96), SFT_EIGHT(d, 104), SFT_EIGHT(d, 112), SFT_EIGHT(d, 120)
      : "l"(a), "l"(b), "r"(int{add}));
}
__device__ __forceinline__ void MultiplyFp8(float (&d)[96], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 " SFT_D96 ", %96, %97, p, 1, 1;\n}\n"
      : SFT_SIXTY_FOUR((d)), SFT_EIGHT(d, 64), SFT_EIGHT(d, 72), SFT_EIGHT(d, 80), SFT_EIGHT(d, 88)
      : "l"(a), "l"(b), "r"(int{add}));
}

// What uses values of products does so after this, which stands behind the wait for them.
template <int kCount>
__device__ __forceinline__ void KeepBehind(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#undef SFT_D96
// d [64, 64] += a b, as Multiply128.
__device__ __forceinline__ void MultiplyFromRegisters64(float (&d)[32], const uint32_t* a,
                                                        uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"
      "%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;\n"
      : SFT_EIGHT(d, 0), SFT_EIGHT(d, 8), SFT_EIGHT(d, 16), SFT_EIGHT(d, 24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d [64, 32] = a b, or with `add` d += a b, both described by DescribeColumns.
__device__ __forceinline__ void Multiply32(float (&d)[16], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1, 1, 1;\n}\n"
      : SFT_EIGHT(d, 0), SFT_EIGHT(d, 8)
      : "l"(a), "l"(b), "r"(int{add}));
}

#undef SFT_D128
#undef SFT_D64
#undef SFT_SIXTY_FOUR
#undef SFT_EIGHT

// Four matrices [8, 8] of a warp to the rows whose addresses lanes 0..7, 8..15, ... give.
__device__ __forceinline__ void StoreMatrices(uint32_t row, const uint32_t* x) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row),
               "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

}  // namespace sft::engine::cuda
