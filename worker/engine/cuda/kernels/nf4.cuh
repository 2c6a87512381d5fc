// How NF4 weights are read: the tables, and a block's absmax, plain or nested.
#pragma once

#include <cstdint>

#include "worker/engine/kernels/nf4_tables.h"

namespace sft::engine::cuda {

template <int N>
struct Table {
  float values[N];
};

template <int N>
constexpr Table<N> MakeTable(const float (&from)[N]) {
  Table<N> table{};
  for (int i = 0; i < N; ++i) table.values[i] = from[i];
  return table;
}

static __constant__ Table<16> nf4_values = MakeTable(kNf4Values);
static __constant__ Table<256> dynamic_map = MakeTable(kDynamicMap);

struct PlainAbsmax {
  const float* absmax;
  __device__ __forceinline__ float operator()(int64_t block) const { return absmax[block]; }
};

// The product and the sum are rounded one after the other, as two kernels of bitsandbytes do.
struct NestedAbsmax {
  const uint8_t* codes;
  const float* nested_absmax;
  const float* offset;
  __device__ __forceinline__ float operator()(int64_t block) const {
    const float scaled =
        __fmul_rn(dynamic_map.values[codes[block]], nested_absmax[block / kNestedBlock]);
    return __fadd_rn(scaled, *offset);
  }
};

}  // namespace sft::engine::cuda
