// The gated delta rule from chunk to chunk. A block has a document, a value head and some columns
// of its state, which it holds in registers in fp32; a copy in bf16 lies in shared memory, where
// products read it. While a chunk is computed, what the next one needs is on its way.
#include "worker/engine/cuda/kernels/delta_tiles.cuh"
#include "worker/engine/cuda/kernels/early.cuh"

namespace sft::engine::cuda {
namespace {

using namespace delta;

// What a chunk brings along.
template <int kSize, int kColumns>
struct Stage {
  Bf16 q[kChunk * kPitch<kSize>], k[kChunk * kPitch<kSize>], w[kChunk * kPitch<kSize>];
  Bf16 p[kChunk * kPitch<kChunk>];
  Bf16 x[kChunk * kPitch<kColumns>];  // forward: U; backward: dO
  float from[kChunk], to[kChunk];
};

template <int kSize, int kColumns>
struct ScanShared {
  Stage<kSize, kColumns> stages[2];
  Bf16 state[kSize * kPitch<kColumns>];
  Bf16 first[kChunk * kPitch<kColumns>], second[kChunk * kPitch<kColumns>];
};

template <int kColumns>
inline constexpr int kScanThreads = kColumns / 32 * 4 * kWarp;

// The work of a block: chunks [begin, end) of a document, within the range of slots.
struct Chunks {
  int64_t begin = 0, end = 0;
  int64_t first_slot = 0;   // the document's, counted from the range's begin
  int64_t first_token = 0;  // the document's
  int64_t length = 0;       // of the document
  bool comes = false;       // began before the range
  bool goes_on = false;     // behind the range
  __device__ int Count(int64_t chunk) const {
    const int64_t left = length - chunk * kChunk;
    return static_cast<int>(left < kChunk ? left : kChunk);
  }
};

__device__ __forceinline__ Chunks ChunksOf(const DocumentList& list, int64_t document,
                                           const DeltaRange& range) {
  Chunks chunks;
  chunks.first_token = list.cu_seqlens[document];
  chunks.length = list.cu_seqlens[document + 1] - chunks.first_token;
  const int64_t slot = FirstSlot(list.cu_seqlens, document);
  const int64_t all = (chunks.length + kChunk - 1) / kChunk;
  chunks.first_slot = slot - range.begin;
  chunks.begin = slot < range.begin ? range.begin - slot : 0;
  chunks.end = slot + all > range.end ? range.end - slot : all;
  chunks.comes = chunks.begin > 0;
  chunks.goes_on = chunks.end < all;
  return chunks;
}

// A warp has 32 columns of the state and a quarter of its rows.
template <int kSize, int kColumns>
class Scan {
 public:
  static constexpr int kThreads = kScanThreads<kColumns>;
  static constexpr int kBands = kSize / 64;  // of 16 rows of the state
  using Shared = ScanShared<kSize, kColumns>;
  using Staged = Stage<kSize, kColumns>;

  __device__ Scan(const DeltaShape& shape, const DeltaSlots& slots, Shared& shared)
      : slots_(slots),
        shared_(shared),
        key_heads_(shape.key_heads),
        value_heads_(shape.value_heads),
        head_(static_cast<int>(blockIdx.y)),
        key_head_(head_ / (shape.value_heads / shape.key_heads)),
        first_column_(static_cast<int>(blockIdx.z) * kColumns),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        column_(warp_ / 4 * 32),
        token_(warp_ % 4 * 16),
        row_(warp_ % 4 * (kSize / 4)) {}

  __device__ int64_t ValueSlot(int64_t slot) const { return slot * value_heads_ + head_; }
  __device__ int first_column() const { return first_column_; }
  __device__ int head() const { return head_; }

  // Starts to load all but `x`.
  __device__ __forceinline__ void Fetch(Staged& stage, int64_t slot, bool with_q) const {
    const int64_t key_slot = slot * key_heads_ + key_head_, value_slot = ValueSlot(slot);
    const int64_t keys = key_slot * kChunk * kSize, values = value_slot * kChunk * kSize;
    if (with_q) {
      CopyTile<kSize, kThreads>(stage.q, slots_.q + keys, kSize, kChunk, kChunk);
      CopyTile<kChunk, kThreads>(stage.p, slots_.p + value_slot * kChunk * kChunk, kChunk, kChunk,
                                 kChunk);
    }
    CopyTile<kSize, kThreads>(stage.k, slots_.k + keys, kSize, kChunk, kChunk);
    CopyTile<kSize, kThreads>(stage.w, slots_.w + values, kSize, kChunk, kChunk);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < 2 * kChunk / 4) {  // `to` lies behind `from` in both
      CopyAsync(stage.from + thread * 4, slots_.decays + value_slot * 2 * kChunk + thread * 4,
                true);
    }
  }

  __device__ __forceinline__ void ClearState() {
#pragma unroll
    for (auto& band : state_) {
#pragma unroll
      for (auto& tile : band) {
#pragma unroll
        for (float& x : tile) x = 0.0f;
      }
    }
  }
  // Reads the state from fp32 [value heads, kSize, kSize], or writes it there.
  __device__ __forceinline__ void LoadState(const float* from) {
    ForState([&](int row, int column, float& low, float& high) {
      const float2 pair = *reinterpret_cast<const float2*>(from + StateAt(row, column));
      low = pair.x, high = pair.y;
    });
  }
  __device__ __forceinline__ void SaveState(float* to) {
    ForState([&](int row, int column, float& low, float& high) {
      *reinterpret_cast<float2*>(to + StateAt(row, column)) = make_float2(low, high);
    });
  }
  __device__ __forceinline__ void ShareState() {
    ForState([&](int row, int column, float& low, float& high) {
      StorePair(shared_.state + row * kPitch<kColumns> + column, low, high);
    });
  }
  // Copies the shared state to a slot's.
  __device__ __forceinline__ void KeepState(Bf16* to) const {
    constexpr int kPieces = kColumns / 8;
    for (int i = static_cast<int>(threadIdx.x); i < kSize * kPieces; i += kThreads) {
      const int row = i / kPieces, column = i % kPieces * 8;
      *reinterpret_cast<uint4*>(to + row * kSize + first_column_ + column) =
          *reinterpret_cast<const uint4*>(shared_.state + row * kPitch<kColumns> + column);
    }
  }

  // The output, or N and the state, of a chunk, and the state after it. out: the chunk's first
  // token's and head's output, of `count` tokens.
  template <bool kWritesOut>
  __device__ __forceinline__ void Forward(const Staged& stage, int64_t slot, Bf16* out,
                                          int64_t out_stride, int count) {
    constexpr int kStatePitch = kPitch<kColumns>;
    const int64_t value_slot = ValueSlot(slot);
    if constexpr (!kWritesOut) KeepState(slots_.state + value_slot * kSize * kSize);
    const Bf16* state = shared_.state + column_;
    float values[4][4] = {};  // W S, then N
    Multiply<Stored::kRows, Stored::kRows, kSize>(values, stage.w + token_ * kPitch<kSize>,
                                                  kPitch<kSize>, state, kStatePitch);
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 u =
            LoadPair(stage.x + (token_ + RowOf(half)) * kStatePitch + column_ + ColumnOf(tile));
        values[tile][2 * half] = u.x - values[tile][2 * half];
        values[tile][2 * half + 1] = u.y - values[tile][2 * half + 1];
      }
    }
    const int first = token_ + RowOf(0), second = token_ + RowOf(1);
    Bf16* at_token = shared_.second + token_ * kStatePitch + column_;
    StoreSums(at_token, kStatePitch, values, stage.to[first], stage.to[second]);
    float results[4][4] = {};
    if constexpr (kWritesOut) {
      StoreSums(shared_.first + token_ * kStatePitch + column_, kStatePitch, values);
      Multiply<Stored::kRows, Stored::kRows, kSize>(results, stage.q + token_ * kPitch<kSize>,
                                                    kPitch<kSize>, state, kStatePitch);
      const float scale = rsqrtf(static_cast<float>(kSize));
      const float scales[2] = {scale * stage.from[first], scale * stage.from[second]};
#pragma unroll
      for (auto& tile : results) {
#pragma unroll
        for (int i = 0; i < 4; ++i) tile[i] *= scales[i / 2];
      }
    } else {
      StoreSums(slots_.values + (value_slot * kChunk + token_) * kSize + first_column_ + column_,
                kSize, values);
    }
    __syncthreads();  // all have read the state; N is there
    if constexpr (kWritesOut) {
      Multiply<Stored::kRows, Stored::kRows, kChunk>(results, stage.p + token_ * kPitch<kChunk>,
                                                     kPitch<kChunk>, shared_.first + column_,
                                                     kStatePitch);
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        Bf16* to = out + first_column_ + column_ + ColumnOf(tile);
        if (first < count) StorePair(to + first * out_stride, results[tile][0], results[tile][1]);
        if (second < count) {
          StorePair(to + second * out_stride, results[tile][2], results[tile][3]);
        }
      }
    }
    ScaleState(stage.from[kChunk - 1]);
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
      Multiply<Stored::kColumns, Stored::kRows, kChunk>(state_[band], stage.k + row_ + band * 16,
                                                        kPitch<kSize>, shared_.second + column_,
                                                        kStatePitch);
    }
    ShareState();
  }

  // dN and the gradient of the state after a chunk, which becomes that of the one before it.
  __device__ __forceinline__ void Backward(const Staged& stage, int64_t slot) {
    constexpr int kStatePitch = kPitch<kColumns>;
    const int64_t value_slot = ValueSlot(slot);
    KeepState(slots_.dstate + value_slot * kSize * kSize);
    float values[4][4] = {};
    Multiply<Stored::kRows, Stored::kRows, kSize>(values, stage.k + token_ * kPitch<kSize>,
                                                  kPitch<kSize>, shared_.state + column_,
                                                  kStatePitch);
    const int first = token_ + RowOf(0), second = token_ + RowOf(1);
#pragma unroll
    for (auto& tile : values) {
#pragma unroll
      for (int i = 0; i < 4; ++i) tile[i] *= stage.to[i < 2 ? first : second];
    }
    Multiply<Stored::kColumns, Stored::kRows, kChunk>(values, stage.p + token_, kPitch<kChunk>,
                                                      stage.x + column_, kStatePitch);
    StoreSums(slots_.dvalues + (value_slot * kChunk + token_) * kSize + first_column_ + column_,
              kSize, values);
    StoreSums(shared_.first + token_ * kStatePitch + column_, kStatePitch, values, -1.0f, -1.0f);
    const float scale = rsqrtf(static_cast<float>(kSize));
    for (int i = static_cast<int>(threadIdx.x); i < kChunk * kColumns / 2; i += kThreads) {
      const int token = i / (kColumns / 2), at = token * kStatePitch + i % (kColumns / 2) * 2;
      const float2 pair = LoadPair(stage.x + at);
      const float factor = scale * stage.from[token];
      StorePair(shared_.second + at, pair.x * factor, pair.y * factor);
    }
    __syncthreads();  // all have read the state; dN and the scaled dO are there
    ScaleState(stage.from[kChunk - 1]);
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
      Multiply<Stored::kColumns, Stored::kRows, kChunk>(state_[band], stage.q + row_ + band * 16,
                                                        kPitch<kSize>, shared_.second + column_,
                                                        kStatePitch);
      Multiply<Stored::kColumns, Stored::kRows, kChunk>(state_[band], stage.w + row_ + band * 16,
                                                        kPitch<kSize>, shared_.first + column_,
                                                        kStatePitch);
    }
    ShareState();
  }

 private:
  // Calls visit(row, column of the block's, value, the next value) for this lane's values.
  template <typename Visit>
  __device__ __forceinline__ void ForState(const Visit& visit) {
#pragma unroll
    for (int band = 0; band < kBands; ++band) {
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          visit(row_ + band * 16 + RowOf(half), column_ + ColumnOf(tile),
                state_[band][tile][2 * half], state_[band][tile][2 * half + 1]);
        }
      }
    }
  }
  __device__ __forceinline__ int64_t StateAt(int row, int column) const {
    return (static_cast<int64_t>(head_) * kSize + row) * kSize + first_column_ + column;
  }
  __device__ __forceinline__ void ScaleState(float factor) {
    ForState([&](int, int, float& low, float& high) { low *= factor, high *= factor; });
  }

  const DeltaSlots& slots_;
  Shared& shared_;
  int key_heads_, value_heads_, head_, key_head_;
  int first_column_;  // of the state, the block's
  int warp_;
  int column_;  // of the block's columns, the warp's first
  int token_;   // the warp's first, of a chunk
  int row_;     // of the state, the warp's first
  float state_[kBands][4][4];
};

template <int kSize, int kColumns, bool kWritesOut>
__global__ void __launch_bounds__(kScanThreads<kColumns>)
    ScanKernel(const __grid_constant__ DeltaShape shape, const __grid_constant__ DeltaSlots slots,
               DeltaRange range, const float* before, float* after, MutableRows out) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Chunks chunks = ChunksOf(shape.documents, blockIdx.x, range);
  if (chunks.begin >= chunks.end) return;
  auto& shared = *reinterpret_cast<ScanShared<kSize, kColumns>*>(memory);
  Scan<kSize, kColumns> scan(shape, slots, shared);
  const auto fetch = [&](int64_t chunk) {
    auto& stage = shared.stages[chunk % 2];
    const int64_t slot = chunks.first_slot + chunk;
    scan.Fetch(stage, slot, kWritesOut);
    CopyTile<kColumns, kScanThreads<kColumns>>(
        stage.x, slots.u + scan.ValueSlot(slot) * kChunk * kSize + scan.first_column(), kSize,
        kChunk, kChunk);
    EndGroup();
  };
  fetch(chunks.begin);
  scan.ClearState();
  if (chunks.comes) scan.LoadState(before);
  scan.ShareState();
  for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
    WaitForGroups<0>();
    __syncthreads();  // the chunk and the state are there, and nobody reads the chunk before
    if (chunk + 1 < chunks.end) fetch(chunk + 1);
    Bf16* to = nullptr;
    if constexpr (kWritesOut) {
      to = static_cast<Bf16*>(out.data) + (chunks.first_token + chunk * kChunk) * out.stride +
           static_cast<int64_t>(scan.head()) * kSize;
    }
    scan.template Forward<kWritesOut>(shared.stages[chunk % 2], chunks.first_slot + chunk, to,
                                      out.stride, chunks.Count(chunk));
  }
  if (chunks.goes_on) scan.SaveState(after);
}

template <int kSize, int kColumns>
__global__ void __launch_bounds__(kScanThreads<kColumns>)
    ScanBackwardKernel(const __grid_constant__ DeltaShape shape,
                       const __grid_constant__ DeltaSlots slots, DeltaRange range,
                       const float* after, float* before, ConstRows dout) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Chunks chunks = ChunksOf(shape.documents, blockIdx.x, range);
  if (chunks.begin >= chunks.end) return;
  auto& shared = *reinterpret_cast<ScanShared<kSize, kColumns>*>(memory);
  Scan<kSize, kColumns> scan(shape, slots, shared);
  const auto fetch = [&](int64_t chunk) {
    auto& stage = shared.stages[chunk % 2];
    scan.Fetch(stage, chunks.first_slot + chunk, /*with_q=*/true);
    CopyTile<kColumns, kScanThreads<kColumns>>(
        stage.x,
        static_cast<const Bf16*>(dout.data) + (chunks.first_token + chunk * kChunk) * dout.stride +
            static_cast<int64_t>(scan.head()) * kSize + scan.first_column(),
        dout.stride, kChunk, chunks.Count(chunk));
    EndGroup();
  };
  fetch(chunks.end - 1);
  scan.ClearState();
  if (chunks.goes_on) scan.LoadState(after);
  scan.ShareState();
  for (int64_t chunk = chunks.end - 1; chunk >= chunks.begin; --chunk) {
    WaitForGroups<0>();
    __syncthreads();  // the chunk and the state are there, and nobody reads the chunk behind
    if (chunk > chunks.begin) fetch(chunk - 1);
    scan.Backward(shared.stages[chunk % 2], chunks.first_slot + chunk);
  }
  if (chunks.comes) scan.SaveState(before);
}

// Columns of a block: few where there would be too few blocks for the GPU, or too little shared
// memory. A column's bits do not depend on it.
template <int kSize>
bool TakesWideBlocks(const DeltaShape& shape) {
  const int64_t blocks =
      static_cast<int64_t>(shape.documents.documents) * shape.value_heads * (kSize / 64);
  return blocks >= Multiprocessors() &&
         CurrentDevice().block_shared_bytes >= static_cast<int>(sizeof(ScanShared<kSize, 64>));
}

template <int kSize, int kColumns, typename Kernel, typename... Arguments>
cudaError_t Launch(Kernel kernel, const DeltaShape& shape, cudaStream_t stream,
                   const Arguments&... arguments) {
  constexpr int kBytes = sizeof(ScanShared<kSize, kColumns>);
  const cudaError_t error = cudaFuncSetAttribute(
      reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const dim3 blocks(static_cast<unsigned>(shape.documents.documents),
                    static_cast<unsigned>(shape.value_heads), kSize / kColumns);
  kernel<<<blocks, kScanThreads<kColumns>, kBytes, stream>>>(shape, arguments...);
  return cudaGetLastError();
}

template <int kSize, int kColumns>
cudaError_t Forward(const DeltaShape& shape, const DeltaSlots& slots, DeltaRange range,
                    const float* before, float* after, MutableRows out, cudaStream_t stream) {
  const auto kernel =
      out.data != nullptr ? ScanKernel<kSize, kColumns, true> : ScanKernel<kSize, kColumns, false>;
  return Launch<kSize, kColumns>(kernel, shape, stream, slots, range, before, after, out);
}

template <int kSize, int kColumns>
cudaError_t Backward(const DeltaShape& shape, const DeltaSlots& slots, DeltaRange range,
                     const float* after, float* before, ConstRows dout, cudaStream_t stream) {
  return Launch<kSize, kColumns>(ScanBackwardKernel<kSize, kColumns>, shape, stream, slots, range,
                                 after, before, dout);
}

}  // namespace

cudaError_t LaunchDeltaScan(const DeltaShape& shape, const DeltaSlots& slots, DeltaRange range,
                            const float* before, float* after, MutableRows out,
                            cudaStream_t stream) {
  const auto run = shape.key_size == 64
                       ? TakesWideBlocks<64>(shape) ? Forward<64, 64> : Forward<64, 32>
                   : TakesWideBlocks<128>(shape) ? Forward<128, 64>
                                                 : Forward<128, 32>;
  return run(shape, slots, range, before, after, out, stream);
}

cudaError_t LaunchDeltaScanBackward(const DeltaShape& shape, const DeltaSlots& slots,
                                    DeltaRange range, const float* after, float* before,
                                    ConstRows dout, cudaStream_t stream) {
  const auto run = shape.key_size == 64
                       ? TakesWideBlocks<64>(shape) ? Backward<64, 64> : Backward<64, 32>
                   : TakesWideBlocks<128>(shape) ? Backward<128, 64>
                                                 : Backward<128, 32>;
  return run(shape, slots, range, after, before, dout, stream);
}

}  // namespace sft::engine::cuda
