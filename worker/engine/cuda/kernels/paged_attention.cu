#include <cmath>

#include "worker/engine/cuda/kernels/paged_attention.h"
#include "worker/engine/cuda/kernels/vec.cuh"

// One block for each token and query head. Warp w takes every kWarps-th key from the w-th that the
// token sees, counted from a multiple of kWarps, and the warps' sums are joined in their order: the
// bits depend on the token's position and window alone.

namespace sft::engine::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMostOfLane = kMostPagedHead / kWarp;

// Elements lane, lane + 32, ... of a head.
template <typename T>
__device__ __forceinline__ void LoadHead(const T* head, int size, float (&x)[kMostOfLane]) {
#pragma unroll
  for (int i = 0; i < kMostOfLane; ++i) {
    const int at = i * kWarp + static_cast<int>(threadIdx.x) % kWarp;
    x[i] = at < size ? ToFloat(head[at]) : 0.0f;
  }
}

__device__ __forceinline__ float SumOfWarp(float x) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, distance);
  }
  return x;
}

template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp)
    Attend(PagedShape shape, const T* __restrict__ q, int64_t q_stride,
           const T* __restrict__ k_pages, const T* __restrict__ v_pages,
           const int32_t* __restrict__ tables, const int64_t* __restrict__ places,
           T* __restrict__ out, int64_t out_stride) {
  __shared__ float sums[kWarps][kMostPagedHead];
  __shared__ float largests[kWarps], totals[kWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t token = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (shape.heads / shape.kv_heads);
  const int32_t* table = tables + places[2 * token] * shape.table_width;
  const int64_t last = places[2 * token + 1];
  const int64_t first = shape.window > 0 ? max(int64_t{0}, last + 1 - shape.window) : 0;
  T* row = out + token * out_stride + static_cast<int64_t>(head) * shape.size;
  if (last < 0) {  // padding
    for (int i = static_cast<int>(threadIdx.x); i < shape.size; i += kWarps * kWarp) {
      row[i] = FromFloat<T>(0.0f);
    }
    return;
  }
  float query[kMostOfLane], key[kMostOfLane], sum[kMostOfLane] = {};
  LoadHead(q + token * q_stride + static_cast<int64_t>(head) * shape.size, shape.size, query);
  float largest = -INFINITY, total = 0.0f;
  for (int64_t position = first / kWarps * kWarps + warp; position <= last; position += kWarps) {
    if (position < first) continue;
    const int64_t slot =
        static_cast<int64_t>(table[position / shape.page]) * shape.page + position % shape.page;
    const int64_t at = (slot * shape.kv_heads + kv_head) * shape.size;
    LoadHead(k_pages + at, shape.size, key);
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < kMostOfLane; ++i) dot += query[i] * key[i];
    const float score = shape.scale * SumOfWarp(dot);
    const float now = fmaxf(largest, score);
    const float kept = expf(largest - now), weight = expf(score - now);
    largest = now;
    total = total * kept + weight;
    LoadHead(v_pages + at, shape.size, key);
#pragma unroll
    for (int i = 0; i < kMostOfLane; ++i) sum[i] = sum[i] * kept + weight * key[i];
  }
#pragma unroll
  for (int i = 0; i < kMostOfLane; ++i) sums[warp][i * kWarp + lane] = sum[i];
  if (lane == 0) {
    largests[warp] = largest;
    totals[warp] = total;
  }
  __syncthreads();
  float most = -INFINITY;
  for (int w = 0; w < kWarps; ++w) most = fmaxf(most, largests[w]);
  float whole = 0.0f;
  for (int w = 0; w < kWarps; ++w) whole += totals[w] * expf(largests[w] - most);
  if (shape.sinks != nullptr) whole += expf(shape.sinks[head] - most);
  for (int i = static_cast<int>(threadIdx.x); i < shape.size; i += kWarps * kWarp) {
    float x = 0.0f;
    for (int w = 0; w < kWarps; ++w) x += sums[w][i] * expf(largests[w] - most);
    row[i] = FromFloat<T>(x / whole);
  }
}

template <typename T>
cudaError_t Launch(const PagedShape& shape, ConstRows q, const void* k_pages, const void* v_pages,
                   const int32_t* tables, const int64_t* places, MutableRows out,
                   cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(shape.tokens), static_cast<unsigned>(shape.heads));
  Attend<T><<<blocks, kWarps * kWarp, 0, stream>>>(
      shape, static_cast<const T*>(q.data), q.stride, static_cast<const T*>(k_pages),
      static_cast<const T*>(v_pages), tables, places, static_cast<T*>(out.data), out.stride);
  return cudaGetLastError();
}

// T: as much of a row as one access moves.
template <typename T>
__global__ void CopyRows(int64_t width, const int64_t* __restrict__ slots, ConstRows keys,
                         ConstRows values, T* __restrict__ k_pages, T* __restrict__ v_pages) {
  const int64_t row = blockIdx.x, slot = slots[row];
  const T* key = static_cast<const T*>(keys.data) + row * keys.stride;
  const T* value = static_cast<const T*>(values.data) + row * values.stride;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    k_pages[slot * width + i] = key[i];
    v_pages[slot * width + i] = value[i];
  }
}

template <typename T>
cudaError_t Copy(int64_t rows, int64_t width, const int64_t* slots, ConstRows keys,
                 ConstRows values, void* k_pages, void* v_pages, cudaStream_t stream) {
  CopyRows<<<static_cast<unsigned>(rows), 128, 0, stream>>>(
      width, slots, keys, values, static_cast<T*>(k_pages), static_cast<T*>(v_pages));
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchWritePages(ElementType type, int64_t rows, int64_t width, const int64_t* slots,
                             ConstRows keys, ConstRows values, void* k_pages, void* v_pages,
                             cudaStream_t stream) {
  if (type == ElementType::kFloat32) {
    return Copy<float>(rows, width, slots, keys, values, k_pages, v_pages, stream);
  }
  const bool wide = width % 8 == 0 && RowsAreWide<__nv_bfloat16>(keys.data, keys.stride) &&
                    RowsAreWide<__nv_bfloat16>(values.data, values.stride);
  if (!wide) {
    return Copy<__nv_bfloat16>(rows, width, slots, keys, values, k_pages, v_pages, stream);
  }
  return Copy<uint4>(rows, width / 8, slots, {keys.data, keys.stride / 8},
                     {values.data, values.stride / 8}, k_pages, v_pages, stream);
}

cudaError_t LaunchPagedAttention(ElementType type, const PagedShape& shape, ConstRows q,
                                 const void* k_pages, const void* v_pages, const int32_t* tables,
                                 const int64_t* places, MutableRows out, cudaStream_t stream) {
  if (type == ElementType::kFloat32) {
    return Launch<float>(shape, q, k_pages, v_pages, tables, places, out, stream);
  }
  return Launch<__nv_bfloat16>(shape, q, k_pages, v_pages, tables, places, out, stream);
}

}  // namespace sft::engine::cuda
