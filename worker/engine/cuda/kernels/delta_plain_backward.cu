// The backward of delta_plain.cuh.
#include "worker/engine/cuda/kernels/delta_plain.cuh"

namespace sft::engine::cuda {
namespace {

using namespace plain;

// What the backward has beside a chunk.
struct ChunkGradients {
  float *dout, *n, *dn;   // [C, E]; dn becomes X_u
  float *dqs, *dks, *dw;  // [C, D]: of q and k through the states; dw becomes X_w
  float *dp, *da, *z;     // [C, C]
  float *dq, *dk;         // [C, D], sums over the value heads so far
  float* terms;           // [4, C]: sums of rows
};

template <typename T>
class PlainBackwardBlock : public PlainBlock<T> {
 public:
  __device__ PlainBackwardBlock(const DeltaShape& shape, const DeltaOperands& operands,
                                const DeltaGradients& gradients, int key_head, Factors& factors)
      : PlainBlock<T>(shape, operands, key_head, factors), gradients_(gradients) {}

  // The gradients of a chunk of value head `head` for which Make was called, of that of the state
  // after it, `dstate`, which becomes that of `state`, the one before it.
  __device__ void Backward(const Chunk& chunk, const ChunkGradients& d, int head,
                           const float* state, float* dstate) {
    const Factors& f = this->f_;
    const int count = chunk.count, keys = this->keys(), values = this->values();
    const auto in_keys = [&](const float* x) {
      return [=](int i, int c) { return x[i * keys + c]; };
    };
    const auto in_values = [&](const float* x) {
      return [=](int i, int c) { return x[i * values + c]; };
    };
    const auto transposed = [](const auto& x) { return [=](int i, int j) { return x(j, i); }; };
    const auto s = in_values(state), ds = in_values(dstate);
    const auto q = in_keys(chunk.q), k = in_keys(chunk.k);
    const auto n = in_values(d.n), dout = in_values(d.dout), dn = in_values(d.dn);
    ForAll(count * values, [&](int64_t at) {
      const int i = static_cast<int>(at) / values, e = static_cast<int>(at) % values;
      d.dout[at] = ToFloat(this->Row(gradients_.dout, chunk.first + i, head, values)[e]);
    });
    this->NewValues(chunk, state, d.n);
    Product(
        count, values, keys, [&](int i, int c) { return f.to[i] * k(i, c); }, ds,
        [&](int i, int e, float sum) { d.dn[i * values + e] = sum; });
    __syncthreads();
    Product(
        count, values, count, [&](int j, int i) { return i >= j ? chunk.p[i * kChunk + j] : 0.0f; },
        dout, [&](int j, int e, float sum) { d.dn[j * values + e] += sum; });
    Product(count, count, values, dout, transposed(n),
            [&](int i, int j, float sum) { d.dp[i * kChunk + j] = i >= j ? sum : 0.0f; });
    Product(count, keys, values, dout, transposed(s),
            [&](int i, int c, float sum) { d.dqs[i * keys + c] = f.from[i] * sum; });
    Product(count, keys, values, n, transposed(ds),
            [&](int i, int c, float sum) { d.dks[i * keys + c] = f.to[i] * sum; });
    __syncthreads();
    Product(count, keys, values, dn, transposed(s),
            [&](int i, int c, float sum) { d.dw[i * keys + c] = -sum; });
    const float all = f.from[count - 1];
    double of_state = 0.0;  // <dS', S>, of this thread
    ForAll(keys * values, [&](int64_t at) {
      of_state += static_cast<double>(dstate[at]) * static_cast<double>(state[at]);
    });
    __syncthreads();
    // dS, before dn changes.
    Product(
        keys, values, count, [&](int c, int i) { return f.from[i] * q(i, c); }, dout,
        [&](int c, int e, float sum) {
          float* to = dstate + c * values + e;
          *to = __fmaf_rn(all, *to, sum);
        });
    __syncthreads();
    Product(keys, values, count, transposed(in_keys(chunk.w)), dn,
            [&](int c, int e, float sum) { dstate[c * values + e] -= sum; });
    __syncthreads();
    // (I + A)^T x = dn and dw from the bottom, in their place.
    const auto solve = [&](float* x, int columns) {
      ForAll(columns, [&](int64_t j) {
        for (int i = count - 2; i >= 0; --i) {
          float sum = 0.0f;
          for (int l = i + 1; l < count; ++l) {
            sum = __fmaf_rn(f.beta[l] * chunk.m[l * kChunk + i], x[l * columns + j], sum);
          }
          x[i * columns + j] -= sum;
        }
      });
    };
    solve(d.dn, values);
    solve(d.dw, keys);
    __syncthreads();
    const auto xu = in_values(d.dn);
    const auto xw = in_keys(d.dw);
    Product(
        count, count, values + keys,
        [&](int i, int l) { return l < values ? xu(i, l) : xw(i, l - values); },
        [&](int l, int j) {
          return l < values ? chunk.u[j * values + l] : chunk.w[j * keys + l - values];
        },
        [&](int i, int j, float sum) {
          const float da = i > j ? -sum : 0.0f;
          d.da[i * kChunk + j] = da;
          d.z[i * kChunk + j] = i > j ? da * this->Gate(i, j) * f.beta[i] : 0.0f;
        });
    float *of_xu = d.terms, *of_xw = d.terms + kChunk;
    float *of_dqs = d.terms + 2 * kChunk, *of_dks = d.terms + 3 * kChunk;
    const auto store = [](float* to) { return [=](int i, float sum) { to[i] = sum; }; };
    RowSums(
        count, values, [&](int i, int e) { return xu(i, e) * chunk.v[i * values + e]; },
        store(of_xu));
    RowSums(
        count, keys, [&](int i, int c) { return xw(i, c) * k(i, c); }, store(of_xw));
    RowSums(
        count, keys, [&](int i, int c) { return d.dqs[i * keys + c] * q(i, c); }, store(of_dqs));
    RowSums(
        count, keys, [&](int i, int c) { return d.dks[i * keys + c] * k(i, c); }, store(of_dks));
    ForAll(count * values, [&](int64_t at) {
      const int i = static_cast<int>(at) / values, e = static_cast<int>(at) % values;
      this->Row(gradients_.dv, chunk.first + i, head, values)[e] =
          FromFloat<T>(f.beta[i] * d.dn[at]);
    });
    __syncthreads();
    StoreGates(chunk, d, head, of_state, of_xu, of_xw, of_dqs, of_dks);
    // dp becomes what stands beside K and Q.
    ForAll(count * count, [&](int64_t at) {
      const int i = static_cast<int>(at) / count, j = static_cast<int>(at) % count;
      if (i >= j) d.dp[i * kChunk + j] *= this->Gate(i, j);
    });
    __syncthreads();
    Product(
        count, keys, count, [&](int i, int j) { return d.dp[i * kChunk + j]; }, k,
        [&](int i, int c, float sum) { d.dq[i * keys + c] += d.dqs[i * keys + c] + sum; });
    Product(
        count, keys, count, [&](int j, int i) { return d.dp[i * kChunk + j]; }, q,
        [&](int j, int c, float sum) {
          d.dk[j * keys + c] += d.dks[j * keys + c] + f.from[j] * f.beta[j] * xw(j, c) + sum;
        });
    __syncthreads();
    Product(
        count, keys, count, [&](int i, int j) { return d.z[i * kChunk + j] + d.z[j * kChunk + i]; },
        k, [&](int i, int c, float sum) { d.dk[i * keys + c] += sum; });
    __syncthreads();
  }

  // dq and dk of the key head, of the sums over its value heads.
  __device__ void StoreKeys(const Chunk& chunk, const ChunkGradients& d) {
    const int keys = this->keys();
    const float scale = this->QueryScale();
    const auto store = [&](const MutableRows& rows, const float* sums, const float* x,
                           const float* factors, float scale) {
      RowSums(
          chunk.count, keys, [&](int i, int c) { return sums[i * keys + c] * x[i * keys + c]; },
          [&](int i, float sum) { d.terms[i] = sum; });
      __syncthreads();
      ForAll(chunk.count * keys, [&](int64_t at) {
        const int i = static_cast<int>(at) / keys, c = static_cast<int>(at) % keys;
        const float gradient = (sums[at] * scale - x[at] / scale * d.terms[i]) * factors[i];
        this->Row(rows, chunk.first + i, this->key_head_, keys)[c] = FromFloat<T>(gradient);
      });
      __syncthreads();
    };
    store(gradients_.dq, d.dq, chunk.q, this->f_.q, scale);
    store(gradients_.dk, d.dk, chunk.k, this->f_.k, 1.0f);
  }

 private:
  // dbeta, and dg: what all gates between two tokens get adds to the exponent of one and is taken
  // from the other's. fp64, since most of that cancels.
  __device__ void StoreGates(const Chunk& chunk, const ChunkGradients& d, int head, double of_state,
                             const float* of_xu, const float* of_xw, const float* of_dqs,
                             const float* of_dks) {
    __shared__ double dc[kChunk];
    __shared__ double parts[kThreads];
    const Factors& f = this->f_;
    const int count = chunk.count;
    parts[threadIdx.x] = of_state;
    ForAll(count, [&](int64_t token) {
      const int i = static_cast<int>(token);
      double sum = 0.0;
      float of_m = 0.0f;
      for (int j = 0; j < i; ++j) {
        const int at = i * kChunk + j;
        of_m = __fmaf_rn(d.da[at], chunk.m[at], of_m);
        sum += d.dp[at] * chunk.p[at] + d.da[at] * f.beta[i] * chunk.m[at];
      }
      for (int j = i + 1; j < count; ++j) {
        const int at = j * kChunk + i;
        sum -= d.dp[at] * chunk.p[at] + d.da[at] * f.beta[j] * chunk.m[at];
      }
      dc[i] = sum + of_dqs[i] + f.from[i] * f.beta[i] * of_xw[i] - of_dks[i];
      gradients_.dbeta[(chunk.first + i) * this->shape_.value_heads + head] =
          of_xu[i] + f.from[i] * of_xw[i] + of_m;
    });
    __syncthreads();
    if (threadIdx.x == 0) {
      double sum = 0.0;
      for (int i = 0; i < kThreads; ++i) sum += parts[i];
      sum *= f.from[count - 1];
      for (int i = 0; i < count; ++i) sum += of_dks[i];
      for (int i = count - 1; i >= 0; --i) {
        sum += dc[i];
        gradients_.dg[(chunk.first + i) * this->shape_.value_heads + head] =
            static_cast<float>(sum);
      }
    }
    __syncthreads();
  }

  const DeltaGradients& gradients_;
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    PlainBackwardKernel(const __grid_constant__ DeltaShape shape,
                        const __grid_constant__ DeltaOperands operands,
                        const __grid_constant__ DeltaGradients gradients, float* workspace) {
  __shared__ Factors factors;
  const PlainSizes sizes(shape);
  Workspace from{workspace + blockIdx.x * sizes.Backward()};
  Chunk chunk{};
  ChunkGradients d{};
  for (float** keys : {&chunk.q, &chunk.k, &chunk.w, &d.dqs, &d.dks, &d.dw, &d.dq, &d.dk}) {
    *keys = from.Take(sizes.keys);
  }
  for (float** values : {&chunk.v, &chunk.u, &d.dout, &d.n, &d.dn}) {
    *values = from.Take(sizes.values);
  }
  for (float** scores : {&chunk.m, &chunk.p, &d.dp, &d.da, &d.z, &d.terms}) {
    *scores = from.Take(sizes.scores);
  }
  float* dstates = from.Take(sizes.repeats * sizes.state);
  float* states = from.Take(sizes.repeats * sizes.chunks * sizes.state);  // before each chunk
  ForTasks(shape, [&](int key_head, int64_t first, int64_t length) {
    PlainBackwardBlock<T> block(shape, operands, gradients, key_head, factors);
    const int64_t chunks = (length + kChunk - 1) / kChunk;
    const auto at_chunk = [&](int64_t index) {
      __syncthreads();
      chunk.first = first + index * kChunk;
      chunk.count = CountFrom(index * kChunk, length);
      block.LoadKeys(chunk);
    };
    const auto head_of = [&](int r) { return key_head * static_cast<int>(sizes.repeats) + r; };
    const auto state_of = [&](int64_t index, int r) {
      return states + (index * sizes.repeats + r) * sizes.state;
    };
    block.Clear(dstates, sizes.repeats * sizes.state);
    block.Clear(states, sizes.repeats * sizes.state);
    for (int64_t index = 0; index + 1 < chunks; ++index) {
      at_chunk(index);
      for (int r = 0; r < sizes.repeats; ++r) {
        block.Make(chunk, head_of(r));
        block.NewValues(chunk, state_of(index, r), d.n);
        block.Advance(chunk, d.n, state_of(index, r), state_of(index + 1, r));
      }
    }
    for (int64_t index = chunks - 1; index >= 0; --index) {
      at_chunk(index);
      block.Clear(d.dq, sizes.keys);
      block.Clear(d.dk, sizes.keys);
      for (int r = 0; r < sizes.repeats; ++r) {
        block.Make(chunk, head_of(r));
        block.Backward(chunk, d, head_of(r), state_of(index, r), dstates + r * sizes.state);
      }
      block.StoreKeys(chunk, d);
    }
    __syncthreads();
  });
}

}  // namespace

cudaError_t LaunchDeltaPlainBackward(ElementType type, const DeltaShape& shape,
                                     const DeltaOperands& operands, const DeltaGradients& gradients,
                                     float* workspace, int64_t blocks, cudaStream_t stream) {
  const auto kernel = type == ElementType::kFloat32 ? PlainBackwardKernel<float>
                                                    : PlainBackwardKernel<__nv_bfloat16>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(shape, operands, gradients,
                                                                 workspace);
  return cudaGetLastError();
}

}  // namespace sft::engine::cuda
