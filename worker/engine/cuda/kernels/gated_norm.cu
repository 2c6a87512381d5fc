// The gated RMSNorm behind linear attention: heads one by one, each in the registers of up to a
// warp; every input is read once.
#include "worker/engine/cuda/kernels/gates.cuh"
#include "worker/engine/cuda/kernels/linear_attention.h"
#include "worker/engine/cuda/kernels/rows.cuh"

namespace sft::engine::cuda {
namespace {

static_assert(kMostGatedNormSize == kMaxHeadSize);
// Heads that a group of threads takes, one after the other, in the backward: their gradients of the
// weight are summed in registers.
constexpr int kHeadsInTurn = 16;

template <typename T>
struct GatedArguments {
  GatedNormShape shape;
  const T* x;
  int64_t x_stride;
  const T* gate;
  int64_t gate_stride;
  const T* dy;  // of the backward
  int64_t dy_stride;
  const float* weight;
  float epsilon;
  T* out;  // of the backward: dx, which may be dy
  int64_t out_stride;
  T* dgate;
  int64_t dgate_stride;
  float* rstd;              // of the forward
  const float* known_rstd;  // of the backward
  float* partials;
  bool wide;
};

// A head by its number among all tokens' heads.
struct HeadPlace {
  int64_t token, column;
  template <typename T>
  __device__ __forceinline__ HeadPlace(const GatedArguments<T>& a, int64_t head)
      : token(head / a.shape.heads), column(head % a.shape.heads * a.shape.size) {}
};

template <typename T, typename Config>
__global__ void __launch_bounds__(Config::kThreads)
    GatedRmsNormKernel(const __grid_constant__ GatedArguments<T> a) {
  constexpr int N = Config::kVector;
  constexpr int kStep = Config::kLanes * N;
  const int first = static_cast<int>(threadIdx.x) % Config::kLanes * N;
  const int64_t head =
      static_cast<int64_t>(blockIdx.x) * Config::kRows + threadIdx.x / Config::kLanes;
  // No lane may miss the sum.
  const int size = head < a.shape.tokens * a.shape.heads ? a.shape.size : 0;
  const HeadPlace place(a, head);
  const T* __restrict__ x = a.x + place.token * a.x_stride + place.column;
  const T* __restrict__ gate = a.gate + place.token * a.gate_stride + place.column;
  T* y = a.out + place.token * a.out_stride + place.column;
  Packed<T, N> xs[Config::kVectors], gates[Config::kVectors];
  float sum = 0.0f;
#pragma unroll
  for (int v = 0; v < Config::kVectors; ++v) {
    const int c = first + v * kStep;
    if (c < size) {
      xs[v] = LoadPacked<T, N>(x + c, a.wide);
      gates[v] = LoadPacked<T, N>(gate + c, a.wide);
    }
  }
#pragma unroll
  for (int v = 0; v < Config::kVectors; ++v) sum = AddSquares(sum, xs[v]);
  const float rstd = Rstd(RowSum<Config::kLanes>(sum), a.shape.size, a.epsilon);
  if (first == 0 && size > 0) a.rstd[head] = rstd;
#pragma unroll
  for (int v = 0; v < Config::kVectors; ++v) {
    const int c = first + v * kStep;
    if (c >= size) break;
    float results[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float z = gates[v][i];
      results[i] = a.weight[c + i] * Rounded<T>(__fmul_rn(xs[v][i], rstd)) * (z * Sigmoid(z));
    }
    StorePacked(y + c, Packed<T, N>(results), a.wide);
  }
}

template <typename T, typename Config, bool kWeights>
__global__ void __launch_bounds__(Config::kThreads)
    GatedRmsNormBackwardKernel(const __grid_constant__ GatedArguments<T> a) {
  constexpr int N = Config::kVector;
  constexpr int kStep = Config::kLanes * N;
  const int first = static_cast<int>(threadIdx.x) % Config::kLanes * N;
  const int row = static_cast<int>(threadIdx.x) / Config::kLanes;
  float weight[Config::kVectors][N] = {}, dweight[Config::kVectors][N] = {};
#pragma unroll
  for (int v = 0; v < Config::kVectors; ++v) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int c = first + v * kStep + i;
      if (c < a.shape.size) weight[v][i] = a.weight[c];
    }
  }
  for (int turn = 0; turn < kHeadsInTurn; ++turn) {
    const int64_t head =
        (static_cast<int64_t>(blockIdx.x) * kHeadsInTurn + turn) * Config::kRows + row;
    // No lane may miss the sum.
    const bool there = head < a.shape.tokens * a.shape.heads;
    const int size = there ? a.shape.size : 0;
    const float rstd = there ? a.known_rstd[head] : 0.0f;
    const HeadPlace place(a, head);
    const T* x = a.x + place.token * a.x_stride + place.column;
    const T* gate = a.gate + place.token * a.gate_stride + place.column;
    const T* dy = a.dy + place.token * a.dy_stride + place.column;
    T* dx = a.out + place.token * a.out_stride + place.column;
    T* dgate = a.dgate + place.token * a.dgate_stride + place.column;
    Packed<T, N> xs[Config::kVectors], gates[Config::kVectors], dys[Config::kVectors];
#pragma unroll
    for (int v = 0; v < Config::kVectors; ++v) {
      const int c = first + v * kStep;
      if (c < size) {
        xs[v] = LoadPacked<T, N>(x + c, a.wide);
        gates[v] = LoadPacked<T, N>(gate + c, a.wide);
        dys[v] = LoadPacked<T, N>(dy + c, a.wide);
      }
    }
    float dot = 0.0f;
    float of_normed[Config::kVectors][N];  // the gradient of x * rstd
#pragma unroll
    for (int v = 0; v < Config::kVectors; ++v) {
      const int c = first + v * kStep;
      float of_gate[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float z = gates[v][i], share = Sigmoid(z), d = dys[v][i];
        const float normed = Rounded<T>(__fmul_rn(xs[v][i], rstd));
        const float of_product = d * (z * share);
        of_gate[i] = d * weight[v][i] * normed * (share * (1.0f + z * (1.0f - share)));
        of_normed[v][i] = of_product * weight[v][i];
        if constexpr (kWeights) dweight[v][i] = __fmaf_rn(of_product, normed, dweight[v][i]);
        dot = __fmaf_rn(of_normed[v][i], xs[v][i], dot);
      }
      if (c < size) StorePacked(dgate + c, Packed<T, N>(of_gate), a.wide);
    }
    const float along =
        RowSum<Config::kLanes>(dot) * rstd * rstd / static_cast<float>(a.shape.size);
#pragma unroll
    for (int v = 0; v < Config::kVectors; ++v) {
      const int c = first + v * kStep;
      if (c >= size) break;
      float results[N];
#pragma unroll
      for (int i = 0; i < N; ++i) results[i] = rstd * (of_normed[v][i] - xs[v][i] * along);
      StorePacked(dx + c, Packed<T, N>(results), a.wide);
    }
  }
  if constexpr (kWeights) {
    __shared__ float shared[Config::kRows][kStep + 1];
#pragma unroll
    for (int v = 0; v < Config::kVectors; ++v) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < N; ++i) shared[row][first + i] = dweight[v][i];
      __syncthreads();
      for (int c = static_cast<int>(threadIdx.x); c < kStep; c += Config::kThreads) {
        if (v * kStep + c >= a.shape.size) break;
        float sum = 0.0f;
        for (int r = 0; r < Config::kRows; ++r) sum += shared[r][c];
        a.partials[static_cast<int64_t>(blockIdx.x) * a.shape.size + v * kStep + c] = sum;
      }
    }
  }
}

template <typename T>
int64_t BackwardBlocks(GatedNormShape shape) {
  int64_t blocks = 0;
  ChooseHeadConfig<T>(shape.size, [&](auto config) {
    blocks = CeilDiv(shape.tokens * shape.heads, decltype(config)::kRows * kHeadsInTurn);
  });
  return blocks;
}

template <typename T>
GatedArguments<T> ArgumentsOf(GatedNormShape shape, ConstRows x, ConstRows gate, ConstRows dy,
                              const float* weight, MutableRows out, MutableRows dgate) {
  const auto wide = [](const auto& rows) {
    return rows.data == nullptr || RowsAreWide<T>(rows.data, rows.stride);
  };
  return {.shape = shape,
          .x = static_cast<const T*>(x.data),
          .x_stride = x.stride,
          .gate = static_cast<const T*>(gate.data),
          .gate_stride = gate.stride,
          .dy = static_cast<const T*>(dy.data),
          .dy_stride = dy.stride,
          .weight = weight,
          .epsilon = 0.0f,
          .out = static_cast<T*>(out.data),
          .out_stride = out.stride,
          .dgate = static_cast<T*>(dgate.data),
          .dgate_stride = dgate.stride,
          .rstd = nullptr,
          .known_rstd = nullptr,
          .partials = nullptr,
          .wide = wide(x) && wide(gate) && wide(dy) && wide(out) && wide(dgate)};
}

template <typename T>
cudaError_t Forward(GatedNormShape shape, ConstRows x, ConstRows gate, const float* weight,
                    float epsilon, MutableRows y, float* rstd, cudaStream_t stream) {
  GatedArguments<T> arguments = ArgumentsOf<T>(shape, x, gate, {}, weight, y, {});
  arguments.epsilon = epsilon;
  arguments.rstd = rstd;
  ChooseHeadConfig<T>(shape.size, [&](auto config) {
    using Config = decltype(config);
    const auto blocks = static_cast<unsigned>(CeilDiv(shape.tokens * shape.heads, Config::kRows));
    GatedRmsNormKernel<T, Config><<<blocks, Config::kThreads, 0, stream>>>(arguments);
  });
  return cudaGetLastError();
}

template <typename T>
cudaError_t Backward(GatedNormShape shape, ConstRows dy, ConstRows x, ConstRows gate,
                     const float* weight, const float* rstd, MutableRows dx, MutableRows dgate,
                     float* partials, float* dweight, cudaStream_t stream) {
  GatedArguments<T> arguments = ArgumentsOf<T>(shape, x, gate, dy, weight, dx, dgate);
  arguments.known_rstd = rstd;
  arguments.partials = partials;
  const int64_t blocks = BackwardBlocks<T>(shape);
  ChooseHeadConfig<T>(shape.size, [&](auto config) {
    using Config = decltype(config);
    const auto kernel = partials != nullptr ? GatedRmsNormBackwardKernel<T, Config, true>
                                            : GatedRmsNormBackwardKernel<T, Config, false>;
    kernel<<<static_cast<unsigned>(blocks), Config::kThreads, 0, stream>>>(arguments);
  });
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess || partials == nullptr) return error;
  return LaunchSumRows(partials, blocks, shape.size, dweight, stream);
}

}  // namespace

cudaError_t LaunchGatedRmsNorm(ElementType type, GatedNormShape shape, ConstRows x, ConstRows gate,
                               const float* weight, float epsilon, MutableRows y, float* rstd,
                               cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? Forward<float> : Forward<__nv_bfloat16>;
  return run(shape, x, gate, weight, epsilon, y, rstd, stream);
}

int64_t GatedNormPartials(ElementType type, GatedNormShape shape) {
  return type == ElementType::kFloat32 ? BackwardBlocks<float>(shape)
                                       : BackwardBlocks<__nv_bfloat16>(shape);
}

cudaError_t LaunchGatedRmsNormBackward(ElementType type, GatedNormShape shape, ConstRows dy,
                                       ConstRows x, ConstRows gate, const float* weight,
                                       const float* rstd, MutableRows dx, MutableRows dgate,
                                       float* partials, float* dweight, cudaStream_t stream) {
  const auto run = type == ElementType::kFloat32 ? Backward<float> : Backward<__nv_bfloat16>;
  return run(shape, dy, x, gate, weight, rstd, dx, dgate, partials, dweight, stream);
}

}  // namespace sft::engine::cuda
