// RMSNorm of each query and key head, then their rotation, in one pass over the fused projection,
// and the gradients back through both in another. A few lanes of a warp own a head and keep it in
// registers; its halves meet in shared memory.
#include <algorithm>

#include "worker/engine/cuda/kernels/rows.cuh"

namespace sft::engine::cuda {
namespace {

struct Angles {
  const float* cos;
  const float* sin;
  bool wide;  // a vector of a head lies in one half of it, and its angles are aligned
};

// Neighbouring heads of one token, which a group of lanes takes at once.
struct Task {
  int64_t token = 0;
  int first_head = 0;
  int heads = 0;  // none past the last task: the lanes only keep up with their warp
};

template <int kHeads>
__device__ __forceinline__ Task TaskOf(const NormRopeShape& shape, int64_t index) {
  const int all = shape.heads + shape.kv_heads;
  const int chunks = (all + kHeads - 1) / kHeads;
  const auto token =
      static_cast<int64_t>(static_cast<uint32_t>(index) / static_cast<uint32_t>(chunks));
  const int first = static_cast<int>(index - token * chunks) * kHeads;
  return {token, first, token < shape.tokens ? min(kHeads, all - first) : 0};
}

template <int N>
__device__ __forceinline__ void LoadAngles(const Angles& angles, int64_t row, int c, int half,
                                           float (&cosines)[N], float (&sines)[N]) {
  if (angles.wide) {
    const int64_t at = row + (c < half ? c : c - half);
    constexpr int kPart = N < 4 ? N : 4;
#pragma unroll
    for (int part = 0; part < N / kPart; ++part) {
      const auto cs = LoadPacked<float, kPart>(angles.cos + at + part * kPart, true);
      const auto ss = LoadPacked<float, kPart>(angles.sin + at + part * kPart, true);
#pragma unroll
      for (int i = 0; i < kPart; ++i) {
        cosines[part * kPart + i] = cs[i];
        sines[part * kPart + i] = ss[i];
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int64_t at = row + (c + i < half ? c + i : c + i - half);
    cosines[i] = angles.cos[at];
    sines[i] = angles.sin[at];
  }
}

// The elements half a head away from those at c, of the head in shared memory.
template <typename T, int N>
__device__ __forceinline__ Packed<T, N> Partners(const T* head, int c, int half, bool wide) {
  if (wide) return LoadPacked<T, N>(head + (c < half ? c + half : c - half), true);
  float x[N];
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = ToFloat(head[c + i < half ? c + i + half : c + i - half]);
  return Packed<T, N>(x);
}

__device__ __forceinline__ float Rotated(bool low, float own, float partner, float cos, float sin) {
  return low ? RotatedLow(own, partner, cos, sin) : RotatedHigh(partner, own, cos, sin);
}

template <typename T>
struct ForwardArguments {
  NormRopeShape shape;
  const T* qkv;
  int64_t qkv_stride;
  const T* q_weight;
  const T* k_weight;
  NormScaling scaling;
  T* q;
  int64_t q_stride;
  T* k;
  int64_t k_stride;
  Angles angles;
  bool wide;  // all heads allow 16-byte accesses
};

template <typename T, typename Config, int kHeads>
__global__ void __launch_bounds__(Config::kThreads)
    NormRopeKernel(const __grid_constant__ ForwardArguments<T> a) {
  constexpr int N = Config::kVector;
  constexpr int kVectors = Config::kVectors;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  const int group = threadIdx.x / Config::kLanes;
  const int lane = threadIdx.x % Config::kLanes;
  const int size = a.shape.size;
  const int half = size / 2;
  T* exchange = reinterpret_cast<T*>(shared_bytes) + group * size;
  const Task task =
      TaskOf<kHeads>(a.shape, static_cast<int64_t>(blockIdx.x) * Config::kRows + group);
  const T* __restrict__ x = a.qkv + task.token * a.qkv_stride + task.first_head * size;
  const auto column = [&](int v) { return (lane + v * Config::kLanes) * N; };

  Packed<T, N> xs[kHeads][kVectors];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (h < task.heads && column(v) < size) {
        xs[h][v] = LoadPacked<T, N>(x + h * size + column(v), a.wide);
      }
    }
  }
  float cosines[kVectors][N], sines[kVectors][N];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (task.heads > 0 && column(v) < size) {
      LoadAngles(a.angles, task.token * half, column(v), half, cosines[v], sines[v]);
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) sum = AddSquares(sum, xs[h][v]);
    const float rstd = Rstd(GroupSum<Config::kLanes>(sum), size, a.scaling.epsilon);
    const int head = task.first_head + h;
    const bool is_query = head < a.shape.heads;
    const T* __restrict__ weight = is_query ? a.q_weight : a.k_weight;
    const bool present = h < task.heads;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!present || column(v) >= size) continue;
      const auto ws = LoadPacked<T, N>(weight + column(v), a.wide);
      float normed[N];
#pragma unroll
      for (int i = 0; i < N; ++i)
        normed[i] = Normalised<T>(xs[h][v][i], ws[i], rstd, a.scaling.form);
      xs[h][v] = Packed<T, N>(normed);
      StorePacked(exchange + column(v), xs[h][v], true);
    }
    __syncwarp();
    T* y = is_query ? a.q + task.token * a.q_stride + head * size
                    : a.k + task.token * a.k_stride + (head - a.shape.heads) * size;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!present || column(v) >= size) continue;
      const auto partners = Partners<T, N>(exchange, column(v), half, a.angles.wide);
      float ys[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        ys[i] = Rotated(column(v) + i < half, xs[h][v][i], partners[i], cosines[v][i], sines[v][i]);
      }
      StorePacked(y + column(v), Packed<T, N>(ys), a.wide);
    }
    __syncwarp();  // before the next head takes this one's place
  }
}

template <typename T>
struct BackwardArguments {
  NormRopeShape shape;
  T* dqkv;
  int64_t dqkv_stride;
  const T* qkv;
  int64_t qkv_stride;
  const T* q_weight;
  const T* k_weight;
  NormScaling scaling;
  Angles angles;
  int64_t tasks_per_block;  // a multiple of the block's groups
  float* partials;          // [blocks, 2, size]: q's weight, then k's
  bool wide;
};

// Turns the gradients back (g), then as RmsNormBackwardKernel: with h = x * rstd and g' = g *
// weight, dx = rstd * (g' - h * mean(g' * h)), dweight = sum of g * cast(h).
template <typename T, typename Config, int kHeads, bool kWeights>
__global__ void __launch_bounds__(Config::kThreads, Config::kVectors == 1 ? (kWeights ? 3 : 4) : 1)
    NormRopeBackwardKernel(const __grid_constant__ BackwardArguments<T> a) {
  constexpr int N = Config::kVector;
  constexpr int kVectors = Config::kVectors;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  const int group = threadIdx.x / Config::kLanes;
  const int lane = threadIdx.x % Config::kLanes;
  const int size = a.shape.size;
  const int half = size / 2;
  T* exchange = reinterpret_cast<T*>(shared_bytes) + group * size;
  const auto column = [&](int v) { return (lane + v * Config::kLanes) * N; };
  float q_sums[kWeights ? kVectors : 1][N] = {}, k_sums[kWeights ? kVectors : 1][N] = {};

  const int64_t first_task = blockIdx.x * a.tasks_per_block;
  for (int64_t done = 0; done < a.tasks_per_block; done += Config::kRows) {
    const Task task = TaskOf<kHeads>(a.shape, first_task + done + group);
    const T* __restrict__ x = a.qkv + task.token * a.qkv_stride + task.first_head * size;
    T* dx = a.dqkv + task.token * a.dqkv_stride + task.first_head * size;
    Packed<T, N> xs[kHeads][kVectors], dys[kHeads][kVectors];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (h < task.heads && column(v) < size) {
          xs[h][v] = LoadPacked<T, N>(x + h * size + column(v), a.wide);
          dys[h][v] = LoadPacked<T, N>(dx + h * size + column(v), a.wide);
        }
      }
    }
    float cosines[kVectors][N], sines[kVectors][N];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (task.heads > 0 && column(v) < size) {
        LoadAngles(a.angles, task.token * half, column(v), half, cosines[v], sines[v]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const bool is_query = task.first_head + h < a.shape.heads;
      const T* __restrict__ weight = is_query ? a.q_weight : a.k_weight;
      const bool present = h < task.heads;
      float sum = 0.0f;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        sum = AddSquares(sum, xs[h][v]);
        if (present && column(v) < size) StorePacked(exchange + column(v), dys[h][v], true);
      }
      __syncwarp();
      const float rstd = Rstd(GroupSum<Config::kLanes>(sum), size, a.scaling.epsilon);
      float gs[kVectors][N] = {};
      float dot = 0.0f;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!present || column(v) >= size) continue;
        const auto partners = Partners<T, N>(exchange, column(v), half, a.angles.wide);
        const auto ws = LoadPacked<T, N>(weight + column(v), a.wide);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const float value = xs[h][v][i];
          float g =
              Rotated(column(v) + i < half, dys[h][v][i], partners[i], cosines[v][i], -sines[v][i]);
          if constexpr (kWeights) {
            const float product = g * RoundedFirst<T>(value, rstd, a.scaling.form);
            q_sums[v][i] += is_query ? product : 0.0f;
            k_sums[v][i] += is_query ? 0.0f : product;
          }
          g *= a.scaling.form.plus + ws[i];
          gs[v][i] = g;
          dot += g * value;
        }
      }
      const float mean = GroupSum<Config::kLanes>(dot) * rstd / static_cast<float>(size);
      KeepPacked(xs[h]);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!present || column(v) >= size) continue;
        float dxs[N];
#pragma unroll
        for (int i = 0; i < N; ++i) dxs[i] = rstd * (gs[v][i] - xs[h][v][i] * rstd * mean);
        StorePacked(dx + h * size + column(v), Packed<T, N>(dxs), a.wide);
      }
      __syncwarp();
    }
  }
  if constexpr (kWeights) {
    __syncthreads();  // the exchange is over; its place takes the sums of the groups
    float* sums = reinterpret_cast<float*>(shared_bytes);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (column(v) >= size) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        sums[group * 2 * size + column(v) + i] = q_sums[v][i];
        sums[group * 2 * size + size + column(v) + i] = k_sums[v][i];
      }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < 2 * size; c += Config::kThreads) {
      float sum = 0.0f;
      for (int g = 0; g < Config::kRows; ++g) sum += sums[g * 2 * size + c];
      a.partials[static_cast<int64_t>(blockIdx.x) * 2 * size + c] = sum;
    }
  }
}

// Heads a group takes at once: enough bytes in flight, and angles loaded once for all of them.
template <typename Config>
inline constexpr int kForwardHeads = Config::kVectors == 1 ? 4 : 1;
template <typename Config>
inline constexpr int kBackwardHeads = Config::kVectors == 1 ? 2 : 1;

// Blocks of the backward that also sums weight gradients; a row of partials each.
constexpr int64_t kMaxPartials = 512;

template <typename Config, int kHeads>
int64_t Tasks(const NormRopeShape& shape) {
  return shape.tokens * CeilDiv(shape.heads + shape.kv_heads, kHeads);
}

template <typename T>
bool AnglesAreWide(const NormRopeShape& shape, const float* cos, const float* sin) {
  return IsAligned<uint4>(cos) && IsAligned<uint4>(sin) && shape.size / 2 % kWide<T> == 0;
}

template <typename T>
cudaError_t NormRope(NormRopeShape shape, ConstRows qkv, const void* q_weight, const void* k_weight,
                     const float* cos, const float* sin, NormScaling scaling, MutableRows q,
                     MutableRows k, cudaStream_t stream) {
  const bool wide = RowsAreWide<T>(qkv.data, qkv.stride) && RowsAreWide<T>(q.data, q.stride) &&
                    RowsAreWide<T>(k.data, k.stride) && IsAligned<uint4>(q_weight) &&
                    IsAligned<uint4>(k_weight);
  const ForwardArguments<T> arguments{shape,
                                      static_cast<const T*>(qkv.data),
                                      qkv.stride,
                                      static_cast<const T*>(q_weight),
                                      static_cast<const T*>(k_weight),
                                      scaling,
                                      static_cast<T*>(q.data),
                                      q.stride,
                                      static_cast<T*>(k.data),
                                      k.stride,
                                      {cos, sin, AnglesAreWide<T>(shape, cos, sin)},
                                      wide};
  ChooseHeadConfig<T>(shape.size, [&](auto config) {
    using Config = decltype(config);
    constexpr int kHeads = kForwardHeads<Config>;
    const auto blocks = static_cast<unsigned>(CeilDiv(Tasks<Config, kHeads>(shape), Config::kRows));
    const auto shared = static_cast<size_t>(Config::kRows * shape.size) * sizeof(T);
    NormRopeKernel<T, Config, kHeads><<<blocks, Config::kThreads, shared, stream>>>(arguments);
  });
  return cudaGetLastError();
}

template <typename T>
cudaError_t NormRopeBackward(NormRopeShape shape, MutableRows dqkv, ConstRows qkv,
                             const void* q_weight, const void* k_weight, const float* cos,
                             const float* sin, NormScaling scaling, float* partials,
                             float* dweights, cudaStream_t stream) {
  const bool wide = RowsAreWide<T>(qkv.data, qkv.stride) &&
                    RowsAreWide<T>(dqkv.data, dqkv.stride) && IsAligned<uint4>(q_weight) &&
                    IsAligned<uint4>(k_weight);
  BackwardArguments<T> arguments{shape,
                                 static_cast<T*>(dqkv.data),
                                 dqkv.stride,
                                 static_cast<const T*>(qkv.data),
                                 qkv.stride,
                                 static_cast<const T*>(q_weight),
                                 static_cast<const T*>(k_weight),
                                 scaling,
                                 {cos, sin, AnglesAreWide<T>(shape, cos, sin)},
                                 0,
                                 partials,
                                 wide};
  int64_t blocks = 0;
  ChooseHeadConfig<T>(shape.size, [&](auto config) {
    using Config = decltype(config);
    constexpr int kHeads = kBackwardHeads<Config>;
    const int64_t rounds = CeilDiv(Tasks<Config, kHeads>(shape), Config::kRows);
    const auto heads_shared = static_cast<size_t>(Config::kRows * shape.size) * sizeof(T);
    if (partials == nullptr) {
      arguments.tasks_per_block = Config::kRows;
      NormRopeBackwardKernel<T, Config, kHeads, false>
          <<<static_cast<unsigned>(rounds), Config::kThreads, heads_shared, stream>>>(arguments);
      return;
    }
    const int64_t rounds_per_block = CeilDiv(rounds, kMaxPartials);
    blocks = CeilDiv(rounds, rounds_per_block);
    arguments.tasks_per_block = rounds_per_block * Config::kRows;
    const auto sums_shared = static_cast<size_t>(Config::kRows * 2 * shape.size) * sizeof(float);
    NormRopeBackwardKernel<T, Config, kHeads, true>
        <<<static_cast<unsigned>(blocks), Config::kThreads, std::max(heads_shared, sums_shared),
           stream>>>(arguments);
  });
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  if (partials == nullptr) return cudaSuccess;
  return LaunchSumRows(partials, blocks, 2 * shape.size, dweights, stream);
}

}  // namespace

int64_t NormRopeMaxHeadSize() { return kMaxHeadSize; }

int64_t NormRopeWeightPartials() { return kMaxPartials; }

cudaError_t LaunchNormRope(ElementType type, NormRopeShape shape, ConstRows qkv,
                           const void* q_weight, const void* k_weight, const float* cos,
                           const float* sin, NormScaling scaling, MutableRows q, MutableRows k,
                           cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? NormRope<float> : NormRope<__nv_bfloat16>;
  return run(shape, qkv, q_weight, k_weight, cos, sin, scaling, q, k, stream);
}

cudaError_t LaunchNormRopeBackward(ElementType type, NormRopeShape shape, MutableRows dqkv,
                                   ConstRows qkv, const void* q_weight, const void* k_weight,
                                   const float* cos, const float* sin, NormScaling scaling,
                                   float* partials, float* dweights, cudaStream_t stream) {
  const auto run =
      type == ElementType::kFloat32 ? NormRopeBackward<float> : NormRopeBackward<__nv_bfloat16>;
  return run(shape, dqkv, qkv, q_weight, k_weight, cos, sin, scaling, partials, dweights, stream);
}

}  // namespace sft::engine::cuda
