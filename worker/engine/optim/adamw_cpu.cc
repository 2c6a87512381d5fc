#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/optim/adamw_state.h"
#include "worker/engine/optim/dynamic_map.h"

// Elements pass through buffers of one chunk that stay in the first-level cache: loading, the
// update and rounding are loops of their own, each for one type, that the compiler vectorises.

namespace sft::engine::optim {
namespace {

constexpr int64_t kChunk = 4 * kOptimizerBlock;
// Chunks that are worth a thread of their own.
constexpr int64_t kGrainChunks = 16;

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

SFT_SIMD_CLONES void LoadBf16(const uint16_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

SFT_SIMD_CLONES void Scale(const float* from, float* to, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i] * factor;
}

// Adds 16 random bits below the last kept one and cuts; NaN stays NaN.
SFT_SIMD_CLONES void StoreBf16Stochastic(const float* from, uint16_t* to, const uint32_t* random,
                                         int shift, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = BitsOf(from[i]);
    const uint32_t rounded = (bits + (random[i] >> shift & 0xffff)) >> 16;
    const bool special = (bits & 0x7f800000) == 0x7f800000;
    const uint32_t kept = bits >> 16 | ((bits & 0x007fffff) != 0 ? 0x40 : 0);
    to[i] = static_cast<uint16_t>(special ? kept : rounded);
  }
}

SFT_SIMD_CLONES void StoreBf16Nearest(const float* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = BitsOf(from[i]);
    const bool special = (bits & 0x7f800000) == 0x7f800000;
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t kept = bits >> 16 | ((bits & 0x007fffff) != 0 ? 0x40 : 0);
    to[i] = static_cast<uint16_t>(special ? kept : rounded);
  }
}

SFT_SIMD_CLONES void RandomBits(uint64_t hash, uint32_t first, uint32_t* states, uint32_t* weights,
                                int64_t count) {
  const auto low = static_cast<uint32_t>(hash), high = static_cast<uint32_t>(hash >> 32);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t x = (first + static_cast<uint32_t>(i)) * kWeyl + low;
    x ^= x >> 16;
    x *= kMix1;
    x ^= x >> 15;
    x *= kMix2;
    x ^= x >> 16;
    states[i] = x;
    x ^= high;
    x ^= x >> 16;
    x *= kMix1;
    x ^= x >> 15;
    x *= kMix2;
    weights[i] = x ^ x >> 16;
  }
}

// The formula of adamw.h in the order of torch's operations.
SFT_SIMD_CLONES void Update(const ops::AdamWFactors& s, float* __restrict w,
                            const float* __restrict g, float* __restrict m, float* __restrict v,
                            int64_t count) {
  const float keep = s.keep, w1 = s.one_minus_beta1, beta2 = s.beta2, w2 = s.one_minus_beta2;
  const float step = -s.step_size, bias2 = s.sqrt_bias2, epsilon = s.epsilon;
  for (int64_t i = 0; i < count; ++i) {
    m[i] = m[i] + w1 * (g[i] - m[i]);
    v[i] = v[i] * beta2 + w2 * g[i] * g[i];
    w[i] = w[i] * keep + step * m[i] / (std::sqrt(v[i]) / bias2 + epsilon);
  }
}

SFT_SIMD_CLONES float AbsMax(const float* values, int64_t count) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, std::fabs(values[i]));
  return most;
}

void Decode(const DynamicMap& map, const uint8_t* codes, const float* absmax, float* to,
            int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = map.values()[codes[i]] * absmax[i / kOptimizerBlock];
}

struct Buffers {
  alignas(64) std::array<float, kChunk> w, g, m, v;
  alignas(64) std::array<uint32_t, kChunk> state_bits, weight_bits;
};

uint16_t* Bf16(const at::Tensor& tensor) { return static_cast<uint16_t*>(tensor.data_ptr()); }
float* Fp32(const at::Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }
bool IsBf16(const at::Tensor& tensor) { return tensor.scalar_type() == at::kBFloat16; }

// Elements [begin, begin + count) of one parameter, count <= kChunk.
class Chunk {
 public:
  Chunk(const Step& step, Buffers& buffers, int64_t begin, int64_t count)
      : s_(step), b_(buffers), begin_(begin), count_(count) {}

  void Run() {
    float* w = Load(s_.weight, b_.w.data());
    const float* g = LoadGrad();
    float *m, *v;
    if (s_.m_absmax->defined()) {
      const int64_t block = begin_ / kOptimizerBlock;
      m = b_.m.data();
      v = b_.v.data();
      Decode(DynamicMap::Signed(), Codes(*s_.m), Fp32(*s_.m_absmax) + block, m, count_);
      Decode(DynamicMap::Unsigned(), Codes(*s_.v), Fp32(*s_.v_absmax) + block, v, count_);
    } else {
      m = Load(*s_.m, b_.m.data());
      v = Load(*s_.v, b_.v.data());
    }
    Update(s_.factors, w, g, m, v, count_);
    Store(w, m, v);
  }

 private:
  uint8_t* Codes(const at::Tensor& tensor) const {
    return static_cast<uint8_t*>(tensor.data_ptr()) + begin_;
  }

  // fp32 is worked on in place.
  float* Load(const at::Tensor& tensor, float* buffer) const {
    if (!IsBf16(tensor)) return Fp32(tensor) + begin_;
    LoadBf16(Bf16(tensor) + begin_, buffer, count_);
    return buffer;
  }

  const float* LoadGrad() {
    const float* from = Load(s_.grad, b_.g.data());
    if (s_.factors.grad_scale == 1) return from;
    Scale(from, b_.g.data(), s_.factors.grad_scale, count_);
    return b_.g.data();
  }

  void FillRandomBits() {
    for (int64_t done = 0; done < count_;) {
      const int64_t element = s_.offset + begin_ + done;
      const int64_t low = element & 0xffff;
      const int64_t part = std::min(count_ - done, 0x10000 - low);
      RandomBits(HashHigh(s_.key, element), static_cast<uint32_t>(low), b_.state_bits.data() + done,
                 b_.weight_bits.data() + done, part);
      done += part;
    }
  }

  void Store(const float* w, const float* m, const float* v) {
    if (IsBf16(s_.weight) || IsBf16(*s_.m)) FillRandomBits();
    if (IsBf16(s_.weight)) {
      StoreBf16Stochastic(w, Bf16(s_.weight) + begin_, b_.weight_bits.data(), 0, count_);
    }
    if (s_.m_absmax->defined()) {
      const int64_t block = begin_ / kOptimizerBlock;
      EncodeBlocks(DynamicMap::Signed(), m, Codes(*s_.m), Fp32(*s_.m_absmax) + block, 0, count_);
      EncodeBlocks(DynamicMap::Unsigned(), v, Codes(*s_.v), Fp32(*s_.v_absmax) + block,
                   kSecondMomentFloor, count_);
    } else if (IsBf16(*s_.m)) {
      StoreBf16Stochastic(m, Bf16(*s_.m) + begin_, b_.state_bits.data(), 0, count_);
      StoreBf16Stochastic(v, Bf16(*s_.v) + begin_, b_.state_bits.data(), 16, count_);
    }
    if (s_.copy.defined()) StoreCopy(w);
  }

  void StoreCopy(const float* w) {
    if (IsBf16(s_.weight)) {
      LoadBf16(Bf16(s_.weight) + begin_, Fp32(s_.copy) + begin_, count_);
    } else {
      StoreBf16Nearest(w, Bf16(s_.copy) + begin_, count_);
    }
  }

  const Step& s_;
  Buffers& b_;
  int64_t begin_;
  int64_t count_;
};

}  // namespace

void EncodeBlocks(const DynamicMap& map, const float* from, uint8_t* codes, float* absmax,
                  uint8_t floor, int64_t count) {
  for (int64_t begin = 0; begin < count; begin += kOptimizerBlock) {
    const int64_t end = std::min(begin + kOptimizerBlock, count);
    const float most = AbsMax(from + begin, end - begin);
    absmax[begin / kOptimizerBlock] = most;
    const float inverse = most > 0 ? 1 / most : 0;
    for (int64_t i = begin; i < end; ++i) {
      const uint8_t code = map.Nearest(from[i] * inverse);
      codes[i] = from[i] > 0 ? std::max(code, floor) : code;
    }
  }
}

void StepCpu(const Step& step) {
  const int64_t elements = step.weight.numel();
  const int64_t chunks = (elements + kChunk - 1) / kChunk;
  at::parallel_for(0, chunks, kGrainChunks, [&](int64_t first, int64_t last) {
    Buffers buffers;
    for (int64_t i = first; i < last; ++i) {
      Chunk(step, buffers, i * kChunk, std::min(kChunk, elements - i * kChunk)).Run();
    }
  });
}

}  // namespace sft::engine::optim
