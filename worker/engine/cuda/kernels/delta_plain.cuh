// The gated delta rule without tensor cores, in fp32 throughout: the formulas of
// worker/engine/kernels/gated_delta_cpu.cc one by one, by plain loops of a thread block over
// matrices in memory. For fp32 activations and heads that delta_tiles.cuh does not take.
//
// A block takes a document and a key head at a time and goes from chunk to chunk, in each over the
// value heads of the key head. Shape names: C tokens of a chunk, D size of a key, E of a value.
#pragma once

#include "worker/engine/cuda/kernels/linear_attention.h"
#include "worker/engine/cuda/kernels/vec.cuh"

namespace sft::engine::cuda {
namespace plain {

inline constexpr int kChunk = 64;
inline constexpr int kThreads = 256;
inline constexpr float kEpsilon = 1e-6f;  // beside |q|^2 and |k|^2

// Sizes of the matrices of a block, in floats.
struct PlainSizes {
  int64_t keys, values, scores, state, repeats, chunks;
  __host__ __device__ PlainSizes(const DeltaShape& shape)
      : keys(kChunk * shape.key_size),
        values(kChunk * shape.value_size),
        scores(kChunk * kChunk),
        state(static_cast<int64_t>(shape.key_size) * shape.value_size),
        repeats(shape.value_heads / shape.key_heads),
        chunks((shape.documents.longest + kChunk - 1) / kChunk) {}
  __host__ __device__ int64_t Forward() const {
    return 3 * keys + 3 * values + 2 * scores + repeats * state;
  }
  __host__ __device__ int64_t Backward() const {
    return 10 * keys + 6 * values + 6 * scores + repeats * (chunks + 1) * state;
  }
};

struct Workspace {
  float* next;
  __device__ float* Take(int64_t floats) {
    float* taken = next;
    next += floats;
    return taken;
  }
};

template <typename Visit>
__device__ void ForAll(int64_t count, const Visit& visit) {
  for (int64_t i = threadIdx.x; i < count; i += kThreads) visit(i);
}

// to(i, j, sum over l < depth of a(i, l) b(l, j)) for all of a matrix [rows, columns].
template <typename A, typename B, typename To>
__device__ void Product(int rows, int columns, int depth, const A& a, const B& b, const To& to) {
  for (int index = static_cast<int>(threadIdx.x); index < rows * columns; index += kThreads) {
    const int i = index / columns, j = index % columns;
    float sum = 0.0f;
#pragma unroll 4
    for (int l = 0; l < depth; ++l) sum = __fmaf_rn(a(i, l), b(l, j), sum);
    to(i, j, sum);
  }
}

// to(i, sum over j < columns of at(i, j)), a warp for each row.
template <typename At, typename To>
__device__ void RowSums(int rows, int columns, const At& at, const To& to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int i = static_cast<int>(threadIdx.x) / kWarp; i < rows; i += kThreads / kWarp) {
    float sum = 0.0f;
    for (int j = lane; j < columns; j += kWarp) sum += at(i, j);
    sum = GroupSum<kWarp>(sum);
    if (lane == 0) to(i, sum);
  }
}

// What the value heads of a key head share of a chunk, and what a value head's chunk is made of but
// for the state. All matrices have dense rows, of C, D or E.
struct Chunk {
  int64_t first;  // token
  int count;      // tokens
  float *q, *k;   // of length 1, q times 1 / sqrt(D)
  float* v;
  float *u, *w;
  float* m;  // K K^T * G below the diagonal
  float* p;  // Q K^T * G from the diagonal on
};

// Of the chunk's tokens.
struct Factors {
  float q[kChunk], k[kChunk];  // what q and k were multiplied by
  float beta[kChunk];
  float from[kChunk], to[kChunk];  // exp(c), exp(c_last - c)
  double c[kChunk];
};

template <typename T>
class PlainBlock {
 public:
  __device__ PlainBlock(const DeltaShape& shape, const DeltaOperands& operands, int key_head,
                        Factors& factors)
      : shape_(shape), operands_(operands), key_head_(key_head), f_(factors) {}

  __device__ int keys() const { return shape_.key_size; }
  __device__ int values() const { return shape_.value_size; }
  __device__ float QueryScale() const { return 1.0f / sqrtf(static_cast<float>(keys())); }
  __device__ float Gate(int i, int j) const { return expf(static_cast<float>(f_.c[i] - f_.c[j])); }
  __device__ const T* Row(const ConstRows& rows, int64_t token, int head, int size) const {
    return static_cast<const T*>(rows.data) + token * rows.stride +
           static_cast<int64_t>(head) * size;
  }
  __device__ T* Row(const MutableRows& rows, int64_t token, int head, int size) const {
    return static_cast<T*>(rows.data) + token * rows.stride + static_cast<int64_t>(head) * size;
  }

  __device__ void LoadKeys(const Chunk& chunk) {
    const auto unit = [&](const ConstRows& rows, float scale, float* to, float* factors) {
      RowSums(
          chunk.count, keys(),
          [&](int i, int d) {
            const float x = ToFloat(Row(rows, chunk.first + i, key_head_, keys())[d]);
            return x * x;
          },
          [&](int i, float sum) { factors[i] = 1.0f / sqrtf(sum + kEpsilon); });
      __syncthreads();
      ForAll(chunk.count * keys(), [&](int64_t at) {
        const int i = static_cast<int>(at) / keys(), d = static_cast<int>(at) % keys();
        const float x = ToFloat(Row(rows, chunk.first + i, key_head_, keys())[d]);
        to[at] = x * factors[i] * scale;
      });
    };
    unit(operands_.q, QueryScale(), chunk.q, f_.q);
    unit(operands_.k, 1.0f, chunk.k, f_.k);
    __syncthreads();
  }

  // Of value head `head`; LoadKeys comes before.
  __device__ void Make(const Chunk& chunk, int head) {
    const int count = chunk.count;
    ForAll(count, [&](int64_t i) {
      f_.beta[i] = operands_.beta[(chunk.first + i) * shape_.value_heads + head];
    });
    if (threadIdx.x == 0) {
      double c = 0.0;
      for (int i = 0; i < count; ++i) {
        c += static_cast<double>(operands_.g[(chunk.first + i) * shape_.value_heads + head]);
        f_.c[i] = c;
      }
    }
    ForAll(count * values(), [&](int64_t at) {
      const int i = static_cast<int>(at) / values(), e = static_cast<int>(at) % values();
      chunk.v[at] = ToFloat(Row(operands_.v, chunk.first + i, head, values())[e]);
    });
    __syncthreads();
    ForAll(count, [&](int64_t i) {
      f_.from[i] = expf(static_cast<float>(f_.c[i]));
      f_.to[i] = Gate(count - 1, static_cast<int>(i));
    });
    Product(
        count, count, keys(), [&](int i, int d) { return chunk.k[i * keys() + d]; },
        [&](int d, int j) { return chunk.k[j * keys() + d]; },
        [&](int i, int j, float sum) {
          chunk.m[i * kChunk + j] = i > j ? sum * Gate(i, j) : 0.0f;
        });
    Product(
        count, count, keys(), [&](int i, int d) { return chunk.q[i * keys() + d]; },
        [&](int d, int j) { return chunk.k[j * keys() + d]; },
        [&](int i, int j, float sum) {
          chunk.p[i * kChunk + j] = i >= j ? sum * Gate(i, j) : 0.0f;
        });
    __syncthreads();
    // (I + A) x = right-hand side from the top, a thread for each column.
    const auto solve = [&](float* x, int columns, const auto& right) {
      ForAll(columns, [&](int64_t j) {
        for (int i = 0; i < count; ++i) {
          float sum = 0.0f;
          for (int l = 0; l < i; ++l) {
            sum = __fmaf_rn(chunk.m[i * kChunk + l], x[l * columns + j], sum);
          }
          x[i * columns + j] = f_.beta[i] * (right(i, static_cast<int>(j)) - sum);
        }
      });
    };
    solve(chunk.u, values(), [&](int i, int e) { return chunk.v[i * values() + e]; });
    solve(chunk.w, keys(), [&](int i, int d) { return f_.from[i] * chunk.k[i * keys() + d]; });
    __syncthreads();
  }

  // N = U - W S
  __device__ void NewValues(const Chunk& chunk, const float* state, float* n) const {
    Product(
        chunk.count, values(), keys(), [&](int i, int d) { return chunk.w[i * keys() + d]; },
        [&](int d, int e) { return state[d * values() + e]; },
        [&](int i, int e, float sum) { n[i * values() + e] = chunk.u[i * values() + e] - sum; });
    __syncthreads();
  }

  // to = exp(c_last) S + E^T N; `to` may be the state.
  __device__ void Advance(const Chunk& chunk, const float* n, const float* state, float* to) const {
    const float all = f_.from[chunk.count - 1];
    Product(
        keys(), values(), chunk.count,
        [&](int d, int i) { return f_.to[i] * chunk.k[i * keys() + d]; },
        [&](int i, int e) { return n[i * values() + e]; },
        [&](int d, int e, float sum) {
          to[d * values() + e] = __fmaf_rn(all, state[d * values() + e], sum);
        });
    __syncthreads();
  }

  __device__ void Clear(float* x, int64_t count) const {
    ForAll(count, [&](int64_t i) { x[i] = 0.0f; });
  }

 protected:
  const DeltaShape& shape_;
  const DeltaOperands& operands_;
  int key_head_;
  Factors& f_;
};

// Calls run(key head, first token, tokens) for the documents and key heads of a block.
template <typename Run>
__device__ void ForTasks(const DeltaShape& shape, const Run& run) {
  const int64_t tasks = static_cast<int64_t>(shape.documents.documents) * shape.key_heads;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int64_t document = task / shape.key_heads;
    const int64_t first = shape.documents.cu_seqlens[document];
    run(static_cast<int>(task % shape.key_heads), first,
        shape.documents.cu_seqlens[document + 1] - first);
  }
}

__device__ inline int CountFrom(int64_t begin, int64_t length) {
  return static_cast<int>(length - begin < kChunk ? length - begin : kChunk);
}

}  // namespace plain
}  // namespace sft::engine::cuda
