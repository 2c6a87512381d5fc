#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <limits>
#include <vector>

#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/nf4_tables.h"
#include "worker/engine/kernels/ops.h"

// Inputs of the FP8 tests.

namespace sft::engine {

using at::Tensor;

inline constexpr at::ScalarType kFp8InputTypes[] = {at::kFloat, at::kBFloat16};

// Where rows lie in a buffer: elements before each and behind each.
struct Lay {
  int64_t before = 0, behind = 0;
};

// Dense; on multiples of 64 elements with columns to spare; on odd elements.
inline std::vector<Lay> LaysOf(int64_t width) {
  return {{0, 0}, {64, (64 - width % 64) % 64 + 64}, {1, width % 2 == 0 ? 2 : 3}};
}

// Rows in a buffer full of 77, which no kernel may read.
inline Tensor Placed(const Tensor& x, const Lay& lay) {
  const int64_t width = x.size(1);
  const Tensor buffer = at::full({x.size(0), lay.before + width + lay.behind}, 77.0, x.options());
  buffer.narrow(1, lay.before, width).copy_(x);
  return buffer.narrow(1, lay.before, width);
}

inline Tensor Uniform(at::IntArrayRef sizes, uint64_t seed, double from, double to) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::empty(sizes, at::kFloat).uniform_(from, to, generator);
}
inline Tensor RandomBytes(int64_t count, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::empty({count}, at::kByte).random_(0, 256, generator);
}

// Rows of every kind that goes wrong, over and over.
inline Tensor Awkward(int64_t rows, int64_t width) {
  Tensor x = Normal({rows, width}, 11 + static_cast<uint64_t>(width));
  for (int64_t row = 0; row < rows; ++row) {
    Tensor values = x[row];
    const int64_t place = (row * 7919) % width;
    switch (row % 10) {
      case 1:
        values.zero_();
        break;
      case 2:
        values.fill_(-0.0);
        break;
      case 3:
        values.mul_(1e-40);  // subnormal
        break;
      case 4:
        values.mul_(1e-36);  // a scale near the smallest
        break;
      case 5:
        values.mul_(2e38).clamp_(-3.3e38, 3.3e38);
        break;
      case 6:
        values[place] = std::numeric_limits<double>::quiet_NaN();
        break;
      case 7:
        values[place] = -std::numeric_limits<double>::infinity();
        break;
      case 8:
        values[width - 1] = -3e4;  // the last element decides; the rest is subnormal in FP8
        break;
      case 9:
        values.fill_(std::numeric_limits<double>::quiet_NaN());
        break;
      default:
        break;
    }
  }
  return x;
}

// Codes and absmax of a weight, at random: all codes occur, and absmax of both signs and zero.
struct RandomNf4 {
  explicit RandomNf4(int64_t elements) : codes(RandomBytes((elements + 1) / 2, 21)) {
    const int64_t blocks = (elements + kNf4Block - 1) / kNf4Block;
    absmax = Uniform({blocks}, 22, 0.0, 0.1);
    absmax.slice(0, 0, blocks, 5).zero_();
    absmax_codes = RandomBytes(blocks, 23);
    nested_absmax = Uniform({(blocks + kNestedBlock - 1) / kNestedBlock}, 24, 0.0, 0.06);
    offset = at::scalar_tensor(0.031, at::kFloat);
  }
  // Writes the weight into `out`, wherever that lies.
  void Expand(Tensor& out, const Tensor& scale, bool nested, bool transposed) const {
    const auto here = [&](const Tensor& x) { return x.to(out.device()); };
    ops::Fp8FromNf4(out, here(codes), here(nested ? absmax_codes : absmax),
                    nested ? here(nested_absmax) : Tensor(), nested ? here(offset) : Tensor(),
                    here(scale), transposed);
  }
  Tensor codes, absmax, absmax_codes, nested_absmax, offset;
};

struct Adapters {
  // Members with 5 rows between them that belong to none, and before the first.
  Adapters(int64_t columns, const std::vector<int64_t>& ranks, at::ScalarType type, int64_t gap) {
    rows = 5;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto height = static_cast<int64_t>(48 * (i % 3 + 1) + i);
      const Lay lay{0, gap};
      a.push_back(Placed(Normal({ranks[i], columns}, 40 + i).to(type), lay));
      b.push_back(Placed(Normal({height, ranks[i]}, 60 + i).to(type), lay));
      gpu_a.push_back(Placed(ToGpu(a.back()), lay));
      gpu_b.push_back(Placed(ToGpu(b.back()), lay));
      first_row.push_back(rows);
      rows += height + 5;
      rank += ranks[i];
    }
    rows = (rows + 15) / 16 * 16;
  }
  std::vector<Tensor> a, b, gpu_a, gpu_b;
  std::vector<int64_t> first_row;
  int64_t rows = 0, rank = 0;
};

}  // namespace sft::engine
