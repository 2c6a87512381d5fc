#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "worker/engine/base/error.h"
#include "worker/engine/optim/adamw_state.h"
#include "worker/engine/optim/dynamic_map.h"

// Saved states of any cut and kind into the states of a parameter's part.

namespace sft::engine {
namespace {

using at::Tensor;

// One of the two moments.
struct Half {
  Tensor AdamWMoments::*values;
  Tensor AdamWMoments::*absmax;
  const DynamicMap& map;
  uint8_t floor;
};

// The saved states as one sequence of elements.
class Saved {
 public:
  Saved(std::span<const AdamWMoments> pieces, const Half& half, const std::string& name)
      : pieces_(pieces), half_(half), name_(name) {}

  // The piece with `element`; elements are asked for in ascending order.
  const AdamWMoments& At(int64_t element) {
    while (index_ < pieces_.size() && element >= pieces_[index_].first + pieces_[index_].count()) {
      ++index_;
    }
    if (index_ == pieces_.size() || element < pieces_[index_].first) {
      throw InternalError(
          fmt::format("element {} of the states of \"{}\" is missing", element, name_));
    }
    return pieces_[index_];
  }

  // Elements [first, first + count), not coded.
  void Read(int64_t first, int64_t count, float* to) {
    while (count > 0) {
      const AdamWMoments& piece = At(first);
      const int64_t begin = first - piece.first;
      const int64_t part = std::min(count, piece.count() - begin);
      ReadPiece(piece, begin, part, to);
      first += part;
      count -= part;
      to += part;
    }
  }

 private:
  void ReadPiece(const AdamWMoments& piece, int64_t begin, int64_t count, float* to) const {
    const Tensor& values = piece.*half_.values;
    if (!(piece.*half_.absmax).defined()) {
      const Tensor floats = values.narrow(0, begin, count).to(at::kFloat);
      std::memcpy(to, floats.const_data_ptr(), floats.nbytes());
      return;
    }
    const auto* codes = static_cast<const uint8_t*>(values.const_data_ptr());
    const auto* absmax = static_cast<const float*>((piece.*half_.absmax).const_data_ptr());
    for (int64_t i = begin; i < begin + count; ++i) {
      *to++ = half_.map.values()[codes[i]] * absmax[i / kOptimizerBlock];
    }
  }

  std::span<const AdamWMoments> pieces_;
  const Half& half_;
  const std::string& name_;
  size_t index_ = 0;
};

// Elements from `first` on into `to`, fp32 or bf16.
void RestoreFloats(Saved saved, int64_t first, const Half& half, const Tensor& to) {
  for (int64_t done = 0; done < to.numel();) {
    const AdamWMoments& piece = saved.At(first + done);
    const int64_t begin = first + done - piece.first;
    const int64_t count = std::min(to.numel() - done, piece.count() - begin);
    const Tensor target = to.narrow(0, done, count);
    if ((piece.*half.absmax).defined()) {
      const Tensor floats = at::empty({count}, at::kFloat);
      saved.Read(first + done, count, static_cast<float*>(floats.data_ptr()));
      target.copy_(floats);
    } else {
      target.copy_((piece.*half.values).narrow(0, begin, count));
    }
    done += count;
  }
}

void RestoreCodes(Saved saved, int64_t first, const Half& half, const Tensor& to,
                  const Tensor& to_absmax) {
  const Tensor codes = at::empty({to.numel()}, at::kByte);
  const Tensor absmax = at::empty({to_absmax.numel()}, at::kFloat);
  auto* code = static_cast<uint8_t*>(codes.data_ptr());
  auto* most = static_cast<float*>(absmax.data_ptr());
  std::array<float, kOptimizerBlock> floats;
  for (int64_t done = 0; done < to.numel(); done += kOptimizerBlock) {
    const int64_t count = std::min(kOptimizerBlock, to.numel() - done);
    const AdamWMoments& piece = saved.At(first + done);
    const int64_t begin = first + done - piece.first, last = begin + count - 1;
    const bool one_block = (piece.*half.absmax).defined() && last < piece.count() &&
                           begin / kOptimizerBlock == last / kOptimizerBlock;
    if (one_block) {
      const auto* from = static_cast<const uint8_t*>((piece.*half.values).const_data_ptr());
      std::memcpy(code + done, from + begin, static_cast<size_t>(count));
      most[done / kOptimizerBlock] =
          static_cast<const float*>((piece.*half.absmax).const_data_ptr())[begin / kOptimizerBlock];
    } else {
      saved.Read(first + done, count, floats.data());
      optim::EncodeBlocks(half.map, floats.data(), code + done, most + done / kOptimizerBlock,
                          half.floor, count);
    }
  }
  to.copy_(codes);
  to_absmax.copy_(absmax);
}

}  // namespace

AdamWMoments AdamW::Moments(size_t index) const {
  const State& state = states_.at(index);
  return {params_[index].offset, state.m, state.v, state.m_absmax, state.v_absmax};
}

void AdamW::Restore(size_t index, std::span<const AdamWMoments> saved) {
  const at::NoGradGuard no_grad;
  const OptimizerParam& param = params_.at(index);
  const AdamWMoments own = Moments(index);
  const Half halves[] = {{&AdamWMoments::m, &AdamWMoments::m_absmax, DynamicMap::Signed(), 0},
                         {&AdamWMoments::v, &AdamWMoments::v_absmax, DynamicMap::Unsigned(),
                          optim::kSecondMomentFloor}};
  for (const Half& half : halves) {
    const Saved from(saved, half, param.name);
    if ((own.*half.absmax).defined()) {
      RestoreCodes(from, param.offset, half, own.*half.values, own.*half.absmax);
    } else {
      RestoreFloats(from, param.offset, half, own.*half.values);
    }
  }
}

}  // namespace sft::engine
