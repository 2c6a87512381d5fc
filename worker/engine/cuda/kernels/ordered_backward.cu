#include <cuda_bf16.h>

#include "worker/engine/cuda/kernels/hopper.cuh"
#include "worker/engine/cuda/kernels/ordered_backward.h"
#include "worker/engine/cuda/kernels/ordered_rows.cuh"
#include "worker/engine/cuda/kernels/tensor_map.h"

// Suffixes: M queries of a block, N keys of a thread block, D elements of a head. P = exp(scores -
// lse), S = P (dP - delta) its gradient, with delta = the sum over D of out * dout.

namespace sft::engine::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kM = kOrderedQueries, kN = kOrderedKeys;
constexpr int kHalf = 64;   // elements of a row of a tile
constexpr int kStages = 2;  // of q and dout, of the gradients of scores, of dq
constexpr int kThreads = 384;

struct Arguments {
  CUtensorMap q, k, v, dout;
  OrderedBatch batch;
  OrderedWorkspace workspace;
  MutableRows dk, dv;
  int blocks;      // of queries
  int key_blocks;  // of the longest document
};

template <int kD>
struct Shared {
  alignas(1024) Bf16 k[kD / kHalf][kN * kHalf];
  alignas(1024) Bf16 v[kD / kHalf][kN * kHalf];
  alignas(1024) Bf16 q[kStages][kD / kHalf][kM * kHalf];
  alignas(1024) Bf16 dout[kStages][kD / kHalf][kM * kHalf];
  alignas(1024) Bf16 s[kStages][kN * kM];  // S, rows are keys
  alignas(1024) float dq[kStages][kM * kD];
  alignas(256) float lse[kStages][kM];
  alignas(256) float delta[kStages][kM];
  alignas(8) uint64_t keys_full;
  uint64_t q_full[kStages], q_empty[kStages], dout_full[kStages], dout_empty[kStages];
  uint64_t dq_full[kStages], dq_empty[kStages];
  int ticket;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kMultiplying = 256;  // threads
// For each thread of the first warp group, and of those that multiply.
constexpr int kFewRegisters = 24, kManyRegisters = 240;
// Key blocks of so many key heads and documents are taken side by side: it keeps those that add to
// one block of queries apart, and what they read in the second-level cache. Measured.
constexpr int kSideBySide = 16, kSideBySideInWindow = 4;

// The keys of a thread block, and the blocks of queries [first_m, end_m) that see one of them.
struct Keys {
  int kv_head, n;
  int first_token, length;  // of the document
  int first_block;
  int first_m, end_m;
};

// False where the document has no such keys. Without a window the keys that most queries see come
// first, so that the short ones fill the end. With one all have as much to do: the last keys come
// first, for which nobody has to be waited for at the start.
__device__ __forceinline__ bool Locate(const Arguments& a, int ticket, Keys* keys) {
  const OrderedBatch& batch = a.batch;
  const int streams = batch.documents * batch.kv_heads;
  const int most = batch.window > 0 ? kSideBySideInWindow : kSideBySide;
  const int chunk = ticket / (most * a.key_blocks), within = ticket % (most * a.key_blocks);
  const int wide = min(most, streams - chunk * most);
  const int stream = chunk * most + within % wide;
  keys->n = within / wide;
  if (batch.window > 0) keys->n = a.key_blocks - 1 - keys->n;
  const int document = stream / batch.kv_heads;
  keys->kv_head = stream % batch.kv_heads;
  keys->first_token = batch.cu_seqlens[document];
  keys->length = batch.cu_seqlens[document + 1] - keys->first_token;
  keys->first_block = FirstBlock(batch, document);
  keys->first_m = keys->n * (kN / kM);
  keys->end_m = (keys->length + kM - 1) / kM;
  if (batch.window > 0) {
    keys->end_m = min(keys->end_m, (keys->n * kN + kN - 1 + batch.window - 1) / kM + 1);
  }
  return keys->n * kN < keys->length;
}

// How many thread blocks add to the block of queries m before this one.
__device__ __forceinline__ int Turn(const OrderedBatch& batch, const Keys& keys, int m) {
  return batch.window > 0 ? m * kM / kN - keys.n : keys.n;
}

// Calls visit(step, query head, m) for all that a thread block does.
template <typename Visit>
__device__ __forceinline__ void ForEachStep(const OrderedBatch& batch, const Keys& keys,
                                            const Visit& visit) {
  const int group = batch.heads / batch.kv_heads;
  int step = 0;
  for (int g = 0; g < group; ++g) {
    for (int m = keys.first_m; m < keys.end_m; ++m) visit(step++, keys.kv_head * group + g, m);
  }
}

// One thread: fetches tiles.
template <int kD>
__device__ __forceinline__ void Fetch(const Arguments& a, Shared<kD>& s, const Keys& keys) {
  constexpr int kRowBytes = kHalf * sizeof(Bf16);
  ArriveAndExpect(&s.keys_full, 2 * (kD / kHalf) * kN * kRowBytes);
  const int first_key = keys.first_token + keys.n * kN;
  for (int h = 0; h < kD / kHalf; ++h) {
    CopyBox(s.k[h], &a.k, h * kHalf, keys.kv_head, first_key, &s.keys_full);
    CopyBox(s.v[h], &a.v, h * kHalf, keys.kv_head, first_key, &s.keys_full);
  }
  ForEachStep(a.batch, keys, [&](int step, int head, int m) {
    const int stage = step % kStages, parity = step / kStages % 2 ^ 1;
    const int token = keys.first_token + m * kM;
    const int64_t row = (int64_t{head} * a.blocks + keys.first_block + m) * kM;
    constexpr int kBytes = (kD / kHalf) * kM * kRowBytes + kM * sizeof(float);
    WaitFor(&s.q_empty[stage], parity);
    ArriveAndExpect(&s.q_full[stage], kBytes);
    for (int h = 0; h < kD / kHalf; ++h) {
      CopyBox(s.q[stage][h], &a.q, h * kHalf, head, token, &s.q_full[stage]);
    }
    CopyBytes(s.lse[stage], a.workspace.lse + row, kM * sizeof(float), &s.q_full[stage]);
    WaitFor(&s.dout_empty[stage], parity);
    ArriveAndExpect(&s.dout_full[stage], kBytes);
    for (int h = 0; h < kD / kHalf; ++h) {
      CopyBox(s.dout[stage][h], &a.dout, h * kHalf, head, token, &s.dout_full[stage]);
    }
    CopyBytes(s.delta[stage], a.workspace.delta + row, kM * sizeof(float), &s.dout_full[stage]);
  });
}

// One thread for each stage: adds the queries' gradients to those in memory when it is their turn.
template <int kD>
__device__ __forceinline__ void SendQueryGradients(const Arguments& a, Shared<kD>& s,
                                                   const Keys& keys, int stage) {
  ForEachStep(a.batch, keys, [&](int step, int head, int m) {
    if (step % kStages != stage) return;
    const int64_t block = int64_t{head} * a.blocks + keys.first_block + m;
    float* to = a.workspace.dq + block * (kM * kD);
    int32_t* turn = a.workspace.turns + block;
    const int mine = Turn(a.batch, keys, m);
    WaitFor(&s.dq_full[stage], step / kStages % 2);
    if (mine == 0) {
      SendBytes(to, s.dq[stage], sizeof(s.dq[stage]));
    } else {
      int now;
      do {
        asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
      } while (now != mine);
      OrderGlobal();
      AddFloats(to, s.dq[stage], sizeof(s.dq[stage]));
    }
    EndSending();
    WaitUntilRead();
    Arrive(&s.dq_empty[stage]);
    WaitUntilThere();
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(turn), "r"(mine + 1) : "memory");
  });
}

// 2^x; what would be denormal is 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What a thread that multiplies is.
struct Place {
  int group;  // warp group: 64 of the keys, and half of the elements of dq
  int thread, warp, lane;
  int key;  // of the document: that of elements 0 and 1 of 4, the others have key + 8
};

// x^T [64 keys, M] of a stage, for a warp group's part of the keys or values: begins the products.
template <int kParts>
__device__ __forceinline__ void BeginScores(const Bf16 (&keys)[kParts][kN * kHalf],
                                            const Bf16 (&queries)[kParts][kM * kHalf], int group,
                                            float (&x)[32]) {
  BeginProducts();
#pragma unroll
  for (int i = 0; i < kParts * 4; ++i) {
    const int h = i / 4, column = i % 4 * 16;
    Multiply64<false, false>(x, DescribeRows(keys[h] + group * kM * kHalf + column),
                             DescribeRows(queries[h] + column), i > 0);
  }
  EndProducts();
}

// d [64 keys, kD] += a b, of dk and dv.
template <int kD>
__device__ __forceinline__ void AddProduct(float (&d)[kD / 2], const uint32_t* a, uint64_t b) {
  if constexpr (kD == 128) {
    Multiply128(d, a, b);
  } else {
    MultiplyFromRegisters64(d, a, b);
  }
}

// One block of queries.
template <int kD>
__device__ __forceinline__ void Step(const OrderedBatch& batch, Shared<kD>& s, const Keys& keys,
                                     const Place& place, int step, int m, float (&dk)[kD / 2],
                                     float (&dv)[kD / 2]) {
  const int stage = step % kStages, parity = step / kStages % 2;
  const int pair = place.lane % 4 * 2;
  float scores[32], dp[32];
  WaitFor(&s.q_full[stage], parity);
  BeginScores(s.k, s.q[stage], place.group, scores);
  WaitFor(&s.dout_full[stage], parity);
  BeginScores(s.v, s.dout[stage], place.group, dp);
  WaitForProducts<1>();  // scores

  // P, which is 0 where a query does not see a key, and behind the document's end.
  float p[32];
  uint32_t p_bf16[16];
  const int query = m * kM + pair;
  const bool hides = m * kM < keys.n * kN + kN - 1 ||
                     (batch.window > 0 && m * kM + kM - 1 >= keys.n * kN + batch.window);
  const float scale = batch.scale * kLog2E;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 lse = *reinterpret_cast<const float2*>(&s.lse[stage][8 * j + pair]);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      p[4 * j + e] = Exp2(fmaf(scores[4 * j + e], scale, e % 2 == 0 ? -lse.x : -lse.y));
      if (hides) {
        const int distance = query + 8 * j + e % 2 - (place.key + e / 2 * 8);
        if (distance < 0 || (batch.window > 0 && distance >= batch.window)) p[4 * j + e] = 0.0f;
      }
    }
    p_bf16[2 * j] = PackPair(p[4 * j], p[4 * j + 1]);
    p_bf16[2 * j + 1] = PackPair(p[4 * j + 2], p[4 * j + 3]);
  }

  // dv += P^T dout
  constexpr int kNextColumns = kM * kHalf * sizeof(Bf16);
  BeginProducts();
#pragma unroll
  for (int i = 0; i < kM / 16; ++i) {
    AddProduct<kD>(dv, p_bf16 + 4 * i,
                   DescribeColumns(s.dout[stage][0] + i * 16 * kHalf, kNextColumns));
  }
  EndProducts();
  WaitForProducts<1>();  // dp

  uint32_t s_bf16[16];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 delta = *reinterpret_cast<const float2*>(&s.delta[stage][8 * j + pair]);
    const float* of = p + 4 * j;
    s_bf16[2 * j] = PackPair(of[0] * (dp[4 * j] - delta.x), of[1] * (dp[4 * j + 1] - delta.y));
    s_bf16[2 * j + 1] =
        PackPair(of[2] * (dp[4 * j + 2] - delta.x), of[3] * (dp[4 * j + 3] - delta.y));
  }
  const int row = place.group * kM + place.warp * 16 + place.lane / 8 % 2 * 8 + place.lane % 8;
  const uint32_t address = SharedAddress(s.s[stage]) + row * kHalf * sizeof(Bf16);
#pragma unroll
  for (int i = 0; i < kM / 16; ++i) {
    const int piece = 2 * i + place.lane / 16;
    StoreMatrices(address + ((piece ^ row % 8) << 4), s_bf16 + 4 * i);
  }
  OrderShared();
  asm volatile("bar.sync 1, %0;" ::"n"(kMultiplying) : "memory");

  // dq = S K, dk += S^T q
  float dq[kD / 4];
  BeginProducts();
#pragma unroll
  for (int i = 0; i < kN / 16; ++i) {
    const uint64_t of_s = DescribeColumns(s.s[stage] + i * 16 * kHalf, kNextColumns);
    if constexpr (kD == 128) {
      Multiply64<true, true>(
          dq, of_s, DescribeColumns(s.k[place.group] + i * 16 * kHalf, kNextColumns), i > 0);
    } else {
      Multiply32(dq, of_s,
                 DescribeColumns(s.k[0] + i * 16 * kHalf + place.group * 32, kNextColumns), i > 0);
    }
  }
  EndProducts();
#pragma unroll
  for (int i = 0; i < kM / 16; ++i) {
    AddProduct<kD>(dk, s_bf16 + 4 * i,
                   DescribeColumns(s.q[stage][0] + i * 16 * kHalf, kNextColumns));
  }
  EndProducts();
  WaitForProducts<1>();  // dq

  WaitFor(&s.dq_empty[stage], parity ^ 1);
  float4* to = reinterpret_cast<float4*>(s.dq[stage]) + place.group * (kM * kD / 8) + place.thread;
#pragma unroll
  for (int j = 0; j < kD / 16; ++j) {
    to[j * 128] = make_float4(dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
  }
  OrderShared();
  Arrive(&s.dq_full[stage]);
  WaitForProducts<0>();
  if (place.lane == 0) {
    Arrive(&s.q_empty[stage]);
    Arrive(&s.dout_empty[stage]);
  }
}

// Two warp groups.
template <int kD>
__device__ __forceinline__ void MultiplyAll(const Arguments& a, Shared<kD>& s, const Keys& keys) {
  Place place;
  place.group = threadIdx.x / 128 - 1;
  place.thread = threadIdx.x % 128;
  place.warp = place.thread / 32;
  place.lane = place.thread % 32;
  place.key = keys.n * kN + place.group * kM + place.warp * 16 + place.lane / 4;
  float dk[kD / 2], dv[kD / 2];
#pragma unroll
  for (int i = 0; i < kD / 2; ++i) dk[i] = dv[i] = 0.0f;
  WaitFor(&s.keys_full, 0);
  ForEachStep(a.batch, keys,
              [&](int step, int, int m) { Step<kD>(a.batch, s, keys, place, step, m, dk, dv); });

  const float scale = a.batch.scale;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int key = place.key + half * 8;
    if (key >= keys.length) continue;
    const int64_t token = keys.first_token + key;
    const int column = keys.kv_head * kD + place.lane % 4 * 2;
    Bf16* to_k = static_cast<Bf16*>(a.dk.data) + token * a.dk.stride + column;
    Bf16* to_v = static_cast<Bf16*>(a.dv.data) + token * a.dv.stride + column;
#pragma unroll
    for (int j = 0; j < kD / 8; ++j) {
      const int i = 4 * j + 2 * half;
      *reinterpret_cast<uint32_t*>(to_k + 8 * j) = PackPair(dk[i] * scale, dk[i + 1] * scale);
      *reinterpret_cast<uint32_t*>(to_v + 8 * j) = PackPair(dv[i], dv[i + 1]);
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <int kD>
__global__ void __launch_bounds__(kThreads, 1) Backward(const __grid_constant__ Arguments a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint8_t bytes[];
  Shared<kD>& s = *reinterpret_cast<Shared<kD>*>((reinterpret_cast<uintptr_t>(bytes) + 1023) &
                                                 ~uintptr_t{1023});
  if (threadIdx.x == 0) {
    s.ticket = atomicAdd(a.workspace.ticket, 1);
    InitBarrier(&s.keys_full, 1);
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(&s.q_full[i], 1);
      InitBarrier(&s.dout_full[i], 1);
      InitBarrier(&s.q_empty[i], kMultiplying / 32);
      InitBarrier(&s.dout_empty[i], kMultiplying / 32);
      InitBarrier(&s.dq_full[i], kMultiplying);
      InitBarrier(&s.dq_empty[i], 1);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    OrderShared();
  }
  __syncthreads();
  Keys keys;
  if (!Locate(a, s.ticket, &keys)) return;
  if (threadIdx.x < 128) {
    GiveRegisters<kFewRegisters>();
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) Fetch(a, s, keys);
    if (threadIdx.x % 32 == 0 && warp >= 1 && warp <= kStages) {
      SendQueryGradients(a, s, keys, warp - 1);
    }
  } else {
    TakeRegisters<kManyRegisters>();
    MultiplyAll(a, s, keys);
  }
#else
  __trap();  // compiled for 9.0 without what Hopper alone has
#endif
}

// Boxes of `rows` tokens and half a head.
bool DescribeHeads(EncodeTiled encode, const ConstRows& of, const OrderedBatch& batch, int heads,
                   int rows, CUtensorMap* map) {
  const int size = batch.head_size;
  return Describe(encode, {of.data, {size, heads, batch.tokens}, size, of.stride, {kHalf, 1, rows}},
                  map);
}

template <int kD>
cudaError_t Launch(const Arguments& a, const OrderedOperands& operands, cudaStream_t stream) {
  constexpr int kSharedBytes = sizeof(Shared<kD>) + 1024;
  const OrderedBatch& batch = a.batch;
  const dim3 blocks(a.blocks, batch.heads);
  PrepareRows<kD>
      <<<blocks, 256, 0, stream>>>(batch, operands.out, operands.dout, operands.lse, a.workspace);
  const cudaError_t error =
      cudaFuncSetAttribute(Backward<kD>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  const int thread_blocks = a.key_blocks * batch.documents * batch.kv_heads;
  Backward<kD><<<thread_blocks, kThreads, kSharedBytes, stream>>>(a);
  FinishRows<kD><<<blocks, 256, 0, stream>>>(batch, a.workspace.dq, operands.dq);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchOrderedBackward(const OrderedBatch& batch, const OrderedOperands& operands,
                                  const OrderedWorkspace& workspace, cudaStream_t stream) {
  EncodeTiled encode = nullptr;
  if (const cudaError_t error = FindEncoder(&encode); error != cudaSuccess) return error;
  Arguments a;
  if (!DescribeHeads(encode, operands.q, batch, batch.heads, kM, &a.q) ||
      !DescribeHeads(encode, operands.dout, batch, batch.heads, kM, &a.dout) ||
      !DescribeHeads(encode, operands.k, batch, batch.kv_heads, kN, &a.k) ||
      !DescribeHeads(encode, operands.v, batch, batch.kv_heads, kN, &a.v)) {
    return cudaErrorInvalidValue;
  }
  a.batch = batch;
  a.workspace = workspace;
  a.dk = operands.dk;
  a.dv = operands.dv;
  a.blocks = static_cast<int>(batch.Blocks());
  a.key_blocks = static_cast<int>((batch.longest + kN - 1) / kN);
  return batch.head_size == 64 ? Launch<64>(a, operands, stream) : Launch<128>(a, operands, stream);
}

}  // namespace sft::engine::cuda
