#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/nf4_tables.h"
#include "worker/engine/kernels/rows.h"

namespace sft::engine::cpu {

namespace {

using at::Tensor;

constexpr int64_t kGrainBlocks = 1024;
constexpr int kPadCode = 7;

// The two values of every byte, so that a block is 32 loads.
constexpr std::array<std::array<float, 2>, 256> MakePairs() {
  std::array<std::array<float, 2>, 256> pairs{};
  for (int byte = 0; byte < 256; ++byte) {
    pairs[byte] = {kNf4Values[byte >> 4], kNf4Values[byte & 15]};
  }
  return pairs;
}
constexpr std::array<std::array<float, 2>, 256> kPairs = MakePairs();

float FlushSubnormal(float value) {
  return std::fabs(value) < std::numeric_limits<float>::min() ? 0.0f : value;
}

int Nf4Code(float scaled) {
  int code = 0;
  for (float threshold : kNf4Thresholds) code += scaled > threshold;
  return code;
}

// The nearest position of the dynamic map by bitsandbytes' rule: a binary search from the middle,
// then the exact midpoint with the neighbour on the far side; ties stay where the search ended.
uint8_t DynamicCode(float x) {
  int pivot = 127;
  int upper_pivot = 255;
  int lower_pivot = 0;
  for (int step = 64; step > 0; step >>= 1) {
    if (x > kDynamicMap[pivot]) {
      lower_pivot = pivot;
      pivot += step;
    } else {
      upper_pivot = pivot;
      pivot -= step;
    }
  }
  const float value = kDynamicMap[pivot];
  if (x > value) {
    return x > (kDynamicMap[upper_pivot] + value) * 0.5f ? upper_pivot : pivot;
  }
  return x < (kDynamicMap[lower_pivot] + value) * 0.5f ? lower_pivot : pivot;
}

template <typename T>
void QuantizeBlock(const T* weight, int64_t count, uint8_t* codes, float* absmax) {
  float values[kNf4Block];
  float largest = 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    values[i] = FlushSubnormal(static_cast<float>(weight[i]));
    largest = std::max(largest, std::fabs(values[i]));
  }
  const float scale = 1.0f / largest;  // infinite for a zero block: 0 * inf exceeds no threshold
  *absmax = largest;
  for (int64_t i = 0; i < count; i += 2) {
    const int high = Nf4Code(values[i] * scale);
    const int low = i + 1 < count ? Nf4Code(values[i + 1] * scale) : kPadCode;
    codes[i / 2] = static_cast<uint8_t>(high << 4 | low);
  }
}

template <typename T>
void QuantizeAll(const Tensor& weight, Tensor& codes, Tensor& absmax) {
  const T* source = weight.const_data_ptr<T>();
  uint8_t* code = codes.mutable_data_ptr<uint8_t>();
  float* maxima = absmax.mutable_data_ptr<float>();
  const int64_t n = weight.numel();
  at::parallel_for(0, absmax.numel(), kGrainBlocks, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kNf4Block;
      QuantizeBlock(source + first, std::min<int64_t>(kNf4Block, n - first), code + first / 2,
                    maxima + block);
    }
  });
}

__attribute__((always_inline)) inline void ExpandBlock(const uint8_t* codes, float scale,
                                                       float* out) {
  float values[kNf4Block];
  for (int i = 0; i < kNf4Block / 2; ++i) {
    std::memcpy(values + 2 * i, kPairs[codes[i]].data(), 2 * sizeof(float));
  }
  for (int i = 0; i < kNf4Block; ++i) out[i] = values[i] * scale;
}

SFT_SIMD_CLONES void ExpandBlocks(const uint8_t* codes, const float* absmax, int64_t blocks,
                                  float* out) {
  for (int64_t block = 0; block < blocks; ++block) {
    ExpandBlock(codes + block * kNf4Block / 2, absmax[block], out + block * kNf4Block);
  }
}

SFT_SIMD_CLONES void ExpandBlocks(const uint8_t* codes, const float* absmax, int64_t blocks,
                                  c10::BFloat16* out) {
  float values[kNf4Block];
  for (int64_t block = 0; block < blocks; ++block) {
    ExpandBlock(codes + block * kNf4Block / 2, absmax[block], values);
    for (int i = 0; i < kNf4Block; ++i) out[block * kNf4Block + i] = c10::BFloat16(values[i]);
  }
}

// Where the elements go: rows of `columns` elements that start every `stride`.
template <typename T>
struct Target {
  T* values = nullptr;
  int64_t columns = 0;
  int64_t stride = 0;
  T* at(int64_t element) const { return values + element / columns * stride + element % columns; }
};

// Elements [first, first + count) one by one: an even `first`, rows that end anywhere.
template <typename T>
void ExpandAnywhere(const uint8_t* codes, float scale, int64_t first, int64_t count,
                    const Target<T>& target) {
  for (int64_t i = first; i < first + count; ++i) {
    *target.at(i) = static_cast<T>(kPairs[codes[i / 2]][i & 1] * scale);
  }
}

// Whole blocks [begin, end), each of which lies in one row where rows are a multiple of blocks.
template <typename T>
void ExpandRows(const uint8_t* codes, const float* absmax, int64_t begin, int64_t end,
                const Target<T>& target) {
  if (target.columns % kNf4Block != 0) {
    for (int64_t block = begin; block < end; ++block) {
      ExpandAnywhere(codes, absmax[block - begin], block * kNf4Block, kNf4Block, target);
    }
    return;
  }
  const int64_t blocks_per_row = target.columns / kNf4Block;
  for (int64_t block = begin; block < end;) {
    const int64_t stop = std::min(end, (block / blocks_per_row + 1) * blocks_per_row);
    ExpandBlocks(codes + block * kNf4Block / 2, absmax + (block - begin), stop - block,
                 target.at(block * kNf4Block));
    block = stop;
  }
}

// `absmax_of(begin, end, buffer)` gives the absmax of blocks [begin, end).
template <typename T, typename AbsmaxOf>
void DequantizeAll(Tensor& out, const Tensor& codes, const AbsmaxOf& absmax_of) {
  const uint8_t* code = codes.const_data_ptr<uint8_t>();
  const int64_t n = out.numel();
  const int64_t whole = n / kNf4Block;
  // One long row where there are no gaps; a ragged end of it is not a whole block.
  Target<T> target{out.mutable_data_ptr<T>(), whole * kNf4Block, whole * kNf4Block};
  if (!out.is_contiguous()) target = {target.values, out.size(1), out.stride(0)};
  at::parallel_for(0, whole, kGrainBlocks, [&](int64_t begin, int64_t end) {
    float local[kNestedBlock];
    while (begin < end) {
      const int64_t stop = std::min(end, (begin / kNestedBlock + 1) * kNestedBlock);
      ExpandRows(code, absmax_of(begin, stop, local), begin, stop, target);
      begin = stop;
    }
  });
  if (n == whole * kNf4Block) return;
  if (out.is_contiguous()) target = {target.values, n, n};
  float buffer[kNestedBlock];
  ExpandAnywhere(code, *absmax_of(whole, whole + 1, buffer), whole * kNf4Block,
                 n - whole * kNf4Block, target);
}

template <typename AbsmaxOf>
void DequantizeAs(Tensor& out, const Tensor& codes, int64_t blocks, const AbsmaxOf& absmax_of) {
  if (!out.is_contiguous()) {
    TORCH_CHECK(out.dim() == 2, "Nf4Dequantize: out is ", out.sizes(), " with strides ",
                out.strides(), ", must be rows or dense");
    CheckRows(out, out.size(0), out.size(1), out, "Nf4Dequantize: out");
  }
  TORCH_CHECK(codes.numel() == (out.numel() + 1) / 2, "Nf4Dequantize: ", out.numel(),
              " elements need ", (out.numel() + 1) / 2, " bytes of codes, got ", codes.numel());
  TORCH_CHECK(blocks == (out.numel() + kNf4Block - 1) / kNf4Block, "Nf4Dequantize: got ", blocks,
              " absmax for ", out.numel(), " elements");
  if (out.scalar_type() == at::kFloat) {
    DequantizeAll<float>(out, codes, absmax_of);
  } else {
    TORCH_CHECK(out.scalar_type() == at::kBFloat16, "Nf4Dequantize: out must be fp32 or bf16");
    DequantizeAll<c10::BFloat16>(out, codes, absmax_of);
  }
}

}  // namespace

ops::Nf4Codes Nf4Quantize(const Tensor& weight) {
  TORCH_CHECK(weight.is_contiguous(), "Nf4Quantize: weight must be contiguous");
  const int64_t n = weight.numel();
  Tensor codes = at::empty({(n + 1) / 2}, at::kByte);
  Tensor absmax = at::empty({(n + kNf4Block - 1) / kNf4Block}, at::kFloat);
  if (weight.scalar_type() == at::kFloat) {
    QuantizeAll<float>(weight, codes, absmax);
  } else {
    TORCH_CHECK(weight.scalar_type() == at::kBFloat16, "Nf4Quantize: weight must be fp32 or bf16");
    QuantizeAll<c10::BFloat16>(weight, codes, absmax);
  }
  return {codes, absmax};
}

std::tuple<Tensor, Tensor> AbsmaxQuantizeAround(const Tensor& absmax, float offset) {
  const int64_t count = absmax.numel();
  Tensor codes = at::empty({count}, at::kByte);
  Tensor nested = at::empty({(count + kNestedBlock - 1) / kNestedBlock}, at::kFloat);
  const float* source = absmax.const_data_ptr<float>();
  uint8_t* code = codes.mutable_data_ptr<uint8_t>();
  float* maxima = nested.mutable_data_ptr<float>();
  at::parallel_for(0, nested.numel(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kNestedBlock;
      const int64_t last = std::min<int64_t>(first + kNestedBlock, count);
      float largest = 0.0f;
      for (int64_t i = first; i < last; ++i) {
        largest = std::max(largest, std::fabs(FlushSubnormal(source[i] - offset)));
      }
      maxima[block] = largest;
      const float scale = 1.0f / largest;
      for (int64_t i = first; i < last; ++i) {
        code[i] = DynamicCode(FlushSubnormal(source[i] - offset) * scale);
      }
    }
  });
  return {codes, nested};
}

ops::NestedAbsmax AbsmaxQuantize(const Tensor& absmax) {
  TORCH_CHECK(absmax.scalar_type() == at::kFloat && absmax.is_contiguous(),
              "AbsmaxQuantize: absmax must be contiguous fp32");
  const float* values = absmax.const_data_ptr<float>();
  double sum = 0.0;
  for (int64_t i = 0; i < absmax.numel(); ++i) sum += values[i];
  const float offset = static_cast<float>(sum / static_cast<double>(absmax.numel()));
  auto [codes, nested] = AbsmaxQuantizeAround(absmax, offset);
  return {codes, nested, at::scalar_tensor(offset, at::kFloat)};
}

void Nf4Dequantize(Tensor& out, const Tensor& codes, const Tensor& absmax) {
  const float* maxima = absmax.const_data_ptr<float>();
  DequantizeAs(out, codes, absmax.numel(),
               [maxima](int64_t begin, int64_t, float*) { return maxima + begin; });
}

void Nf4DequantizeNested(Tensor& out, const Tensor& codes, const Tensor& absmax_codes,
                         const Tensor& nested_absmax, const Tensor& offset) {
  TORCH_CHECK(nested_absmax.numel() == (absmax_codes.numel() + kNestedBlock - 1) / kNestedBlock,
              "Nf4DequantizeNested: got ", nested_absmax.numel(), " nested absmax for ",
              absmax_codes.numel(), " absmax codes");
  const uint8_t* code = absmax_codes.const_data_ptr<uint8_t>();
  const float* maxima = nested_absmax.const_data_ptr<float>();
  const float mean = *offset.const_data_ptr<float>();
  DequantizeAs(out, codes, absmax_codes.numel(),
               [=](int64_t begin, int64_t end, float* buffer) -> const float* {
                 for (int64_t i = begin; i < end; ++i) {
                   buffer[i - begin] = kDynamicMap[code[i]] * maxima[i / kNestedBlock] + mean;
                 }
                 return buffer;
               });
}

}  // namespace sft::engine::cpu
