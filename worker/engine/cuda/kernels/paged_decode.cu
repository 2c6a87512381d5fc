#include <algorithm>
#include <type_traits>

#include "worker/engine/cuda/kernels/early.cuh"
#include "worker/engine/cuda/kernels/paged_tiles.cuh"

// Single tokens against their keys, of which one block takes a chunk: few tokens then keep the
// whole GPU busy. Chunks and the tiles within start at multiples of their size, and their
// sums are joined in their order, so that a token's bits depend on its position and window alone.

namespace sft::engine::cuda {
namespace {

using paged::Bf16;

constexpr int kWarps = 4, kTile = 16, kStages = 2;
constexpr int kRows = 16;  // query heads of a key head, at most

// Keys of a chunk. Tokens that see little have small chunks, each done sooner.
constexpr int64_t kShort = 1024, kShortChunk = 128, kLongChunk = 256;
__device__ __forceinline__ int64_t ChunkOf(int64_t position) {
  return position < kShort ? kShortChunk : kLongChunk;
}

// Sums of one chunk, of [tokens, heads, chunks]: values [.., size], and the largest score beside
// the sum of weights.
struct Partials {
  float* sums;
  float2* ends;
  int64_t chunks;
};

template <int kSize>
inline constexpr int kTileElements = kTile * paged::kRowElements<kSize>;
template <int kSize>
constexpr int DecodeSharedBytes() {
  return (kRows * paged::kRowElements<kSize> + kWarps * kStages * 2 * kTileElements<kSize>)*2;
}

template <int kSize>
__global__ void __launch_bounds__(kWarps* kWarp)
    AttendChunk(PagedShape shape, const Bf16* __restrict__ q, int64_t q_stride,
                const Bf16* __restrict__ k_pages, const Bf16* __restrict__ v_pages,
                const int32_t* __restrict__ tables, const int64_t* __restrict__ places,
                Partials partials) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int64_t token = blockIdx.z, chunk = blockIdx.x;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int64_t last = places[2 * token + 1];
  const int64_t seen_from = paged::FirstSeen(last, shape.window);
  const int64_t size = ChunkOf(last), first = chunk * size;
  if (last < first || seen_from >= first + size) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  const int group = shape.heads / shape.kv_heads;
  const int32_t* table = tables + places[2 * token] * shape.table_width;
  const int64_t stride = static_cast<int64_t>(shape.kv_heads) * kSize;
  const paged::HeadOfRequest keys{k_pages + kv_head * kSize, table, stride, shape.page};
  const paged::HeadOfRequest values{v_pages + kv_head * kSize, table, stride, shape.page};

  auto* queries = reinterpret_cast<Bf16*>(memory);
  Bf16* own = queries + kRows * paged::kRowElements<kSize> +
              warp * kStages * 2 * kTileElements<kSize>;  // of this warp
  for (int i = thread; i < kRows * kSize / 8; i += kWarps * kWarp) {
    const int row = i / (kSize / 8), piece = i % (kSize / 8);
    const int head = kv_head * group + (row < group ? row : 0);
    CopyAsync(queries + row * paged::kRowElements<kSize> + piece * 8,
              q + token * q_stride + static_cast<int64_t>(head) * kSize + piece * 8, row < group);
  }
  EndGroup();

  const int64_t end = min(last, first + size - 1);
  const auto first_of = [&](int step) { return first + (step * kWarps + warp) * kTile; };
  const auto fetch = [&](int step) {
    if (first_of(step) <= end) {
      Bf16* to = own + step % kStages * 2 * kTileElements<kSize>;
      paged::CopyHeads<kSize>(to, keys, first_of(step), kTile, end, lane, kWarp);
      paged::CopyHeads<kSize>(to + kTileElements<kSize>, values, first_of(step), kTile, end, lane,
                              kWarp);
    }
    EndGroup();
  };
  fetch(0);
  WaitForGroups<1>();
  __syncthreads();
  paged::Rows<kSize> rows;
  rows.Start();
  rows.LoadQueries(queries, lane);
  const int64_t begins[2] = {seen_from, seen_from}, ends[2] = {end, end};
  const float scale = shape.scale * paged::kLog2E;
  for (int step = 0; step < size / (kWarps * kTile); ++step) {
    fetch(step + 1);
    WaitForGroups<1>();
    __syncwarp();
    if (first_of(step) <= end) {
      const Bf16* at = own + step % kStages * 2 * kTileElements<kSize>;
      rows.Take(at, at + kTileElements<kSize>, first_of(step), begins, ends, scale, lane);
    }
    __syncwarp();
  }
  WaitForGroups<0>();
  __syncthreads();

  // The warps' sums, joined in their order.
  auto* sums = reinterpret_cast<float*>(memory);  // [kWarps, kRows, kSize]
  __shared__ float largests[kWarps][kRows], totals[kWarps][kRows];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    const float total = rows.Total(half);
    if (lane % 4 == 0) {
      largests[warp][row] = rows.largest[half];
      totals[warp][row] = total;
    }
    if (row >= group) continue;
#pragma unroll
    for (int tile = 0; tile < kSize / 8; ++tile) {
      float* to = sums + (warp * kRows + row) * kSize + tile * 8 + lane % 4 * 2;
      to[0] = rows.sums[tile][half * 2];
      to[1] = rows.sums[tile][half * 2 + 1];
    }
  }
  __syncthreads();
  for (int i = thread; i < group * kSize; i += kWarps * kWarp) {
    const int row = i / kSize, column = i % kSize;
    float most = -INFINITY;
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, largests[w][row]);
    float sum = 0.0f, whole = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      const float weight = exp2f(largests[w][row] - most);
      sum += sums[(w * kRows + row) * kSize + column] * weight;
      whole += totals[w][row] * weight;
    }
    const int64_t at = (token * shape.heads + kv_head * group + row) * partials.chunks + chunk;
    partials.sums[at * kSize + column] = sum;
    if (column == 0) partials.ends[at] = make_float2(most, whole);
  }
}

template <int kSize>
__global__ void __launch_bounds__(kSize)
    JoinChunks(PagedShape shape, const int64_t* __restrict__ places, Partials partials,
               Bf16* __restrict__ out, int64_t out_stride) {
  const int64_t token = blockIdx.y, head = blockIdx.x;
  LetNextStart();
  const int column = static_cast<int>(threadIdx.x);
  const int64_t last = places[2 * token + 1];
  Bf16& result = out[token * out_stride + head * kSize + column];
  if (last < 0) {
    result = __float2bfloat16_rn(0.0f);
    return;
  }
  const int64_t row = (token * shape.heads + head) * partials.chunks;
  const int64_t size = ChunkOf(last);
  const int64_t begin = paged::FirstSeen(last, shape.window) / size, end = last / size;
  float most = -INFINITY;
  for (int64_t chunk = begin; chunk <= end; ++chunk) {
    most = fmaxf(most, partials.ends[row + chunk].x);
  }
  float sum = 0.0f, whole = paged::SinkWeight(shape, head, most);
  for (int64_t chunk = begin; chunk <= end; ++chunk) {
    const float2 ends = partials.ends[row + chunk];
    const float weight = exp2f(ends.x - most);
    sum += partials.sums[(row + chunk) * kSize + column] * weight;
    whole += ends.y * weight;
  }
  result = __float2bfloat16_rn(sum / whole);
}

template <int kSize>
cudaError_t Launch(const PagedShape& shape, ConstRows q, const void* k_pages, const void* v_pages,
                   const int32_t* tables, const int64_t* places, Partials partials, MutableRows out,
                   cudaStream_t stream) {
  constexpr int kBytes = DecodeSharedBytes<kSize>();
  static_assert(kBytes >= kWarps * kRows * kSize * 4);
  if (const cudaError_t error = cudaFuncSetAttribute(
          AttendChunk<kSize>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      error != cudaSuccess) {
    return error;
  }
  const auto tokens = static_cast<unsigned>(shape.tokens);
  const dim3 blocks(static_cast<unsigned>(partials.chunks), static_cast<unsigned>(shape.kv_heads),
                    tokens);
  AttendChunk<kSize><<<blocks, kWarps * kWarp, kBytes, stream>>>(
      shape, static_cast<const Bf16*>(q.data), q.stride, static_cast<const Bf16*>(k_pages),
      static_cast<const Bf16*>(v_pages), tables, places, partials);
  JoinChunks<kSize><<<dim3(static_cast<unsigned>(shape.heads), tokens), kSize, 0, stream>>>(
      shape, places, partials, static_cast<Bf16*>(out.data), out.stride);
  return cudaGetLastError();
}

int64_t ChunksOf(const PagedShape& shape) {
  const int64_t most = shape.table_width * shape.page;
  return std::max((std::min(most, kShort) + kShortChunk - 1) / kShortChunk,
                  (most + kLongChunk - 1) / kLongChunk);
}

}  // namespace

int64_t PagedDecodeScratch(const PagedShape& shape) {
  if (shape.heads > kRows * shape.kv_heads) return 0;
  // GPUs other than those of data centres have less shared memory than large heads take.
  int bytes = 0;
  const bool has = paged::WithHeadSize(
      shape.size, [&](auto size) { bytes = DecodeSharedBytes<decltype(size)::value>(); });
  constexpr int kStatic = 2 * kWarps * kRows * 4;
  if (!has || bytes + kStatic > CurrentDevice().block_shared_bytes) return 0;
  return shape.tokens * shape.heads * ChunksOf(shape) * (shape.size + 2);
}

cudaError_t LaunchPagedDecode(const PagedShape& shape, ConstRows q, const void* k_pages,
                              const void* v_pages, const int32_t* tables, const int64_t* places,
                              float* scratch, MutableRows out, cudaStream_t stream) {
  const int64_t chunks = ChunksOf(shape), rows = shape.tokens * shape.heads * chunks;
  const Partials partials{scratch + 2 * rows, reinterpret_cast<float2*>(scratch), chunks};
  cudaError_t result = cudaErrorInvalidValue;
  paged::WithHeadSize(shape.size, [&](auto size) {
    result = Launch<decltype(size)::value>(shape, q, k_pages, v_pages, tables, places, partials,
                                           out, stream);
  });
  return result;
}

}  // namespace sft::engine::cuda
