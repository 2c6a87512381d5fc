#include "worker/engine/nn/rope.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "common/base/round.h"

namespace sft::engine {

namespace {

using at::Tensor;

constexpr double kTwoPi = 2.0 * std::numbers::pi;

double YarnScale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double YarnAttentionFactor(const RopeOptions& options) {
  if (options.attention_factor) return *options.attention_factor;
  if (options.mscale != 0.0 && options.mscale_all_dim != 0.0) {
    return YarnScale(options.factor, options.mscale) /
           YarnScale(options.factor, options.mscale_all_dim);
  }
  return YarnScale(options.factor, 1.0);
}

double LongRopeAttentionFactor(const RopeOptions& options) {
  if (options.attention_factor) return *options.attention_factor;
  if (options.factor <= 1.0) return 1.0;
  return std::sqrt(1.0 + std::log(options.factor) /
                             std::log(static_cast<double>(options.original_max_positions)));
}

// Divides as transformers does: 1 / (factor * theta^(2 i / R)), in fp32.
Tensor DividedBy(const Tensor& frequencies, const std::vector<double>& factors) {
  return at::tensor(factors, at::kFloat).mul_(frequencies.reciprocal()).reciprocal_();
}

// Long wave lengths are stretched by the factor, short ones kept, those between blended.
void ScaleLlama3(const RopeOptions& options, float* frequency, int64_t half) {
  const double old_context = static_cast<double>(options.original_max_positions);
  const float low_wavelength = static_cast<float>(old_context / options.low_freq_factor);
  const float high_wavelength = static_cast<float>(old_context / options.high_freq_factor);
  const float factor = static_cast<float>(options.factor);
  const float range = static_cast<float>(options.high_freq_factor - options.low_freq_factor);
  for (int64_t i = 0; i < half; ++i) {
    const float wavelength = static_cast<float>(kTwoPi) / frequency[i];
    if (wavelength > low_wavelength) {
      frequency[i] /= factor;
    } else if (wavelength >= high_wavelength) {
      const float smooth = (static_cast<float>(old_context) / wavelength -
                            static_cast<float>(options.low_freq_factor)) /
                           range;
      frequency[i] = (1.0f - smooth) * frequency[i] / factor + smooth * frequency[i];
    }
  }
}

// Dimensions that turn often keep their frequency, those that turn rarely are stretched.
void ScaleYarn(const RopeOptions& options, float* frequency, int64_t part) {
  const double size = static_cast<double>(part);
  const auto correction = [&](double rotations) {
    return size *
           std::log(static_cast<double>(options.original_max_positions) / (rotations * kTwoPi)) /
           (2.0 * std::log(options.theta));
  };
  double low = correction(options.beta_fast);
  double high = correction(options.beta_slow);
  if (options.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, size - 1.0);
  if (low == high) high += 0.001;
  for (int64_t i = 0; i < CeilDiv(part, 2); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const float keep = static_cast<float>(1.0 - ramp);
    const float stretched =
        static_cast<float>(1.0 / (options.factor * (1.0 / static_cast<double>(frequency[i]))));
    frequency[i] = stretched * (1.0f - keep) + frequency[i] * keep;
  }
}

}  // namespace

Rope::Rope(const RopeOptions& options, int64_t head_size, at::Device device)
    : query_scaling_(options.query_scaling),
      original_max_positions_(options.original_max_positions) {
  const auto part = static_cast<int64_t>(static_cast<double>(head_size) * options.rotated);
  const bool proportional = options.type == RopeType::kProportional;
  // Of an odd part the last element turns with the one behind it, as in transformers.
  const int64_t rotated = proportional ? head_size : RoundUp(part, 2);
  const Tensor exponent = at::arange(0, rotated, 2, at::TensorOptions().dtype(at::kFloat))
                              .div_(static_cast<double>(proportional ? head_size : part));
  Tensor frequency = at::pow(at::Scalar(options.theta), exponent).reciprocal_();
  float* values = frequency.mutable_data_ptr<float>();
  switch (options.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
      frequency.div_(options.factor);
      break;
    case RopeType::kLlama3:
      ScaleLlama3(options, values, rotated / 2);
      break;
    case RopeType::kYarn:
      ScaleYarn(options, values, part);
      scaling_ = YarnAttentionFactor(options);
      break;
    case RopeType::kLongRope:
      long_frequencies_ = DividedBy(frequency, options.long_factors).to(device);
      frequency = DividedBy(frequency, options.short_factors);
      scaling_ = LongRopeAttentionFactor(options);
      break;
    case RopeType::kProportional:
      frequency.div_(options.factor).narrow(0, part / 2, rotated / 2 - part / 2).zero_();
      break;
    case RopeType::kNone:
      rotates_ = false;
      break;
  }
  inverse_frequencies_ = frequency.to(device);
}

RopeTables Rope::Tables(const Tensor& positions, const Tensor& lengths) const {
  if (!rotates_) return {};
  Tensor frequencies = inverse_frequencies_.unsqueeze(0);
  if (depends_on_length()) {
    frequencies = at::where(lengths.gt(original_max_positions_).unsqueeze(1),
                            long_frequencies_.unsqueeze(0), frequencies);
  }
  const Tensor angles = positions.to(at::kFloat).unsqueeze(1).mul(frequencies);
  RopeTables tables{at::cos(angles), at::sin(angles), {}};
  if (scaling_ != 1.0) {
    tables.cos.mul_(scaling_);
    tables.sin.mul_(scaling_);
  }
  if (query_scaling_ != 0.0) {
    const auto stretches = static_cast<double>(original_max_positions_);
    tables.query_scale =
        positions.to(at::kFloat).div_(stretches).floor_().log1p_().mul_(query_scaling_).add_(1.0);
  }
  return tables;
}

}  // namespace sft::engine
