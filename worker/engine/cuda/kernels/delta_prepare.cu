// What the chunks of the gated delta rule are made of but for the state. A block has a chunk and a
// key head: it makes K K^T and Q K^T once and then goes through the value heads.
#include "worker/engine/cuda/kernels/delta_tiles.cuh"

namespace sft::engine::cuda {
namespace {

using namespace delta;

constexpr int kThreads = 256;
constexpr int kHalf = kChunk / 2;
constexpr int kFloatPitch = kChunk + 4;  // of the matrices of floats in shared memory

template <int kSize>
struct PrepareShared {
  Bf16 k[kChunk * kPitch<kSize>];
  Bf16 q[kChunk * kPitch<kSize>];  // then v
  float a[kChunk * kFloatPitch];   // A below the diagonal, then what the inverse is made of above
  float inverse[kChunk * kFloatPitch];
  Bf16 for_u[kChunk * kPitch<kChunk>];  // the inverse times what stands beside V and K
  Bf16 for_w[kChunk * kPitch<kChunk>];
  double c[kChunk];
  float beta[kChunk], from[kChunk];
};

// Loads the rows of a key head, makes them of length 1 and writes them to shared memory and to
// `to`. Neighbouring threads have a row, eight elements each.
template <int kSize>
__device__ __forceinline__ void LoadUnits(Bf16* tile, const ConstRows& rows, const Place& place,
                                          int head, Bf16* to, float* factors) {
  constexpr int kLanes = kSize / 8;  // of a row
  constexpr int kRows = kThreads / kLanes;
  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % kLanes * 8;
  const Bf16* from = static_cast<const Bf16*>(rows.data) + place.first * rows.stride +
                     static_cast<int64_t>(head) * kSize + column;
#pragma unroll
  for (int first = 0; first < kChunk; first += kRows) {
    const int row = first + thread / kLanes;
    Packed<Bf16, 8> x;
    if (row < place.count) x = LoadPacked<Bf16, 8>(from + row * rows.stride, true);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __fmaf_rn(x[i], x[i], sum);
    const float factor = rsqrtf(GroupSum<kLanes>(sum) + kEpsilon);
    float unit[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) unit[i] = x[i] * factor;
    const Packed<Bf16, 8> rounded(unit);
    StorePacked(tile + row * kPitch<kSize> + column, rounded, true);
    StorePacked(to + row * kSize + column, rounded, true);
    if (column == 0) factors[row] = factor;
  }
}

// inverse = (I + A)^-1 in fp32, of A [64, 64] below the diagonal: the two halves of the diagonal by
// substitution, a thread for each column; then what stands below is -(I + A_22)^-1 A_21 (I +
// A_11)^-1. Writes over A's upper right quarter.
__device__ __forceinline__ void Invert(float* a, float* inverse) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kChunk) {
    const int begin = thread / kHalf * kHalf, column = thread % kHalf;
    const float* rows = a + begin * kFloatPitch + begin;
    float x[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      float sums[4] = {};
#pragma unroll
      for (int l = 0; l < i; ++l) {
        sums[l % 4] = __fmaf_rn(rows[i * kFloatPitch + l], x[l], sums[l % 4]);
      }
      x[i] = (i == column ? 1.0f : 0.0f) - ((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
#pragma unroll
    for (int i = 0; i < kHalf; ++i) inverse[(begin + i) * kFloatPitch + begin + column] = x[i];
  }
  __syncthreads();
  float* product = a + kHalf;  // the upper right quarter
  const int column = thread % kHalf;
  for (int i = thread / kHalf; i < kHalf; i += kThreads / kHalf) {
    float sum = 0.0f;
#pragma unroll 8
    for (int l = 0; l < kHalf; ++l) {
      sum = __fmaf_rn(a[(kHalf + i) * kFloatPitch + l], inverse[l * kFloatPitch + column], sum);
    }
    product[i * kFloatPitch + column] = sum;
  }
  __syncthreads();
  for (int i = thread / kHalf; i < kHalf; i += kThreads / kHalf) {
    float sum = 0.0f;
#pragma unroll 8
    for (int l = 0; l < kHalf; ++l) {
      sum = __fmaf_rn(inverse[(kHalf + i) * kFloatPitch + kHalf + l],
                      product[l * kFloatPitch + column], sum);
    }
    inverse[(kHalf + i) * kFloatPitch + column] = -sum;
    inverse[i * kFloatPitch + kHalf + column] = 0.0f;
  }
  __syncthreads();
}

template <int kSize>
__global__ void __launch_bounds__(kThreads, 2)
    PrepareKernel(const __grid_constant__ DeltaShape shape,
                  const __grid_constant__ DeltaOperands operands,
                  const __grid_constant__ DeltaSlots slots, int64_t first_slot) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<PrepareShared<kSize>*>(memory);
  const int64_t slot = blockIdx.x;  // of the range
  const int key_head = static_cast<int>(blockIdx.y);
  const Place place = PlaceOf(shape.documents, first_slot + slot);
  if (place.count == 0) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
  const int row = warp % 4 * 16;  // of this warp's part of a result
  const int64_t key_slot = slot * shape.key_heads + key_head;
  const int repeats = shape.value_heads / shape.key_heads;

  LoadUnits<kSize>(shared.q, operands.q, place, key_head, slots.q + key_slot * kChunk * kSize,
                   slots.factors + key_slot * 2 * kChunk);
  LoadUnits<kSize>(shared.k, operands.k, place, key_head, slots.k + key_slot * kChunk * kSize,
                   slots.factors + (key_slot * 2 + 1) * kChunk);
  __syncthreads();
  // A warp's 32 columns of the scores.
  const int column = warp / 4 * 32;
  float of_k[4][4] = {}, of_q[4][4] = {};
  const Bf16* columns = shared.k + column * kPitch<kSize>;
  Multiply<Stored::kRows, Stored::kColumns, kSize>(of_k, shared.k + row * kPitch<kSize>,
                                                   kPitch<kSize>, columns, kPitch<kSize>);
  Multiply<Stored::kRows, Stored::kColumns, kSize>(of_q, shared.q + row * kPitch<kSize>,
                                                   kPitch<kSize>, columns, kPitch<kSize>);
  const float scale = rsqrtf(static_cast<float>(kSize));
  Bf16* v = shared.q;
  for (int r = 0; r < repeats; ++r) {
    const int head = key_head * repeats + r;
    const int64_t value_slot = slot * shape.value_heads + head;
    __syncthreads();  // nobody reads q, or what the head before had, any more
    CopyTile<kSize, kThreads>(v,
                              static_cast<const Bf16*>(operands.v.data) +
                                  place.first * operands.v.stride +
                                  static_cast<int64_t>(head) * kSize,
                              operands.v.stride, kChunk, place.count);
    EndGroup();
    if (warp == 0) {
      SumDecays(operands.g + place.first * shape.value_heads + head, shape.value_heads, place.count,
                shared.c);
    } else if (warp < 3) {
      const int i = thread - kWarp;
      shared.beta[i] =
          i < place.count ? operands.beta[(place.first + i) * shape.value_heads + head] : 0.0f;
    }
    __syncthreads();
    if (thread < kChunk) {
      float* decays = slots.decays + value_slot * 2 * kChunk;
      shared.from[thread] = Decay(shared.c[thread], 0.0);
      decays[thread] = shared.from[thread];
      decays[kChunk + thread] = Decay(shared.c[kChunk - 1], shared.c[thread]);
    }
    Bf16* p = slots.p + value_slot * kChunk * kChunk;
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row + RowOf(half), j = column + ColumnOf(tile);
        float scores[2];
#pragma unroll
        for (int next = 0; next < 2; ++next) {
          const float gate = i >= j + next ? Decay(shared.c[i], shared.c[j + next]) : 0.0f;
          scores[next] = scale * gate * of_q[tile][2 * half + next];
          shared.a[i * kFloatPitch + j + next] =
              i > j + next ? shared.beta[i] * gate * of_k[tile][2 * half + next] : 0.0f;
        }
        StorePair(p + i * kChunk + j, scores[0], scores[1]);
      }
    }
    __syncthreads();
    Invert(shared.a, shared.inverse);
    for (int i = thread; i < kChunk * kChunk / 2; i += kThreads) {
      const int to = i / (kChunk / 2), j = i % (kChunk / 2) * 2;
      const float low = shared.inverse[to * kFloatPitch + j];
      const float high = shared.inverse[to * kFloatPitch + j + 1];
      if (slots.inverse != nullptr) {
        StorePair(slots.inverse + value_slot * kChunk * kChunk + to * kChunk + j, low, high);
      }
      const float low_beta = low * shared.beta[j], high_beta = high * shared.beta[j + 1];
      StorePair(shared.for_u + to * kPitch<kChunk> + j, low_beta, high_beta);
      StorePair(shared.for_w + to * kPitch<kChunk> + j, low_beta * shared.from[j],
                high_beta * shared.from[j + 1]);
    }
    WaitForGroups<0>();
    __syncthreads();
    // A warp's half of the columns.
    constexpr int kTiles = kSize / 16;
    const int begin = warp / 4 * (kSize / 2);
    float sums[kTiles][4] = {};
    Multiply<Stored::kRows, Stored::kRows, kChunk>(sums, shared.for_u + row * kPitch<kChunk>,
                                                   kPitch<kChunk>, v + begin, kPitch<kSize>);
    const int64_t to = (value_slot * kChunk + row) * kSize + begin;
    StoreSums(slots.u + to, kSize, sums);
#pragma unroll
    for (auto& tile : sums) {
#pragma unroll
      for (float& sum : tile) sum = 0.0f;
    }
    Multiply<Stored::kRows, Stored::kRows, kChunk>(sums, shared.for_w + row * kPitch<kChunk>,
                                                   kPitch<kChunk>, shared.k + begin, kPitch<kSize>);
    StoreSums(slots.w + to, kSize, sums);
  }
}

template <int kSize>
cudaError_t Prepare(const DeltaShape& shape, const DeltaOperands& operands, const DeltaSlots& slots,
                    DeltaRange range, cudaStream_t stream) {
  constexpr int kBytes = sizeof(PrepareShared<kSize>);
  const auto kernel = PrepareKernel<kSize>;
  const cudaError_t error = cudaFuncSetAttribute(
      reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const dim3 blocks(static_cast<unsigned>(range.count()), static_cast<unsigned>(shape.key_heads));
  kernel<<<blocks, kThreads, kBytes, stream>>>(shape, operands, slots, range.begin);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchDeltaPrepare(const DeltaShape& shape, const DeltaOperands& operands,
                               const DeltaSlots& slots, DeltaRange range, cudaStream_t stream) {
  const auto run = shape.key_size == 128 ? Prepare<128> : Prepare<64>;
  return run(shape, operands, slots, range, stream);
}

}  // namespace sft::engine::cuda
