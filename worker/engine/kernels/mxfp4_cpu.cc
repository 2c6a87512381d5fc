#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/mxfp4_format.h"
#include "worker/engine/kernels/rows.h"

namespace sft::engine::cpu {

using at::Tensor;

namespace {

template <typename T>
void DequantizeAs(Tensor& out, const Tensor& codes, const Tensor& scales) {
  T* values = out.mutable_data_ptr<T>();
  const uint8_t* bytes = codes.const_data_ptr<uint8_t>();
  const uint8_t* exponents = scales.const_data_ptr<uint8_t>();
  const int64_t n = out.numel(), blocks = (n + kMxfp4Block - 1) / kMxfp4Block;
  at::parallel_for(0, blocks, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const auto scale = std::bit_cast<float>(static_cast<uint32_t>(exponents[block]) << 23);
      const int64_t first = block * kMxfp4Block, last = std::min(n, first + kMxfp4Block);
      for (int64_t i = first; i < last; ++i) {
        const int code = i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4;
        values[i] = static_cast<T>(kE2m1Values[code] * scale);
      }
    }
  });
}

}  // namespace

void Mxfp4Dequantize(Tensor& out, const Tensor& codes, const Tensor& scales) {
  CheckMxfp4(out, codes, scales);
  if (out.scalar_type() == at::kFloat) {
    DequantizeAs<float>(out, codes, scales);
  } else {
    DequantizeAs<at::BFloat16>(out, codes, scales);
  }
}

}  // namespace sft::engine::cpu
