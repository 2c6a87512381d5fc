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

// Calls use(gate) with the struct of that kind.
template <typename Use>
decltype(auto) WithGate(plan::ActivationKind kind, const Use& use) {
  return kind == plan::ActivationKind::kSilu ? use(SiluGate()) : use(GeluTanhGate());
}

}  // namespace sft::engine::cuda
