// The gradients of the gated delta rule, of the states at the chunks' starts and of the gradients
// of those at their ends. A block has a chunk and a key head and goes through the value heads; the
// sums of dq and dk over them stay in registers. Names are those of gated_delta_cpu.cc.
#include "worker/engine/cuda/kernels/delta_tiles.cuh"

namespace sft::engine::cuda {
namespace {

using namespace delta;

constexpr int kThreads = 256;
constexpr int kScorePitch = kPitch<kChunk>;

// Sums of the rows of a chunk, of each half of the columns.
enum RowSums { kQueries, kValues, kSolvedKeys, kKeys, kGates, kBetas, kRowSums };

// Memory is used several times, in the order of the names.
template <int kSize>
struct GradientShared {
  static constexpr int kTile = kChunk * kPitch<kSize>;
  Bf16 q[kTile], k[kTile];
  Bf16 dout_u_scores[kTile];           // dO, U, the gradient of q^ k^T
  Bf16 n_scores[kTile];                // N, the gradient of k^ k^T
  Bf16 dn_xu[kTile];                   // dN, X_u
  Bf16 dw_xw[kTile];                   // dW, X_w
  Bf16 states[kSize * kPitch<kSize>];  // S, dS'
  Bf16 inverse_w[kTile];               // (I + A)^-1, W
  double c[kChunk];
  float beta[kChunk], from[kChunk], to[kChunk];
  float rows[kRowSums][2][kChunk];
  float columns[4][kChunk];
  float parts[kThreads / kWarp];
};

template <int kTiles>
__device__ __forceinline__ void Clear(float (&sums)[kTiles][4]) {
#pragma unroll
  for (auto& tile : sums) {
#pragma unroll
    for (float& sum : tile) sum = 0.0f;
  }
}

// A warp has 16 rows of a result and half of its columns.
template <int kSize>
class Gradients {
 public:
  static constexpr int kTiles = kSize / 16;
  static constexpr int kP = kPitch<kSize>;
  using Shared = GradientShared<kSize>;

  __device__ Gradients(const DeltaShape& shape, const DeltaOperands& operands,
                       const DeltaGradients& gradients, const DeltaSlots& slots, int64_t slot,
                       const Place& place, Shared& shared)
      : shape_(shape),
        operands_(operands),
        gradients_(gradients),
        slots_(slots),
        s_(shared),
        place_(place),
        slot_(slot),
        key_head_(static_cast<int>(blockIdx.y)),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        half_(warp_ / 4),
        row_(warp_ % 4 * 16),
        begin_(half_ * (kSize / 2)),
        column_(half_ * (kChunk / 2)) {
    Clear(dq_);
    Clear(dk_);
  }

  __device__ __forceinline__ void LoadKeys() {
    const int64_t at = (slot_ * shape_.key_heads + key_head_) * kChunk * kSize;
    CopyTile<kSize, kThreads>(s_.q, slots_.q + at, kSize, kChunk, kChunk);
    CopyTile<kSize, kThreads>(s_.k, slots_.k + at, kSize, kChunk, kChunk);
    EndGroup();
  }

  __device__ __forceinline__ void Take(int head) {
    const int64_t value_slot = slot_ * shape_.value_heads + head;
    const int64_t tile = value_slot * kChunk * kSize, state = value_slot * kSize * kSize;
    __syncthreads();  // nobody uses what the head before had
    Load(head, value_slot);
    WaitForGroups<0>();
    __syncthreads();
    float dp[4][4] = {};
    ThroughState(dp);
    __syncthreads();  // S, dO and dW: read, read and written
    CopyTile<kSize, kThreads>(s_.states, slots_.dstate + state, kSize, kSize, kSize);
    CopyTile<kSize, kThreads>(s_.dout_u_scores, slots_.u + tile, kSize, kChunk, kChunk);
    EndGroup();
    SolveValues(head);
    SolveKeys();
    CopyTile<kSize, kThreads>(s_.inverse_w, slots_.w + tile, kSize, kChunk, kChunk);
    EndGroup();
    WaitForGroups<0>();
    __syncthreads();
    ThroughNextState(slots_.state + state);
    float da[4][4] = {};
    Multiply<Stored::kRows, Stored::kColumns, kSize>(da, s_.dn_xu + row_ * kP, kP,
                                                     s_.dout_u_scores + column_ * kP, kP);
    Multiply<Stored::kRows, Stored::kColumns, kSize>(da, s_.dw_xw + row_ * kP, kP,
                                                     s_.inverse_w + column_ * kP, kP);
    __syncthreads();  // U and N were read
    MakeScores(dp, da);
    __syncthreads();
    ThroughScores();
    if (warp_ == 0) StoreGates(head);
  }

  // dq and dk, through the length of q and k.
  __device__ __forceinline__ void StoreKeys() {
    const float* factors = slots_.factors + (slot_ * shape_.key_heads + key_head_) * 2 * kChunk;
    __syncthreads();
    AddRowSums(kQueries, dq_, s_.q);
    AddRowSums(kKeys, dk_, s_.k);
    __syncthreads();
    StoreUnits(gradients_.dq, dq_, s_.q, kQueries, factors);
    StoreUnits(gradients_.dk, dk_, s_.k, kKeys, factors + kChunk);
  }

 private:
  __device__ __forceinline__ const Bf16* Token(const ConstRows& rows, int head) const {
    return static_cast<const Bf16*>(rows.data) + place_.first * rows.stride +
           static_cast<int64_t>(head) * kSize;
  }
  __device__ __forceinline__ Bf16* Token(const MutableRows& rows, int head) const {
    return static_cast<Bf16*>(rows.data) + place_.first * rows.stride +
           static_cast<int64_t>(head) * kSize;
  }

  __device__ __forceinline__ void Load(int head, int64_t value_slot) {
    const int64_t tile = value_slot * kChunk * kSize;
    CopyTile<kSize, kThreads>(s_.states, slots_.state + value_slot * kSize * kSize, kSize, kSize,
                              kSize);
    CopyTile<kSize, kThreads>(s_.dout_u_scores, Token(gradients_.dout, head),
                              gradients_.dout.stride, kChunk, place_.count);
    CopyTile<kSize, kThreads>(s_.n_scores, slots_.values + tile, kSize, kChunk, kChunk);
    CopyTile<kSize, kThreads>(s_.dn_xu, slots_.dvalues + tile, kSize, kChunk, kChunk);
    CopyTile<kChunk, kThreads>(s_.inverse_w, slots_.inverse + value_slot * kChunk * kChunk, kChunk,
                               kChunk, kChunk);
    EndGroup();
    const int thread = static_cast<int>(threadIdx.x), i = thread % kChunk;
    const float* decays = slots_.decays + value_slot * 2 * kChunk;
    if (thread < kWarp) {
      SumDecays(operands_.g + place_.first * shape_.value_heads + head, shape_.value_heads,
                place_.count, s_.c);
    } else if (thread >= 3 * kChunk) {
      s_.beta[i] =
          i < place_.count ? operands_.beta[(place_.first + i) * shape_.value_heads + head] : 0.0f;
    } else if (thread >= 2 * kChunk) {
      s_.to[i] = decays[kChunk + i];
    } else if (thread >= kChunk) {
      s_.from[i] = decays[i];
    }
  }

  // What S gives: dP, what q gets through it, and dW.
  __device__ __forceinline__ void ThroughState(float (&dp)[4][4]) {
    const Bf16* dout = s_.dout_u_scores + row_ * kP;
    Multiply<Stored::kRows, Stored::kColumns, kSize>(dp, dout, kP, s_.n_scores + column_ * kP, kP);
    float sums[kTiles][4] = {};
    Multiply<Stored::kRows, Stored::kColumns, kSize>(sums, dout, kP, s_.states + begin_ * kP, kP);
    const float scale = Scale();
    Scaled(sums, scale * s_.from[Row(0)], scale * s_.from[Row(1)]);
    AddRowSums(kQueries, sums, s_.q);
    Add(dq_, sums);
    float dw[kTiles][4] = {};
    Multiply<Stored::kRows, Stored::kColumns, kSize>(dw, s_.dn_xu + row_ * kP, kP,
                                                     s_.states + begin_ * kP, kP);
    StoreSums(s_.dw_xw + row_ * kP + begin_, kP, dw, -1.0f, -1.0f);
  }

  // X_u in the place of dN, and dV of it.
  __device__ __forceinline__ void SolveValues(int head) {
    float sums[kTiles][4] = {};
    Multiply<Stored::kColumns, Stored::kRows, kChunk>(sums, s_.inverse_w + row_, kScorePitch,
                                                      s_.dn_xu + begin_, kP);
    const Bf16* v = Token(operands_.v, head) + begin_;
    Bf16* dv = Token(gradients_.dv, head) + begin_;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Row(half);
      const bool there = row < place_.count;
      const float beta = s_.beta[row];
      float sum = 0.0f;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float low = sums[tile][2 * half], high = sums[tile][2 * half + 1];
        if (there) {
          const float2 value = LoadPair(v + row * operands_.v.stride + ColumnOf(tile));
          sum = __fmaf_rn(low, value.x, __fmaf_rn(high, value.y, sum));
          StorePair(dv + row * gradients_.dv.stride + ColumnOf(tile), beta * low, beta * high);
        }
      }
      KeepRowSum(kValues, row, sum);
    }
    __syncthreads();  // dN was read
    StoreSums(s_.dn_xu + row_ * kP + begin_, kP, sums);
  }

  // X_w in the place of dW, and what k gets of it.
  __device__ __forceinline__ void SolveKeys() {
    float sums[kTiles][4] = {};
    Multiply<Stored::kColumns, Stored::kRows, kChunk>(sums, s_.inverse_w + row_, kScorePitch,
                                                      s_.dw_xw + begin_, kP);
    AddRowSums(kSolvedKeys, sums, s_.k);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = s_.from[Row(half)] * s_.beta[Row(half)];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        dk_[tile][2 * half] = __fmaf_rn(factor, sums[tile][2 * half], dk_[tile][2 * half]);
        dk_[tile][2 * half + 1] =
            __fmaf_rn(factor, sums[tile][2 * half + 1], dk_[tile][2 * half + 1]);
      }
    }
    __syncthreads();  // dW and the inverse were read
    StoreSums(s_.dw_xw + row_ * kP + begin_, kP, sums);
  }

  // What dS' gives: what k gets through it, and <dS', S>.
  __device__ __forceinline__ void ThroughNextState(const Bf16* state) {
    float sums[kTiles][4] = {};
    Multiply<Stored::kRows, Stored::kColumns, kSize>(sums, s_.n_scores + row_ * kP, kP,
                                                     s_.states + begin_ * kP, kP);
    Scaled(sums, s_.to[Row(0)], s_.to[Row(1)]);
    AddRowSums(kKeys, sums, s_.k);
    Add(dk_, sums);
    constexpr int kPieces = kSize / 8;
    float sum = 0.0f;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < kSize * kPieces; i += kThreads) {
      const auto before = LoadPacked<Bf16, 8>(state + i * 8, true);
      const auto after = LoadPacked<Bf16, 8>(s_.states + i / kPieces * kP + i % kPieces * 8, true);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum = __fmaf_rn(before[j], after[j], sum);
    }
    sum = GroupSum<kWarp>(sum);
    if (threadIdx.x % kWarp == 0) s_.parts[warp_] = sum;
  }

  // Turns dP and -dA into the gradients of q^ k^T and k^ k^T, and sums what they give the gates.
  __device__ __forceinline__ void MakeScores(const float (&dp)[4][4], const float (&da)[4][4]) {
    float of_k[4][4] = {}, of_q[4][4] = {};
    Multiply<Stored::kRows, Stored::kColumns, kSize>(of_k, s_.k + row_ * kP, kP,
                                                     s_.k + column_ * kP, kP);
    Multiply<Stored::kRows, Stored::kColumns, kSize>(of_q, s_.q + row_ * kP, kP,
                                                     s_.k + column_ * kP, kP);
    const float scale = Scale();
    float of_rows[2] = {}, of_betas[2] = {};
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      float of_columns[2] = {};
      const int j = column_ + ColumnOf(tile);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = Row(half);
        float queries[2], keys[2];
#pragma unroll
        for (int next = 0; next < 2; ++next) {
          const int at = 2 * half + next;
          const float gate = i >= j + next ? Decay(s_.c[i], s_.c[j + next]) : 0.0f;
          const float below = i > j + next ? gate : 0.0f;
          queries[next] = scale * gate * dp[tile][at];
          keys[next] = -below * s_.beta[i] * da[tile][at];
          const float of_beta = -below * of_k[tile][at] * da[tile][at];
          // The diagonal gives and takes the same.
          const float of_gate =
              scale * below * dp[tile][at] * of_q[tile][at] + s_.beta[i] * of_beta;
          of_betas[half] += of_beta;
          of_rows[half] += of_gate;
          of_columns[next] += of_gate;
        }
        StorePair(s_.dout_u_scores + i * kScorePitch + j, queries[0], queries[1]);
        StorePair(s_.n_scores + i * kScorePitch + j, keys[0], keys[1]);
      }
#pragma unroll
      for (int next = 0; next < 2; ++next) {
        float sum = of_columns[next];
#pragma unroll
        for (int lanes = 4; lanes < kWarp; lanes *= 2) {
          sum += __shfl_xor_sync(kAllLanes, sum, lanes);
        }
        if (threadIdx.x % kWarp < 4) s_.columns[warp_ % 4][j + next] = sum;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      KeepRowSum(kGates, Row(half), of_rows[half]);
      KeepRowSum(kBetas, Row(half), of_betas[half]);
    }
  }

  __device__ __forceinline__ void ThroughScores() {
    const Bf16 *queries = s_.dout_u_scores, *keys = s_.n_scores;
    Multiply<Stored::kRows, Stored::kRows, kChunk>(dq_, queries + row_ * kScorePitch, kScorePitch,
                                                   s_.k + begin_, kP);
    Multiply<Stored::kColumns, Stored::kRows, kChunk>(dk_, queries + row_, kScorePitch,
                                                      s_.q + begin_, kP);
    Multiply<Stored::kRows, Stored::kRows, kChunk>(dk_, keys + row_ * kScorePitch, kScorePitch,
                                                   s_.k + begin_, kP);
    Multiply<Stored::kColumns, Stored::kRows, kChunk>(dk_, keys + row_, kScorePitch, s_.k + begin_,
                                                      kP);
  }

  // dbeta and dg, by one warp. What all gates between two tokens get adds to the exponent of one
  // and is taken from the other's. fp64, since much of that cancels.
  __device__ __forceinline__ void StoreGates(int head) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto sum_of = [&](int kind, int i) { return s_.rows[kind][0][i] + s_.rows[kind][1][i]; };
    double keys =
        static_cast<double>(sum_of(kKeys, lane)) + static_cast<double>(sum_of(kKeys, lane + kWarp));
#pragma unroll
    for (int lanes = 1; lanes < kWarp; lanes *= 2) keys += __shfl_xor_sync(kAllLanes, keys, lanes);
    float of_state = 0.0f;
#pragma unroll
    for (float part : s_.parts) of_state += part;
    double carry = keys + static_cast<double>(of_state * s_.from[kChunk - 1]);
#pragma unroll
    for (int first = kWarp; first >= 0; first -= kWarp) {
      const int i = first + lane;
      const float solved = s_.from[i] * sum_of(kSolvedKeys, i);
      const float columns =
          (s_.columns[0][i] + s_.columns[1][i]) + (s_.columns[2][i] + s_.columns[3][i]);
      double sum = static_cast<double>(sum_of(kGates, i) - columns + sum_of(kQueries, i) +
                                       s_.beta[i] * solved) -
                   static_cast<double>(sum_of(kKeys, i));
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const double behind = __shfl_down_sync(kAllLanes, sum, step);
        if (lane + step < kWarp) sum += behind;
      }
      sum += carry;
      carry = __shfl_sync(kAllLanes, sum, 0);
      if (i < place_.count) {
        const int64_t at = (place_.first + i) * shape_.value_heads + head;
        gradients_.dg[at] = static_cast<float>(sum);
        gradients_.dbeta[at] = sum_of(kValues, i) + solved + sum_of(kBetas, i);
      }
    }
  }

  __device__ __forceinline__ void StoreUnits(const MutableRows& rows,
                                             const float (&sums)[kTiles][4], const Bf16* units,
                                             RowSums kind, const float* factors) {
    Bf16* to = Token(rows, key_head_) + begin_;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Row(half);
      const bool there = row < place_.count;
      const float along = s_.rows[kind][0][row] + s_.rows[kind][1][row], factor = factors[row];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float2 unit = LoadPair(units + row * kP + begin_ + ColumnOf(tile));
        const float low = (sums[tile][2 * half] - unit.x * along) * factor;
        const float high = (sums[tile][2 * half + 1] - unit.y * along) * factor;
        if (there) StorePair(to + row * rows.stride + ColumnOf(tile), low, high);
      }
    }
  }

  // Keeps the sums of the rows of `sums` times `units`.
  __device__ __forceinline__ void AddRowSums(RowSums kind, const float (&sums)[kTiles][4],
                                             const Bf16* units) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0.0f;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float2 unit = LoadPair(units + Row(half) * kP + begin_ + ColumnOf(tile));
        sum = __fmaf_rn(sums[tile][2 * half], unit.x,
                        __fmaf_rn(sums[tile][2 * half + 1], unit.y, sum));
      }
      KeepRowSum(kind, Row(half), sum);
    }
  }
  __device__ __forceinline__ void KeepRowSum(RowSums kind, int row, float of_lane) {
    const float sum = QuadSum(of_lane);
    if (threadIdx.x % 4 == 0) s_.rows[kind][half_][row] = sum;
  }

  __device__ __forceinline__ int Row(int half) const { return row_ + RowOf(half); }
  static __device__ __forceinline__ float Scale() { return rsqrtf(static_cast<float>(kSize)); }
  static __device__ __forceinline__ void Scaled(float (&sums)[kTiles][4], float first,
                                                float second) {
#pragma unroll
    for (auto& tile : sums) {
#pragma unroll
      for (int i = 0; i < 4; ++i) tile[i] *= i < 2 ? first : second;
    }
  }
  static __device__ __forceinline__ void Add(float (&to)[kTiles][4],
                                             const float (&sums)[kTiles][4]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[tile][i] += sums[tile][i];
    }
  }

  const DeltaShape& shape_;
  const DeltaOperands& operands_;
  const DeltaGradients& gradients_;
  const DeltaSlots& slots_;
  Shared& s_;
  Place place_;
  int64_t slot_;  // of the range
  int key_head_, warp_;
  int half_;    // of the columns
  int row_;     // the warp's first
  int begin_;   // the warp's first column of matrices of kSize columns
  int column_;  // the same of scores
  float dq_[kTiles][4], dk_[kTiles][4];
};

template <int kSize>
__global__ void __launch_bounds__(kThreads)
    GradientsKernel(const __grid_constant__ DeltaShape shape,
                    const __grid_constant__ DeltaOperands operands,
                    const __grid_constant__ DeltaGradients gradients,
                    const __grid_constant__ DeltaSlots slots, int64_t first_slot) {
  extern __shared__ __align__(16) unsigned char memory[];
  const Place place = PlaceOf(shape.documents, first_slot + blockIdx.x);
  if (place.count == 0) return;
  Gradients<kSize> block(shape, operands, gradients, slots, blockIdx.x, place,
                         *reinterpret_cast<GradientShared<kSize>*>(memory));
  block.LoadKeys();
  const int repeats = shape.value_heads / shape.key_heads;
  for (int r = 0; r < repeats; ++r) block.Take(static_cast<int>(blockIdx.y) * repeats + r);
  block.StoreKeys();
}

template <int kSize>
cudaError_t Run(const DeltaShape& shape, const DeltaOperands& operands,
                const DeltaGradients& gradients, const DeltaSlots& slots, DeltaRange range,
                cudaStream_t stream) {
  constexpr int kBytes = sizeof(GradientShared<kSize>);
  static_assert(kBytes <= 163 << 10);  // what a block of an A100 may have
  const auto kernel = GradientsKernel<kSize>;
  const cudaError_t error = cudaFuncSetAttribute(
      reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const dim3 blocks(static_cast<unsigned>(range.count()), static_cast<unsigned>(shape.key_heads));
  kernel<<<blocks, kThreads, kBytes, stream>>>(shape, operands, gradients, slots, range.begin);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchDeltaGradients(const DeltaShape& shape, const DeltaOperands& operands,
                                 const DeltaGradients& gradients, const DeltaSlots& slots,
                                 DeltaRange range, cudaStream_t stream) {
  const auto run = shape.key_size == 128 ? Run<128> : Run<64>;
  return run(shape, operands, gradients, slots, range, stream);
}

}  // namespace sft::engine::cuda
