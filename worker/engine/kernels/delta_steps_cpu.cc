#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "worker/engine/kernels/cpu_ops.h"
#include "worker/engine/kernels/delta_checks.h"
#include "worker/engine/kernels/row_kernels.h"

// Linear attention for generation: token by token, so that the bits of a document do not depend on
// how it is cut into pieces.

namespace sft::engine::cpu {

namespace {

using at::Tensor;
using c10::BFloat16;

// The rows of a piece, and its document's state.
struct PieceRows {
  int64_t first = 0, count = 0, state = 0;
};

// Of all but padding, whose rows of `out` become zeros.
std::vector<PieceRows> RowsOf(const ops::Pieces& pieces, Tensor& out) {
  std::vector<PieceRows> rows;
  int64_t first = 0;
  for (size_t i = 0; i < pieces.lengths.size(); ++i) {
    if (pieces.states[i] < 0) {
      out.narrow(0, first, pieces.lengths[i]).zero_();
    } else {
      rows.push_back({first, pieces.lengths[i], pieces.states[i]});
    }
    first += pieces.lengths[i];
  }
  return rows;
}

template <typename T>
struct NextConvArguments {
  const T* x = nullptr;
  T *out = nullptr, *before = nullptr;  // before: of the piece's document, [3, C]
  int64_t x_stride = 0, out_stride = 0, columns = 0, rows = 0;
  const float* weight = nullptr;  // [C, 4]
};

template <typename T>
SFT_INLINE void NextConvColumns(const NextConvArguments<T>& a, int64_t begin, int64_t end) {
  constexpr int64_t kBefore = kShortConvWidth - 1;
  for (int64_t c = begin; c < end; ++c) {
    float window[kShortConvWidth];
    for (int64_t m = 0; m < kBefore; ++m) {
      window[m + 1] = static_cast<float>(a.before[m * a.columns + c]);
    }
    for (int64_t row = 0; row < a.rows; ++row) {
      float sum = 0.0f;
      for (int64_t m = 0; m < kBefore; ++m) window[m] = window[m + 1];
      window[kBefore] = static_cast<float>(a.x[row * a.x_stride + c]);
      for (int64_t m = 0; m < kShortConvWidth; ++m) {
        sum += a.weight[c * kShortConvWidth + m] * window[m];
      }
      a.out[row * a.out_stride + c] = static_cast<T>(sum / (1.0f + std::exp(-sum)));
    }
    for (int64_t m = 0; m < kBefore; ++m) {
      a.before[m * a.columns + c] = static_cast<T>(window[m + 1]);
    }
  }
}

template <typename T>
void NextConvAs(Tensor& out, Tensor& before, const Tensor& x, const Tensor& weight,
                const ops::Pieces& pieces) {
  constexpr int64_t kColumns = 256;
  NextConvArguments<T> all{.x_stride = x.stride(0),
                           .out_stride = out.stride(0),
                           .columns = x.size(1),
                           .weight = weight.const_data_ptr<float>()};
  const T* rows = x.const_data_ptr<T>();
  T* to = out.mutable_data_ptr<T>();
  T* states = before.mutable_data_ptr<T>();
  for (const PieceRows& piece : RowsOf(pieces, out)) {
    NextConvArguments<T> a = all;
    a.x = rows + piece.first * a.x_stride;
    a.out = to + piece.first * a.out_stride;
    a.before = states + piece.state * (kShortConvWidth - 1) * a.columns;
    a.rows = piece.count;
    at::parallel_for(0, a.columns, kColumns,
                     [&](int64_t begin, int64_t end) { NextConvColumns(a, begin, end); });
  }
}

// A head of a piece: q, k and v in fp32, and the state [Dk, Dv].
struct RuleStep {
  const float *q, *k, *v;
  float *state, *out;
  float decay, beta, scale;
  int64_t key_size, value_size;
};

float LengthFactor(const float* x, int64_t size) {
  float sum = 0.0f;
  for (int64_t i = 0; i < size; ++i) sum += x[i] * x[i];
  return 1.0f / std::sqrt(sum + static_cast<float>(kDeltaEpsilon));
}

// `u`: room for Dv values.
SFT_SIMD_CLONES void RunRule(const RuleStep& s, float* u) {
  const float q_factor = LengthFactor(s.q, s.key_size) * s.scale;
  const float k_factor = LengthFactor(s.k, s.key_size);
  for (int64_t e = 0; e < s.value_size; ++e) u[e] = s.out[e] = 0.0f;
  for (int64_t d = 0; d < s.key_size; ++d) {
    float* row = s.state + d * s.value_size;
    const float key = s.k[d] * k_factor;
    for (int64_t e = 0; e < s.value_size; ++e) {
      row[e] *= s.decay;
      u[e] += row[e] * key;
    }
  }
  for (int64_t e = 0; e < s.value_size; ++e) u[e] = s.beta * (s.v[e] - u[e]);
  for (int64_t d = 0; d < s.key_size; ++d) {
    float* row = s.state + d * s.value_size;
    const float key = s.k[d] * k_factor, query = s.q[d] * q_factor;
    for (int64_t e = 0; e < s.value_size; ++e) {
      row[e] += key * u[e];
      s.out[e] += row[e] * query;
    }
  }
}

}  // namespace

void ShortConvNext(Tensor& out, Tensor& before, const Tensor& x, const Tensor& weight,
                   const ops::Pieces& pieces) {
  const int64_t tokens = x.size(0);
  CheckShortConv(x, weight, {{}, tokens}, "ShortConvNext");
  CheckRows(out, x.size(0), x.size(1), x, "ShortConvNext: out");
  CheckPieces(pieces, before, {kShortConvWidth - 1, x.size(1)}, x.scalar_type(), x,
              "ShortConvNext");
  const auto run = x.scalar_type() == at::kFloat ? NextConvAs<float> : NextConvAs<BFloat16>;
  run(out, before, x, weight.to(at::kFloat), pieces);
}

void GatedDeltaNext(Tensor& out, Tensor& states, const Tensor& q, const Tensor& k, const Tensor& v,
                    const Tensor& g, const Tensor& beta, const ops::Pieces& pieces) {
  const int64_t tokens = q.size(0);
  CheckGatedDelta(q, k, v, g, beta, {{}, tokens});
  CheckHeadsLike(out, v, "GatedDeltaNext: out");
  const int64_t heads = v.size(1), key_size = q.size(2), value_size = v.size(2);
  CheckPieces(pieces, states, {heads, key_size, value_size}, at::kFloat, q, "GatedDeltaNext");
  const Tensor q_fp32 = q.to(at::kFloat).contiguous(), k_fp32 = k.to(at::kFloat).contiguous();
  const Tensor v_fp32 = v.to(at::kFloat).contiguous();
  Tensor result = at::empty_like(v_fp32);
  const int64_t repeats = heads / q.size(1);
  const float *queries = q_fp32.const_data_ptr<float>(), *keys = k_fp32.const_data_ptr<float>();
  const float *values = v_fp32.const_data_ptr<float>(), *decays = g.const_data_ptr<float>();
  const float* betas = beta.const_data_ptr<float>();
  float *all = states.mutable_data_ptr<float>(), *to = result.mutable_data_ptr<float>();
  const std::vector<PieceRows> rows = RowsOf(pieces, result);
  const auto tasks = static_cast<int64_t>(rows.size()) * heads;
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> u(static_cast<size_t>(value_size));
    for (int64_t task = begin; task < end; ++task) {
      const PieceRows& piece = rows[static_cast<size_t>(task / heads)];
      const int64_t head = task % heads, key_head = head / repeats;
      for (int64_t token = piece.first; token < piece.first + piece.count; ++token) {
        const int64_t key_row = (token * q.size(1) + key_head) * key_size;
        const int64_t row = token * heads + head;
        RunRule({.q = queries + key_row,
                 .k = keys + key_row,
                 .v = values + row * value_size,
                 .state = all + (piece.state * heads + head) * key_size * value_size,
                 .out = to + row * value_size,
                 .decay = std::exp(decays[row]),
                 .beta = betas[row],
                 .scale = 1.0f / std::sqrt(static_cast<float>(key_size)),
                 .key_size = key_size,
                 .value_size = value_size},
                u.data());
      }
    }
  });
  out.copy_(result);
}

}  // namespace sft::engine::cpu
