// The gated delta rule of pieces of documents, for generation: token by token, with the state in
// registers, so that it is read and written once whatever the piece has of tokens.
//
// Columns of a state are independent of each other. A block has kColumns columns of a value head of
// a piece, kSplit neighbouring lanes have a column: lane `split` rows 4 split to 4 split + 3 of
// every 4 kSplit, which are one access to shared memory. With S' the decayed state, a token needs
// S'^T k and S'^T q in one pass over it, for the new state is S' + k u^T:
//
//       u = beta (v - S'^T k),  out = S'^T q + (q^T k) u
#include "worker/engine/cuda/kernels/linear_attention.h"
#include "worker/engine/cuda/kernels/vec.cuh"

namespace sft::engine::cuda {
namespace {

constexpr int kSplit = 4;     // lanes of a column
constexpr int kPart = 4;      // neighbouring rows of a lane
constexpr int kColumns = 32;  // of a block
constexpr int kThreads = kSplit * kColumns;
constexpr int kTokens = 8;  // that are in shared memory at once
constexpr int kRowsOfStep = kSplit * kPart;
constexpr float kEpsilon = 1e-6f;  // beside |q|^2 and |k|^2

struct NextArguments {
  DeltaNextShape shape;
  DeltaOperands operands;
  float* states;
  MutableRows out;
};

// Some tokens of a value head and its key head. Keys have zeros behind them.
template <int kSteps>
struct Tokens {
  static constexpr int kKeys = kSteps * kRowsOfStep;
  alignas(16) float q[kTokens][kKeys];
  alignas(16) float k[kTokens][kKeys];
  float v[kTokens][kColumns];
  float product[kTokens];  // q^T k
  float decay[kTokens], beta[kTokens];
};

// What a block works at: a piece, a value head, and the first of its columns.
struct Place {
  int64_t first, rows;
  int head, key_head, column;
};

template <typename T>
__device__ __forceinline__ const T* HeadOf(const ConstRows& rows, int64_t row, int head, int size) {
  return static_cast<const T*>(rows.data) + row * rows.stride + static_cast<int64_t>(head) * size;
}

// Fills `tokens` with `count` from row `begin`: keys and queries of length 1, queries times
// 1 / sqrt(their size). All threads of the block come here.
template <typename T, int kSteps>
__device__ void LoadTokens(const NextArguments& a, const Place& place, int64_t begin, int count,
                           Tokens<kSteps>& tokens) {
  constexpr int kKeys = Tokens<kSteps>::kKeys;
  const int thread = static_cast<int>(threadIdx.x);
  const int keys = a.shape.key_size, values = a.shape.value_size;
  for (int at = thread; at < count * kKeys; at += kThreads) {
    const int i = at / kKeys, d = at % kKeys;
    const auto value = [&](const ConstRows& rows) {
      if (d >= keys) return 0.0f;
      return ToFloat(HeadOf<T>(rows, begin + i, place.key_head, keys)[d]);
    };
    tokens.q[i][d] = value(a.operands.q);
    tokens.k[i][d] = value(a.operands.k);
  }
  for (int at = thread; at < count * kColumns; at += kThreads) {
    const int i = at / kColumns, e = place.column + at % kColumns;
    tokens.v[i][at % kColumns] =
        e < values ? ToFloat(HeadOf<T>(a.operands.v, begin + i, place.head, values)[e]) : 0.0f;
  }
  for (int i = thread; i < count; i += kThreads) {
    const int64_t gate = (begin + i) * a.shape.value_heads + place.head;
    tokens.decay[i] = expf(a.operands.g[gate]);
    tokens.beta[i] = a.operands.beta[gate];
  }
  __syncthreads();
  const float scale = 1.0f / sqrtf(static_cast<float>(keys));
  const int lane = thread % kWarp;
  for (int i = thread / kWarp; i < count; i += kThreads / kWarp) {
    float qq = 0.0f, kk = 0.0f, qk = 0.0f;
    for (int d = lane; d < kKeys; d += kWarp) {
      const float q = tokens.q[i][d], k = tokens.k[i][d];
      qq = __fmaf_rn(q, q, qq);
      kk = __fmaf_rn(k, k, kk);
      qk = __fmaf_rn(q, k, qk);
    }
    const float of_q = scale / sqrtf(GroupSum<kWarp>(qq) + kEpsilon);
    const float of_k = 1.0f / sqrtf(GroupSum<kWarp>(kk) + kEpsilon);
    qk = GroupSum<kWarp>(qk);
    for (int d = lane; d < kKeys; d += kWarp) {
      tokens.q[i][d] *= of_q;
      tokens.k[i][d] *= of_k;
    }
    if (lane == 0) tokens.product[i] = qk * of_q * of_k;
  }
  __syncthreads();
}

// A lane's rows of a column.
template <int kSteps>
struct Column {
  float at[kSteps][kPart];

  // Takes a token in; returns what comes out, the same in all lanes of the column.
  __device__ __forceinline__ float Step(const Tokens<kSteps>& tokens, int i, int split, float v) {
    const float decay = tokens.decay[i];
    float of_k[kPart] = {}, of_q[kPart] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float q[kPart], k[kPart];
      Load(&tokens.q[i][step * kRowsOfStep + split * kPart], q);
      Load(&tokens.k[i][step * kRowsOfStep + split * kPart], k);
#pragma unroll
      for (int p = 0; p < kPart; ++p) {
        at[step][p] *= decay;
        of_k[p] = __fmaf_rn(at[step][p], k[p], of_k[p]);
        of_q[p] = __fmaf_rn(at[step][p], q[p], of_q[p]);
      }
    }
    const float along_k = GroupSum<kSplit>((of_k[0] + of_k[1]) + (of_k[2] + of_k[3]));
    const float along_q = GroupSum<kSplit>((of_q[0] + of_q[1]) + (of_q[2] + of_q[3]));
    const float u = tokens.beta[i] * (v - along_k);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      float k[kPart];
      Load(&tokens.k[i][step * kRowsOfStep + split * kPart], k);
#pragma unroll
      for (int p = 0; p < kPart; ++p) at[step][p] = __fmaf_rn(k[p], u, at[step][p]);
    }
    return __fmaf_rn(tokens.product[i], u, along_q);
  }
};

template <typename T, int kSteps>
__global__ void __launch_bounds__(kThreads)
    DeltaNextKernel(const __grid_constant__ NextArguments a) {
  __shared__ Tokens<kSteps> tokens;
  const DeltaNextShape& shape = a.shape;
  const int keys = shape.key_size, values = shape.value_size;
  const int head = static_cast<int>(blockIdx.y);
  const Place place{.first = shape.pieces.first[blockIdx.z],
                    .rows = shape.pieces.rows[blockIdx.z],
                    .head = head,
                    .key_head = head / (shape.value_heads / shape.key_heads),
                    .column = static_cast<int>(blockIdx.x) * kColumns};
  const int split = static_cast<int>(threadIdx.x) % kSplit;
  const int within = static_cast<int>(threadIdx.x) / kSplit;
  const int e = place.column + within;
  T* out = static_cast<T*>(a.out.data) + static_cast<int64_t>(head) * values + e;
  const bool writes = split == 0 && e < values;
  const int64_t state = shape.pieces.states[blockIdx.z];
  if (state < 0) {
    for (int64_t row = place.first; writes && row < place.first + place.rows; ++row) {
      out[row * a.out.stride] = FromFloat<T>(0.0f);
    }
    return;
  }
  float* kept = a.states + (state * shape.value_heads + head) * keys * values + e;
  Column<kSteps> column;
  const auto for_rows = [&](const auto& visit) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int p = 0; p < kPart; ++p) {
        const int d = step * kRowsOfStep + split * kPart + p;
        visit(column.at[step][p], static_cast<int64_t>(d) * values, d < keys && e < values);
      }
    }
  };
  for_rows([&](float& x, int64_t at, bool is_there) { x = is_there ? kept[at] : 0.0f; });
  for (int64_t begin = 0; begin < place.rows; begin += kTokens) {
    const int count = static_cast<int>(min(place.rows - begin, static_cast<int64_t>(kTokens)));
    if (begin > 0) __syncthreads();  // all have read what stood there
    LoadTokens<T>(a, place, place.first + begin, count, tokens);
    for (int i = 0; i < count; ++i) {
      const float y = column.Step(tokens, i, split, tokens.v[i][within]);
      if (writes) out[(place.first + begin + i) * a.out.stride] = FromFloat<T>(y);
    }
  }
  for_rows([&](const float& x, int64_t at, bool is_there) {
    if (is_there) kept[at] = x;
  });
}

template <typename T, int kSteps>
void Launch(const NextArguments& a, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(CeilDiv(a.shape.value_size, kColumns)),
                    static_cast<unsigned>(a.shape.value_heads),
                    static_cast<unsigned>(a.shape.pieces.pieces));
  DeltaNextKernel<T, kSteps><<<blocks, kThreads, 0, stream>>>(a);
}

template <typename T>
void Choose(const NextArguments& a, cudaStream_t stream) {
  const int64_t steps = CeilDiv(a.shape.key_size, kRowsOfStep);
  if (steps <= 1) return Launch<T, 1>(a, stream);
  if (steps <= 2) return Launch<T, 2>(a, stream);
  if (steps <= 4) return Launch<T, 4>(a, stream);
  if (steps <= 8) return Launch<T, 8>(a, stream);
  Launch<T, kMostDeltaSize / kRowsOfStep>(a, stream);
}

}  // namespace

cudaError_t LaunchDeltaNext(ElementType type, const DeltaNextShape& shape,
                            const DeltaOperands& operands, float* states, MutableRows out,
                            cudaStream_t stream) {
  const NextArguments a{shape, operands, states, out};
  if (type == ElementType::kFloat32) {
    Choose<float>(a, stream);
  } else {
    Choose<__nv_bfloat16>(a, stream);
  }
  return cudaGetLastError();
}

}  // namespace sft::engine::cuda
