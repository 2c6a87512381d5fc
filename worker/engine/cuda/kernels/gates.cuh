#pragma once

#include "worker/engine/cuda/kernels/rows.cuh"

// The gated activations out = act(gate) * up and their gradients, of one element.

namespace sft::engine::cuda {

// The gradients of gate and up.
struct GateGradients {
  float gate, up;
};

__device__ __forceinline__ float Sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

struct SiluGate {
  static constexpr bool kPairs = false;

  static __device__ __forceinline__ float Product(float gate, float up) {
    return gate * Sigmoid(gate) * up;
  }
  // d silu(g) / dg = s * (1 + g * (1 - s)) with s = sigmoid(g).
  static __device__ __forceinline__ GateGradients Backward(float dy, float gate, float up) {
    const float s = Sigmoid(gate);
    return {dy * up * s * (1.0f + gate * (1.0f - s)), dy * gate * s};
  }
};

// g (1 + tanh(u)) / 2 with u = k (g + c g^3), which is g sigmoid(2 u).
struct GeluTanhGate {
  static constexpr bool kPairs = false;
  static constexpr float kTwice = 1.5957691216057307118f;  // 2 k = 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f;               // c

  static __device__ __forceinline__ float Share(float gate) {
    return Sigmoid(kTwice * gate * (1.0f + kCubic * gate * gate));
  }
  static __device__ __forceinline__ float Product(float gate, float up) {
    return gate * Share(gate) * up;
  }
  // With s = sigmoid(2 u), d gelu(g) / dg = s * (1 + g * (1 - s) * 2 k (1 + 3 c g^2)).
  static __device__ __forceinline__ GateGradients Backward(float dy, float gate, float up) {
    const float s = Share(gate);
    const float slope = kTwice * (1.0f + 3.0f * kCubic * gate * gate);
    return {dy * up * s * (1.0f + gate * (1.0f - s) * slope), dy * gate * s};
  }
};

// plan::ActivationKind::kClampedSwiGlu, whose gates and ups stand in pairs: (u' + 1) g' s with s =
// sigmoid(1.702 g'), g' = g up to 7, u' = u between -7 and 7. At the limits themselves the gradient
// passes. What is not a number stays so.
struct ClampedGate {
  static constexpr bool kPairs = true;
  static constexpr float kLimit = 7.0f, kSlope = 1.702f;

  static __device__ __forceinline__ float ClampGate(float gate) {
    return gate > kLimit ? kLimit : gate;
  }
  static __device__ __forceinline__ float ClampUp(float up) {
    return up > kLimit ? kLimit : (up < -kLimit ? -kLimit : up);
  }
  static __device__ __forceinline__ float Product(float gate, float up) {
    const float g = ClampGate(gate);
    return (ClampUp(up) + 1.0f) * g * Sigmoid(kSlope * g);
  }
  static __device__ __forceinline__ GateGradients Backward(float dy, float gate, float up) {
    const float g = ClampGate(gate), s = Sigmoid(kSlope * g);
    const float slope = s * (1.0f + kSlope * g * (1.0f - s));
    return {gate > kLimit ? 0.0f : dy * (ClampUp(up) + 1.0f) * slope,
            fabsf(up) > kLimit ? 0.0f : dy * g * s};
  }
};

// Where the two vectors of N elements stand that hold N gates and N ups from column `c` of a row of
// `width` of each.
template <typename Gate, int N>
__device__ __forceinline__ int64_t FirstPlace(int64_t c) {
  return Gate::kPairs ? 2 * c : c;
}
template <typename Gate, int N>
__device__ __forceinline__ int64_t SecondPlace(int64_t c, int64_t width) {
  return Gate::kPairs ? 2 * c + N : width + c;
}

// The gates and ups of such vectors, which index by element; and back.
template <typename Gate, int N, typename Values>
__device__ __forceinline__ void SplitGates(const Values& first, const Values& second,
                                           float (&gates)[N], float (&ups)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (Gate::kPairs) {
      gates[i] = 2 * i < N ? first[(2 * i) % N] : second[(2 * i) % N];
      ups[i] = 2 * i + 1 < N ? first[(2 * i + 1) % N] : second[(2 * i + 1) % N];
    } else {
      gates[i] = first[i];
      ups[i] = second[i];
    }
  }
}
template <typename Gate, int N>
__device__ __forceinline__ void JoinGates(const float (&gates)[N], const float (&ups)[N],
                                          float (&first)[N], float (&second)[N]) {
#pragma unroll
  for (int i = 0; i < 2 * N; ++i) {
    const bool gate = Gate::kPairs ? i % 2 == 0 : i < N;
    const int of = Gate::kPairs ? i / 2 : i % N;
    (i < N ? first : second)[i % N] = gate ? gates[of] : ups[of];
  }
}

// N gates and N ups from column `c` of a row of `width` of each.
template <typename Gate, typename T, int N>
__device__ __forceinline__ void LoadGates(const T* row, int64_t c, int64_t width, float (&gates)[N],
                                          float (&ups)[N]) {
  float first[N], second[N];
  Load(row + FirstPlace<Gate, N>(c), first);
  Load(row + SecondPlace<Gate, N>(c, width), second);
  SplitGates<Gate>(first, second, gates, ups);
}
template <typename Gate, typename T, int N>
__device__ __forceinline__ void StoreGates(T* row, int64_t c, int64_t width,
                                           const float (&gates)[N], const float (&ups)[N]) {
  float first[N], second[N];
  JoinGates<Gate>(gates, ups, first, second);
  Store(row + FirstPlace<Gate, N>(c), first);
  Store(row + SecondPlace<Gate, N>(c, width), second);
}

// Calls use(gate) with the struct of that kind, of those that have gates and ups in halves.
template <typename Use>
decltype(auto) WithGate(plan::ActivationKind kind, const Use& use) {
  return kind == plan::ActivationKind::kSilu ? use(SiluGate()) : use(GeluTanhGate());
}
// The same of all kinds.
template <typename Use>
decltype(auto) WithAnyGate(plan::ActivationKind kind, const Use& use) {
  if (kind == plan::ActivationKind::kClampedSwiGlu) return use(ClampedGate());
  return WithGate(kind, use);
}

}  // namespace sft::engine::cuda
