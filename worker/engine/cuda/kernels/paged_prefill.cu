#include <type_traits>

#include "worker/engine/cuda/kernels/paged_tiles.cuh"

// Pieces of prompts: a block takes some tokens that follow each other and all query heads of a key
// head. Tiles of keys start at multiples of their size and are taken in order, and keys that a row
// does not see add nothing to it, so that a token's bits depend on its position and window alone.

namespace sft::engine::cuda {
namespace {

using paged::Bf16;

constexpr int kWarps = 4, kRows = 16 * kWarps, kStages = 2;

template <int kSize>
inline constexpr int kTile = kSize > 128 ? 32 : 64;
template <int kSize>
constexpr int PrefillSharedBytes() {
  return (kRows + kStages * 2 * kTile<kSize>)*paged::kRowElements<kSize> * 2;
}

// Tokens [first, end) of one request.
struct Segment {
  int64_t first, end;
};

template <int kSize>
class Block {
 public:
  __device__ Block(const PagedShape& shape, const Bf16* k_pages, const Bf16* v_pages,
                   const int32_t* tables, const int64_t* places, int64_t first_token, Bf16* memory)
      : shape_(shape),
        k_pages_(k_pages + blockIdx.y * kSize),
        v_pages_(v_pages + blockIdx.y * kSize),
        tables_(tables),
        places_(places),
        first_token_(first_token),
        tiles_(memory) {
    rows_.Start();
  }

  __device__ __forceinline__ paged::Rows<kSize>& rows() { return rows_; }

  __device__ void Take(Segment segment) {
    const int64_t last = places_[2 * segment.end - 1];
    const int64_t begin = paged::FirstSeen(places_[2 * segment.first + 1], shape_.window);
    int64_t begins[2], ends[2];
    FindRanges(segment, begins, ends);
    const int32_t most = __reduce_max_sync(kAllLanes, static_cast<int32_t>(max(ends[0], ends[1])));
    const int32_t* table = tables_ + places_[2 * segment.first] * shape_.table_width;
    const int64_t stride = static_cast<int64_t>(shape_.kv_heads) * kSize;
    const paged::HeadOfRequest keys{k_pages_, table, stride, shape_.page};
    const paged::HeadOfRequest values{v_pages_, table, stride, shape_.page};
    const float scale = shape_.scale * paged::kLog2E;
    const int64_t from = begin / kTile<kSize>, to = last / kTile<kSize>;
    Fetch(keys, values, from, last);
    for (int64_t tile = from; tile <= to; ++tile) {
      if (tile < to) {
        Fetch(keys, values, tile + 1, last);
      } else {
        EndGroup();
      }
      WaitForGroups<1>();
      __syncthreads();
      const Bf16* at = TileAt(tile);
      for (int first = 0; first < kTile<kSize>; first += 16) {
        const int64_t position = tile * kTile<kSize> + first;
        if (position > most) break;
        rows_.Take(at + first * paged::kRowElements<kSize>,
                   at + (kTile<kSize> + first) * paged::kRowElements<kSize>, position, begins, ends,
                   scale, lane_);
      }
      __syncthreads();
    }
    WaitForGroups<0>();
    __syncthreads();
  }

 private:
  __device__ __forceinline__ Bf16* TileAt(int64_t tile) const {
    return tiles_ + tile % kStages * 2 * kTile<kSize> * paged::kRowElements<kSize>;
  }
  __device__ __forceinline__ void Fetch(const paged::HeadOfRequest& keys,
                                        const paged::HeadOfRequest& values, int64_t tile,
                                        int64_t last) {
    const int64_t first = tile * kTile<kSize>;
    Bf16* to = TileAt(tile);
    const int thread = static_cast<int>(threadIdx.x);
    paged::CopyHeads<kSize>(to, keys, first, kTile<kSize>, last, thread, kWarps * kWarp);
    paged::CopyHeads<kSize>(to + kTile<kSize> * paged::kRowElements<kSize>, values, first,
                            kTile<kSize>, last, thread, kWarps * kWarp);
    EndGroup();
  }
  // What this lane's rows see of the segment's keys; end -1: they are not of the segment.
  __device__ __forceinline__ void FindRanges(Segment segment, int64_t (&begins)[2],
                                             int64_t (&ends)[2]) const {
    const int group = shape_.heads / shape_.kv_heads;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_ * 16 + lane_ / 4 + half * 8;
      const int64_t token = first_token_ + row / group;
      const bool inside =
          row < kRows / group * group && token >= segment.first && token < segment.end;
      ends[half] = inside ? places_[2 * token + 1] : -1;
      begins[half] = inside ? paged::FirstSeen(ends[half], shape_.window) : 0;
    }
  }

  const PagedShape& shape_;
  const Bf16 *k_pages_, *v_pages_;
  const int32_t* tables_;
  const int64_t* places_;
  int64_t first_token_;
  Bf16* tiles_;
  int warp_ = static_cast<int>(threadIdx.x) / kWarp, lane_ = static_cast<int>(threadIdx.x) % kWarp;
  paged::Rows<kSize> rows_;
};

template <int kSize>
__global__ void __launch_bounds__(kWarps* kWarp)
    AttendPieces(PagedShape shape, const Bf16* __restrict__ q, int64_t q_stride,
                 const Bf16* __restrict__ k_pages, const Bf16* __restrict__ v_pages,
                 const int32_t* __restrict__ tables, const int64_t* __restrict__ places,
                 Bf16* __restrict__ out, int64_t out_stride) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int group = shape.heads / shape.kv_heads, tokens = kRows / group;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * tokens;
  const int64_t end = min(shape.tokens, first + tokens);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp, lane = thread % kWarp;
  auto* queries = reinterpret_cast<Bf16*>(memory);
  const auto head_of = [&](int row) {
    return static_cast<int64_t>(blockIdx.y) * group + row % group;
  };
  for (int i = thread; i < kRows * kSize / 8; i += kWarps * kWarp) {
    const int row = i / (kSize / 8), piece = i % (kSize / 8);
    const bool there = row < tokens * group && first + row / group < end;
    const int64_t at = there ? (first + row / group) * q_stride + head_of(row) * kSize : 0;
    CopyAsync(queries + row * paged::kRowElements<kSize> + piece * 8, q + at + piece * 8, there);
  }
  EndGroup();
  WaitForGroups<0>();
  __syncthreads();
  Block<kSize> block(shape, k_pages, v_pages, tables, places, first,
                     queries + kRows * paged::kRowElements<kSize>);
  paged::Rows<kSize>& rows = block.rows();
  rows.LoadQueries(queries + warp * 16 * paged::kRowElements<kSize>, lane);
  for (int64_t token = first; token < end;) {
    int64_t next = token + 1;
    while (next < end && places[2 * next] == places[2 * token] && places[2 * next + 1] >= 0) ++next;
    if (places[2 * token + 1] >= 0) block.Take({token, next});
    token = next;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + lane / 4 + half * 8;
    const float weights = rows.Total(half);
    if (row >= tokens * group || first + row / group >= end) continue;
    // A row that sees nothing is padding.
    const float total = weights + paged::SinkWeight(shape, head_of(row), rows.largest[half]);
    const float inverse = weights > 0.0f ? 1.0f / total : 0.0f;
    Bf16* to = out + (first + row / group) * out_stride + head_of(row) * kSize + lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < kSize / 8; ++tile) {
      *reinterpret_cast<uint32_t*>(to + tile * 8) =
          PackPair(rows.sums[tile][half * 2] * inverse, rows.sums[tile][half * 2 + 1] * inverse);
    }
  }
}

template <int kSize>
cudaError_t Launch(const PagedShape& shape, ConstRows q, const void* k_pages, const void* v_pages,
                   const int32_t* tables, const int64_t* places, MutableRows out,
                   cudaStream_t stream) {
  constexpr int kBytes = PrefillSharedBytes<kSize>();
  if (const cudaError_t error = cudaFuncSetAttribute(
          AttendPieces<kSize>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      error != cudaSuccess) {
    return error;
  }
  const int64_t tokens = kRows / (shape.heads / shape.kv_heads);
  const dim3 blocks(static_cast<unsigned>((shape.tokens + tokens - 1) / tokens),
                    static_cast<unsigned>(shape.kv_heads));
  AttendPieces<kSize><<<blocks, kWarps * kWarp, kBytes, stream>>>(
      shape, static_cast<const Bf16*>(q.data), q.stride, static_cast<const Bf16*>(k_pages),
      static_cast<const Bf16*>(v_pages), tables, places, static_cast<Bf16*>(out.data), out.stride);
  return cudaGetLastError();
}

}  // namespace

bool HasPagedPrefill(const PagedShape& shape) {
  return shape.heads <= kRows * shape.kv_heads && paged::WithHeadSize(shape.size, [](auto) {});
}

cudaError_t LaunchPagedPrefill(const PagedShape& shape, ConstRows q, const void* k_pages,
                               const void* v_pages, const int32_t* tables, const int64_t* places,
                               MutableRows out, cudaStream_t stream) {
  cudaError_t result = cudaErrorInvalidValue;
  paged::WithHeadSize(shape.size, [&](auto size) {
    result = Launch<decltype(size)::value>(shape, q, k_pages, v_pages, tables, places, out, stream);
  });
  return result;
}

}  // namespace sft::engine::cuda
