#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

// Linear attention by its definition, token by token; autograd differentiates it. In fp64 it is
// what the operations are held against.

namespace sft::engine {

// int32 [documents + 1]
inline at::Tensor DocumentStarts(const std::vector<int64_t>& lengths) {
  std::vector<int32_t> starts = {0};
  for (int64_t length : lengths) starts.push_back(starts.back() + static_cast<int32_t>(length));
  return at::tensor(starts, at::kInt);
}

// x [T, C], weight [C, 4]
inline at::Tensor PlainShortConv(const at::Tensor& x, const at::Tensor& weight,
                                 const std::vector<int64_t>& lengths) {
  std::vector<at::Tensor> documents;
  int64_t first = 0;
  for (int64_t length : lengths) {
    at::Tensor sum = at::zeros({length, x.size(1)}, x.options());
    for (int64_t m = std::max<int64_t>(0, 4 - length); m < 4; ++m) {
      const int64_t back = 3 - m;
      const at::Tensor earlier = x.narrow(0, first, length - back) * weight.select(1, m);
      sum = sum + at::cat({at::zeros({back, x.size(1)}, x.options()), earlier});
    }
    documents.push_back(sum * at::sigmoid(sum));
    first += length;
  }
  return at::cat(documents);
}

// q, k [T, Hk, D], v [T, Hv, E], g and beta [T, Hv] -> [T, Hv, E]
inline at::Tensor PlainGatedDelta(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& g, const at::Tensor& beta,
                                  const std::vector<int64_t>& lengths) {
  const int64_t heads = v.size(1), repeats = heads / k.size(1);
  const auto unit = [&](const at::Tensor& x) {
    return (x / (x.square().sum(-1, true) + 1e-6).sqrt()).repeat_interleave(repeats, 1);
  };
  const auto keys = unit(k).unsqueeze(3).unbind();
  const auto queries = (unit(q) / std::sqrt(static_cast<double>(q.size(2)))).unsqueeze(3).unbind();
  const auto values = v.unbind(), decays = g.exp().view({-1, heads, 1, 1}).unbind();
  const auto betas = beta.unsqueeze(2).unbind();
  std::vector<at::Tensor> outputs;
  int64_t token = 0;
  for (int64_t length : lengths) {
    at::Tensor state = at::zeros({heads, k.size(2), v.size(2)}, v.options());
    for (int64_t i = 0; i < length; ++i, ++token) {
      state = state * decays[token];
      const at::Tensor u = betas[token] * (values[token] - (state * keys[token]).sum(1));
      state = state + keys[token] * u.unsqueeze(1);
      outputs.push_back((state * queries[token]).sum(1));
    }
  }
  return at::stack(outputs);
}

// x and gate [T, H D], weight [D]
inline at::Tensor PlainGatedNorm(const at::Tensor& x, const at::Tensor& gate,
                                 const at::Tensor& weight, double epsilon) {
  const at::Tensor heads = x.unflatten(1, {x.size(1) / weight.numel(), weight.numel()});
  const at::Tensor normed = heads * (heads.square().mean({-1}, true) + epsilon).rsqrt() * weight;
  return normed.flatten(1) * gate * at::sigmoid(gate);
}

}  // namespace sft::engine
