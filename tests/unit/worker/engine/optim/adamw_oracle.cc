#include "tests/unit/worker/engine/optim/adamw_oracle.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "worker/engine/optim/dynamic_map.h"

namespace sft::engine::optim {
namespace {

// Elements worked on at once: bounds the scratch memory to a few times 4 bytes of it.
constexpr int64_t kPiece = int64_t{1} << 24;

// x >> shift without copying the sign, for the int32 tensors that stand for unsigned words here.
at::Tensor ShiftRight(const at::Tensor& x, int shift) {
  return x.bitwise_right_shift(shift).bitwise_and_((int64_t{1} << (32 - shift)) - 1);
}

int64_t AsInt32(uint32_t word) { return static_cast<int32_t>(word); }

void Mix(at::Tensor& x) {
  x.bitwise_xor_(ShiftRight(x, 16)).mul_(AsInt32(kMix1));
  x.bitwise_xor_(ShiftRight(x, 15)).mul_(AsInt32(kMix2));
  x.bitwise_xor_(ShiftRight(x, 16));
}

struct RandomWords {
  at::Tensor states, weights;
};

RandomWords RandomBits(uint64_t key, int64_t first, int64_t count, at::Device device) {
  const auto options = at::TensorOptions(at::kInt).device(device);
  RandomWords words{at::empty({count}, options), at::empty({count}, options)};
  for (int64_t done = 0; done < count;) {
    const int64_t element = first + done, low = element & 0xffff;
    const int64_t part = std::min(count - done, 0x10000 - low);
    const uint64_t hash = HashHigh(key, element);
    at::Tensor x = at::arange(low, low + part, options);
    x.mul_(AsInt32(kWeyl)).add_(AsInt32(static_cast<uint32_t>(hash)));
    Mix(x);
    words.states.narrow(0, done, part).copy_(x);
    x.bitwise_xor_(AsInt32(static_cast<uint32_t>(hash >> 32)));
    Mix(x);
    words.weights.narrow(0, done, part).copy_(x);
    done += part;
  }
  return words;
}

// fp32 `value` into bf16 `to` with the lower half of `words` as random bits.
void StoreStochastic(const at::Tensor& value, const at::Tensor& to, const at::Tensor& words) {
  const at::Tensor bits = value.view(at::kInt);
  const at::Tensor cut = bits.add(words.bitwise_and(0xffff)).bitwise_and_(AsInt32(0xffff0000U));
  to.copy_(at::where(value.isfinite(), cut.view(at::kFloat), value));
}

at::Tensor MapTensor(const std::array<float, 256>& values, int64_t count, at::Device device) {
  return at::tensor(at::ArrayRef<float>(values.data(), count), at::kFloat).to(device);
}

at::Tensor Blocks(const at::Tensor& flat) {
  const int64_t pad = (kOptimizerBlock - flat.numel() % kOptimizerBlock) % kOptimizerBlock;
  return at::constant_pad_nd(flat, {0, pad}).view({-1, kOptimizerBlock});
}

at::Tensor Decode(const DynamicMap& map, const at::Tensor& codes, const at::Tensor& absmax) {
  const at::Tensor values = MapTensor(map.values(), 256, codes.device());
  const at::Tensor scales = absmax.repeat_interleave(kOptimizerBlock).narrow(0, 0, codes.numel());
  return values.index_select(0, codes.to(at::kInt)).mul_(scales);
}

void Encode(const DynamicMap& map, const at::Tensor& value, const at::Tensor& codes,
            const at::Tensor& absmax, int64_t floor) {
  const at::Tensor blocks = Blocks(value);
  absmax.copy_(blocks.abs().amax(1));
  const at::Tensor inverse = at::where(absmax > 0, absmax.reciprocal(), at::zeros_like(absmax));
  const at::Tensor scaled = (blocks * inverse.unsqueeze(1)).view(-1).narrow(0, 0, value.numel());
  at::Tensor found = at::bucketize(scaled, MapTensor(map.midpoints(), 255, value.device()), true);
  if (floor > 0) found = at::where(value > 0, found.clamp_min(floor), found);
  codes.copy_(found);
}

void StepPiece(const Step& s, int64_t begin, int64_t count) {
  const ops::AdamWFactors& f = s.factors;
  const auto piece = [&](const at::Tensor& tensor) {
    return tensor.view(-1).narrow(0, begin, count);
  };
  const int64_t block = begin / kOptimizerBlock;
  const int64_t blocks = (count + kOptimizerBlock - 1) / kOptimizerBlock;
  const bool coded = s.m_absmax->defined();
  at::Tensor g = piece(s.grad).to(at::kFloat);
  if (f.grad_scale != 1) g = g * f.grad_scale;
  at::Tensor w = piece(s.weight).to(at::kFloat), m, v;
  if (coded) {
    m = Decode(DynamicMap::Signed(), piece(*s.m), s.m_absmax->narrow(0, block, blocks));
    v = Decode(DynamicMap::Unsigned(), piece(*s.v), s.v_absmax->narrow(0, block, blocks));
  } else {
    m = piece(*s.m).to(at::kFloat);
    v = piece(*s.v).to(at::kFloat);
  }
  m.add_((g - m).mul_(f.one_minus_beta1));
  v.mul_(f.beta2).add_((g * f.one_minus_beta2).mul_(g));
  const at::Tensor denominator = v.sqrt().div_(f.sqrt_bias2).add_(f.epsilon);
  w.mul_(f.keep).add_((m * -f.step_size).div_(denominator));

  RandomWords random;
  const bool round_weight = s.weight.scalar_type() == at::kBFloat16;
  const bool round_state = s.m->scalar_type() == at::kBFloat16;
  if (round_weight || round_state) {
    random = RandomBits(s.key, s.offset + begin, count, s.weight.device());
  }
  // fp32 tensors were worked on in place.
  if (round_weight) StoreStochastic(w, piece(s.weight), random.weights);
  if (coded) {
    Encode(DynamicMap::Signed(), m, piece(*s.m), s.m_absmax->narrow(0, block, blocks), 0);
    // A second moment that became zero would divide m by epsilon alone.
    Encode(DynamicMap::Unsigned(), v, piece(*s.v), s.v_absmax->narrow(0, block, blocks), 1);
  } else if (round_state) {
    StoreStochastic(m, piece(*s.m), random.states);
    StoreStochastic(v, piece(*s.v), ShiftRight(random.states, 16));
  }
  if (s.copy.defined()) piece(s.copy).copy_(piece(s.weight));
}

}  // namespace

void StepAten(const Step& step) {
  const int64_t elements = step.weight.numel();
  for (int64_t begin = 0; begin < elements; begin += kPiece) {
    StepPiece(step, begin, std::min(kPiece, elements - begin));
  }
}

}  // namespace sft::engine::optim
