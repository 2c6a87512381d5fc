// Times the CUDA operations at the shapes of Qwen3-8B and -32B and prints, for each, milliseconds
// and the share of the device's copy bandwidth or the rate in TFLOP/s; with the argument
// "attention" attention's alone, with "biases" what GPT-2 medium has beside it, with "delta" linear
// attention (delta_speed.h), with "experts" mixtures of experts (experts_speed.h). Run on an idle
// GPU.

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/gpu/delta_speed.h"
#include "tests/gpu/experts_speed.h"
#include "tests/gpu/speed_table.h"
#include "worker/engine/cuda/loader.h"
#include "worker/engine/kernels/ops.h"
#include "worker/engine/optim/adamw.h"
#include "worker/engine/optim/grad_norm.h"

namespace sft::engine {
namespace {

constexpr int64_t kTokens = 8192;

void Nf4(const Table& table) {
  const at::Tensor w = Random({5120, 25600});
  const double n = static_cast<double>(w.numel());
  const auto quantised = ops::Nf4Quantize(w);
  const auto nested = ops::AbsmaxQuantize(quantised.absmax);
  at::Tensor out = at::empty_like(w), rows = RandomRows(5120, 25600);
  table.Memory("nf4 quantise 5120x25600", 2.5625 * n, [&] { ops::Nf4Quantize(w); });
  table.Memory("nf4 de-quantise 5120x25600", 2.5625 * n,
               [&] { ops::Nf4Dequantize(out, quantised.codes, quantised.absmax); });
  table.Memory("nf4 de-quantise to rows", 2.5625 * n,
               [&] { ops::Nf4Dequantize(rows, quantised.codes, quantised.absmax); });
  table.Memory("nf4 de-quantise nested to rows", 2.5157 * n, [&] {
    ops::Nf4DequantizeNested(rows, quantised.codes, nested.codes, nested.nested_absmax,
                             nested.offset);
  });
  at::Tensor small = RandomRows(6144, 4096);
  const auto small_codes = ops::Nf4Quantize(Random({6144, 4096}));
  table.Memory("nf4 de-quantise to rows 6144x4096", 2.5625 * static_cast<double>(small.numel()),
               [&] { ops::Nf4Dequantize(small, small_codes.codes, small_codes.absmax); });
}

void Int8(const Table& table) {
  for (const auto& [rows, columns] : {std::pair{5120, 25600}, std::pair{6144, 4096}}) {
    const at::Tensor w = Random({rows, columns}), absmax = w.abs().amax({1}).to(at::kFloat);
    const at::Tensor codes = ops::Int8Quantize(w, absmax);
    at::Tensor out = RandomRows(rows, columns);
    const std::string shape = fmt::format("{}x{}", rows, columns);
    const double bytes = Bytes(w) + Bytes(codes);
    table.Memory("int8 quantise " + shape, bytes, [&] { ops::Int8Quantize(w, absmax); });
    table.Memory("int8 de-quantise to rows " + shape, bytes,
                 [&] { ops::Int8Dequantize(out, codes, absmax); });
  }
}

void Factors(const Table& table) {
  // q, k and v of Qwen3-8B with adapters of rank 16.
  constexpr int64_t kColumns = 4096, kRank = 16;
  const std::vector<int64_t> heights = {4096, 1024, 1024}, first_row = {0, 4096, 5120};
  std::vector<at::Tensor> a, b;
  for (const int64_t height : heights) {
    a.push_back(Random({kRank, kColumns}));
    b.push_back(Random({height, kRank}));
  }
  at::Tensor matrix = RandomRows(6144 + 3 * kRank, kColumns + 3 * kRank);
  const double bytes = 2.0 * (2 * 3 * kRank * kColumns + 6144 * (3 * kRank + kRank));
  table.Memory("place factors 6144x4096 rank 3x16", bytes,
               [&] { ops::PlaceFactors(matrix, a, b, first_row, 2.0); });
}

// Float8 rows as nn/projection.h has them.
at::Tensor Fp8Rows(int64_t rows, int64_t width) {
  return at::empty({rows, (width + 63) / 64 * 64 + 64},
                   at::TensorOptions(at::kFloat8_e4m3fn).device(at::kCUDA))
      .narrow(1, 0, width);
}
at::Tensor Scales(int64_t rows) {
  return at::full({rows}, 0.01, at::TensorOptions(at::kFloat).device(at::kCUDA));
}

void Fp8Conversions(const Table& table) {
  for (const int64_t width : {4096, 12288}) {
    const at::Tensor x = RandomRows(kTokens, width);
    at::Tensor out = Fp8Rows(kTokens, width), scale = Scales(kTokens);
    table.Memory(fmt::format("fp8 quantise {}x{}", kTokens, width), Bytes(x) + Bytes(out),
                 [&] { ops::Fp8Quantize(out, scale, x); });
    at::Tensor turned = Fp8Rows(width, kTokens), scales = Scales(width);
    table.Memory(fmt::format("fp8 columns of {}x{}", kTokens, width), 2 * Bytes(x) + Bytes(turned),
                 [&] { ops::Fp8QuantizeColumns(turned, scales, x); });
  }
  for (const int64_t rows : {6144, 24576}) {
    constexpr int64_t kColumns = 4096;
    const auto quantised = ops::Nf4Quantize(Random({rows, kColumns}));
    const auto nested = ops::AbsmaxQuantize(quantised.absmax);
    for (const bool transposed : {false, true}) {
      at::Tensor out = transposed ? Fp8Rows(kColumns, rows) : Fp8Rows(rows, kColumns);
      const at::Tensor scale = Scales(out.size(0));
      const std::string name = fmt::format(" {}x{}{}", rows, kColumns, transposed ? " turned" : "");
      const double bytes = Bytes(out) + Bytes(quantised.codes);
      table.Memory("fp8 from nf4" + name, bytes + Bytes(quantised.absmax), [&] {
        ops::Fp8FromNf4(out, quantised.codes, quantised.absmax, {}, {}, scale, transposed);
      });
      table.Memory("fp8 from nested" + name, bytes + Bytes(nested.codes), [&] {
        ops::Fp8FromNf4(out, quantised.codes, nested.codes, nested.nested_absmax, nested.offset,
                        scale, transposed);
      });
    }
  }
}

// What makes rows and quantises them: in one pass, and in two. The bytes are those of one.
void MadeInFp8(const Table& table, int64_t width) {
  constexpr int64_t kRows = 16384;
  const std::string name = fmt::format(" {}x{}", kRows, width);
  const ops::Fp8Rows fp8{Fp8Rows(kRows, width), Scales(kRows)};
  const auto both = [&](const std::string& operation, double bytes, const at::Tensor& rows,
                        const std::function<void(const ops::Fp8Rows&)>& make) {
    bytes += Bytes(fp8.values);
    table.Memory(operation + ", then fp8" + name, bytes, [&] {
      make({});
      at::Tensor values = fp8.values, scale = fp8.scale;
      ops::Fp8Quantize(values, scale, rows);
    });
    table.Memory(operation + " with fp8", bytes, [&] { make(fp8); });
  };
  const at::Tensor x = RandomRows(kRows, width), dy = RandomRows(kRows, width);
  const at::Tensor residual = RandomRows(kRows, width), w = Random({width});
  at::Tensor y = RandomRows(kRows, width);
  const at::Tensor rstd = ops::RmsNorm(y, x, w, 1e-6);
  both("norm", 2 * Bytes(x), y, [&](const ops::Fp8Rows& to) { ops::RmsNorm(y, x, w, 1e-6, to); });
  both("norm backward", 4 * Bytes(x), y, [&](const ops::Fp8Rows& to) {
    ops::RmsNormBackward(y, dy, x, w, rstd, plan::NormKind::kRms, residual, false, to);
  });
  const at::Tensor gate_up = RandomRows(kRows, 2 * width);
  both("glu", 3 * Bytes(x), y,
       [&](const ops::Fp8Rows& to) { ops::Glu(y, gate_up, plan::ActivationKind::kSilu, to); });
}

// The products of Qwen3-8B's first linears of a block with adapters of rank 64 beside them, in bf16
// and in FP8.
void Products(const Table& table, const CudaDeviceProperties& device) {
  constexpr int64_t kInner = 4096 + 64;
  const bool has_fp8 = device.compute_major * 10 + device.compute_minor >= 89;
  if (!has_fp8) fmt::print("no FP8 products on this GPU\n");
  const at::Tensor x = RandomRows(kTokens, kInner);
  for (const int64_t rows : {6144, 24576}) {
    const at::Tensor w = RandomRows(rows, kInner);
    at::Tensor out = RandomRows(kTokens, rows);
    const std::string name = fmt::format(" {}x{}x{}", kTokens, kInner, rows);
    const double flops = 2.0 * static_cast<double>(kTokens * kInner * rows);
    table.Arithmetic("gemm" + name, flops, [&] { ops::Gemm(out, x, w.t(), 1.0, 0.0); });
    if (!has_fp8) continue;
    at::Tensor a = Fp8Rows(kTokens, kInner), b = Fp8Rows(rows, kInner);
    at::Tensor a_scale = Scales(kTokens), b_scale = Scales(rows);
    ops::Fp8Quantize(a, a_scale, x);
    ops::Fp8Quantize(b, b_scale, w);
    table.Arithmetic("fp8 gemm" + name, flops,
                     [&] { ops::Fp8Gemm(out, a, a_scale, b, b_scale, {}, false); });
    const at::Tensor addend = RandomRows(kTokens, rows);
    table.Arithmetic("fp8 gemm + addend", flops,
                     [&] { ops::Fp8Gemm(out, a, a_scale, b, b_scale, addend, false); });
  }
}

// The gradients of the weights of Qwen3-8B's block, in bf16 and in FP8, added to fp32 sums.
void WeightGradients(const Table& table, const CudaDeviceProperties& device) {
  const std::pair<int64_t, int64_t> weights[] = {
      {6144, 4096}, {4096, 4096}, {24576, 4096}, {4096, 12288}};
  for (const auto& [rows, columns] : weights) {
    const at::Tensor dy = RandomRows(kTokens, rows), x = RandomRows(kTokens, columns);
    at::Tensor dw = at::zeros({rows, columns}, dy.options().dtype(at::kFloat));
    const std::string name = fmt::format(" {}x{}x{}", rows, kTokens, columns);
    const double flops = 2.0 * static_cast<double>(kTokens * rows * columns);
    table.Arithmetic("weight gradient" + name, flops, [&] { ops::Gemm(dw, dy.t(), x, 1.0, 1.0); });
    if (device.compute_major != 9) continue;
    at::Tensor dy8 = Fp8Rows(rows, kTokens), x8 = Fp8Rows(columns, kTokens);
    at::Tensor dy_scale = Scales(rows), x_scale = Scales(columns);
    ops::Fp8QuantizeColumns(dy8, dy_scale, dy);
    ops::Fp8QuantizeColumns(x8, x_scale, x);
    for (const bool fast : {false, true}) {
      table.Arithmetic(std::string(fast ? "fp8, short sums," : "fp8") + " weight gradient" + name,
                       flops,
                       [&, fast] { ops::Fp8Gemm(dw, dy8, dy_scale, x8, x_scale, dw, fast); });
    }
  }
}

void Norms(const Table& table, int64_t width) {
  const std::string name = fmt::format(" {}x{}", kTokens, width);
  const at::Tensor x = RandomRows(kTokens, width), w = Random({width});
  at::Tensor y = RandomRows(kTokens, width), dy = RandomRows(kTokens, width);
  const at::Tensor residual = RandomRows(kTokens, width);
  const at::Tensor rstd = ops::RmsNorm(y, x, w, 1e-6);
  const double bytes = Bytes(x);
  table.Memory("rms_norm" + name, 2 * bytes, [&] { ops::RmsNorm(y, x, w, 1e-6); });
  table.Memory("rms_norm backward" + name, 3 * bytes, [&] {
    ops::RmsNormBackward(y, dy, x, w, rstd, plan::NormKind::kRms, at::Tensor(), false);
  });
  table.Memory("rms_norm backward + residual", 4 * bytes, [&] {
    ops::RmsNormBackward(y, dy, x, w, rstd, plan::NormKind::kRms, residual, false);
  });
  table.Memory("rms_norm backward + weight", 3 * bytes, [&] {
    ops::RmsNormBackward(y, dy, x, w, rstd, plan::NormKind::kRms, at::Tensor(), true);
  });
}

void Heads(const Table& table, int64_t heads, int64_t kv_heads, int64_t size) {
  const std::string name = fmt::format(" {}+{}x{}", heads, kv_heads, size);
  const at::Tensor qkv = RandomRows(kTokens, (heads + 2 * kv_heads) * size);
  at::Tensor dqkv = qkv.clone().mul_(1e-3);
  at::Tensor q = Random({kTokens, heads, size}), k = Random({kTokens, kv_heads, size});
  const at::Tensor q_weight = Random({size}), k_weight = Random({size});
  const at::Tensor angles = Random({kTokens, size / 2}).to(at::kFloat);
  const at::Tensor cos = angles.cos(), sin = angles.sin();
  const double bytes = Bytes(q) + Bytes(k), tables = 2 * Bytes(cos);
  table.Memory("norm + rope" + name, 2 * bytes + tables,
               [&] { ops::NormRope(q, k, qkv, q_weight, k_weight, cos, sin, 1e-6); });
  const auto backward = [&](bool weights) {
    // Overwrites its input, which therefore shrinks or grows: only the time counts.
    ops::NormRopeBackward(dqkv, qkv, q_weight, k_weight, cos, sin, heads, kv_heads, 1e-6, weights);
  };
  table.Memory("norm + rope backward" + name, 3 * bytes + tables, [&] { backward(false); });
  table.Memory("norm + rope backward + weights", 3 * bytes + tables, [&] { backward(true); });
  table.Memory("rope" + name, 2 * Bytes(q) + tables, [&] { ops::Rope(q, cos, sin, false); });
}

void Mlp(const Table& table, int64_t width) {
  const std::string name = fmt::format(" {}x{}", kTokens, width);
  const at::Tensor gate_up = RandomRows(kTokens, 2 * width), dy = RandomRows(kTokens, width);
  at::Tensor out = RandomRows(kTokens, width), gradient = RandomRows(kTokens, 2 * width);
  table.Memory("glu" + name, 3 * Bytes(dy),
               [&] { ops::Glu(out, gate_up, plan::ActivationKind::kSilu); });
  table.Memory("swiglu backward" + name, 5 * Bytes(dy),
               [&] { ops::GluBackward(gradient, dy, gate_up, plan::ActivationKind::kSilu); });
  const auto zeros = [](at::IntArrayRef sizes) {
    return at::zeros(sizes, at::TensorOptions(at::kFloat).device(at::kCUDA));
  };
  constexpr int64_t kRank = 16;
  const ops::GluFactors factors{.xa = Random({kTokens, 2 * kRank}),
                                .b_gate = Random({width, kRank}),
                                .b_up = Random({width, kRank}),
                                .dxa_down = Random({kTokens, kRank}),
                                .db_gate = zeros({width, kRank}),
                                .db_up = zeros({width, kRank}),
                                .da_down = zeros({kRank, width})};
  at::Tensor dxa = Random({kTokens, 2 * kRank});
  // In the place of gate and up: after some calls the values are what the gradients become.
  table.Memory("swiglu backward + adapters" + name, 5 * Bytes(dy),
               [&] { ops::GluFactorsBackward(gradient, dxa, dy, factors); });
}

// GPT-2 medium's linears with their biases, its activation and its norms.
void Biases(const Table& table) {
  constexpr int64_t kRows = 16384, kHidden = 1024, kInner = 4 * kHidden;
  for (const auto& [inputs, outputs] :
       {std::pair{kHidden, 3 * kHidden}, std::pair{kHidden, kHidden}, std::pair{kHidden, kInner},
        std::pair{kInner, kHidden}}) {
    const at::Tensor x = RandomRows(kRows, inputs), w = Random({outputs, inputs});
    const at::Tensor bias = Random({outputs}), addend = Random({kRows, outputs});
    at::Tensor y = Random({kRows, outputs});
    at::Tensor sums = at::empty({outputs}, y.options().dtype(at::kFloat));
    const std::string name = fmt::format(" {}x{}x{}", kRows, inputs, outputs);
    const double flops = 2.0 * static_cast<double>(kRows * inputs * outputs);
    table.Arithmetic("gemm" + name, flops, [&] { ops::Gemm(y, x, w.t(), 1.0, 0.0); });
    table.Arithmetic("gemm + bias", flops, [&] { ops::GemmAdd(y, x, w.t(), {}, bias); });
    table.Arithmetic("gemm + addend", flops, [&] { ops::GemmAdd(y, x, w.t(), addend, {}); });
    table.Arithmetic("gemm + addend + bias", flops,
                     [&] { ops::GemmAdd(y, x, w.t(), addend, bias); });
    table.Memory("bias in a pass of its own", 2 * Bytes(y), [&] { ops::AddBias(y, bias); });
    table.Memory("sums of columns", Bytes(y), [&] { ops::ColumnSums(sums, y); });
    table.Memory("sums of columns by LibTorch", Bytes(y),
                 [&] { at::sum(y, {0}, false, at::kFloat); });
  }
  constexpr plan::ActivationKind kGelu = plan::ActivationKind::kGeluTanh;
  const at::Tensor inner = RandomRows(kRows, kInner), dinner = RandomRows(kRows, kInner);
  at::Tensor out = RandomRows(kRows, kInner), none;
  at::Tensor sums = at::empty({kInner}, out.options().dtype(at::kFloat));
  table.Memory("gelu", 2 * Bytes(inner), [&] { ops::Activate(out, inner, kGelu); });
  table.Memory("gelu backward", 3 * Bytes(inner),
               [&] { ops::ActivateBackward(out, dinner, inner, kGelu, none); });
  table.Memory("gelu backward + sums", 3 * Bytes(inner),
               [&] { ops::ActivateBackward(out, dinner, inner, kGelu, sums); });
  const at::Tensor x = RandomRows(kRows, kHidden), dy = RandomRows(kRows, kHidden);
  const at::Tensor residual = RandomRows(kRows, kHidden), w = Random({kHidden});
  at::Tensor y = RandomRows(kRows, kHidden);
  const at::Tensor statistics = ops::LayerNorm(y, x, w, w, 1e-5);
  table.Memory("layer_norm", 2 * Bytes(x), [&] { ops::LayerNorm(y, x, w, w, 1e-5); });
  at::Tensor of_norm = at::empty({kHidden}, statistics.options());
  const auto backward = [&](const std::string& what, bool weights, at::Tensor& to) {
    table.Memory("layer_norm backward" + what, 4 * Bytes(x),
                 [&] { ops::LayerNormBackward(y, dy, x, w, statistics, residual, weights, to); });
  };
  backward("", false, none);
  backward(" + weights", true, none);
  backward(" + weights + sums", true, of_norm);
}

void Loss(const Table& table) {
  constexpr int64_t kRows = 4096;
  at::Tensor logits = Random({kRows, 151936});
  const at::Tensor targets = at::arange(kRows, at::TensorOptions(at::kLong).device(at::kCUDA));
  table.Memory("cross_entropy 4096x151936", Bytes(logits),
               [&] { ops::CrossEntropy(logits, targets, false); });
  table.Memory("cross_entropy + gradient", 2 * Bytes(logits),
               [&] { ops::CrossEntropy(logits, targets, true); });
}

// `count` tensors of one size, with gradients, in flat buffers.
void Optimizer(const Table& table, const std::string& name, spec::Optimizer kind,
               at::ScalarType weight, bool copy, int64_t count, int64_t size) {
  const at::Tensor weights = Random({count * size}).mul_(0.1).to(weight);
  const at::Tensor grads = Random({count * size}).to(weight);
  const at::Tensor copies = copy ? at::empty_like(weights, at::kBFloat16) : at::Tensor();
  std::vector<OptimizerParam> params;
  std::vector<at::Tensor> parts;
  double bytes = 3 * Bytes(weights) + (copy ? Bytes(copies) : 0.0);
  for (int64_t i = 0; i < count; ++i) {
    params.push_back({.name = "w", .weight = weights.narrow(0, i * size, size), .id = i});
    if (copy) params.back().copy = copies.narrow(0, i * size, size);
    parts.push_back(grads.narrow(0, i * size, size));
    bytes += 2.0 * static_cast<double>(AdamWStateBytes(kind, size));
  }
  AdamW optimizer(std::move(params), {.kind = kind});
  table.Memory("adamw " + name, bytes, [&] { optimizer.Step(parts, 1e-4); });
  if (count > 1) {
    // With the host's wait for it.
    table.Memory(fmt::format("gradient norm of {} tensors", count), Bytes(grads),
                 [&] { SquaredNorm(parts); });
  }
}

void Optimizers(const Table& table) {
  using Kind = spec::Optimizer;
  Optimizer(table, "43.6 M in 504, fp32 + copy", Kind::kAdamW, at::kFloat, true, 504, 86528);
  Optimizer(table, "100 M fp32", Kind::kAdamW, at::kFloat, false, 1, 100'000'000);
  Optimizer(table, "100 M bf16 states", Kind::kAdamWBf16, at::kFloat, true, 1, 100'000'000);
  Optimizer(table, "100 M bf16 all", Kind::kAdamWBf16, at::kBFloat16, false, 1, 100'000'000);
  Optimizer(table, "100 M 8-bit", Kind::kAdamW8bit, at::kFloat, true, 1, 100'000'000);
  Optimizer(table, "100 M 8-bit, bf16 weights", Kind::kAdamW8bit, at::kBFloat16, false, 1,
            100'000'000);
}

struct AttentionHeads {
  int64_t heads = 0, kv_heads = 0, size = 128;
  int64_t window = 0;  // 0: none
};

// Scores of a causal document that are not masked, about.
double Pairs(int64_t length, int64_t window) {
  const int64_t outside = window > 0 ? std::max<int64_t>(0, length - window) : 0;
  return 0.5 * static_cast<double>(length * length - outside * outside);
}

// q, k and v, and their gradients, lie in rows of one projection. Rates count what the mask leaves.
void Attention(const Table& table, const std::vector<int64_t>& lengths,
               const AttentionHeads& shape) {
  const auto [heads, kv_heads, size, window] = shape;
  std::vector<int> offsets{0};
  double pairs = 0.0;
  for (const int64_t length : lengths) {
    offsets.push_back(offsets.back() + static_cast<int>(length));
    pairs += Pairs(length, window);
  }
  const int64_t tokens = offsets.back();
  const ops::Documents documents{at::tensor(offsets, at::kInt).to(at::kCUDA), lengths};
  const auto part = [&, size = size](const at::Tensor& rows, int64_t first, int64_t count) {
    return rows.narrow(1, first * size, count * size).view({tokens, count, size});
  };
  const at::Tensor qkv = RandomRows(tokens, (heads + 2 * kv_heads) * size);
  const at::Tensor dqkv = RandomRows(tokens, (heads + 2 * kv_heads) * size);
  const at::Tensor q = part(qkv, 0, heads), k = part(qkv, heads, kv_heads);
  const at::Tensor v = part(qkv, heads + kv_heads, kv_heads);
  at::Tensor dq = part(dqkv, 0, heads), dk = part(dqkv, heads, kv_heads);
  at::Tensor dv = part(dqkv, heads + kv_heads, kv_heads);
  at::Tensor out = part(RandomRows(tokens, heads * size), 0, heads);
  const at::Tensor dout = part(RandomRows(tokens, heads * size), 0, heads);
  const double scale = 0.088388;
  const at::Tensor lse = ops::Attention(out, q, k, v, documents, scale, window);
  // cuDNN's has one more dimension than the others'.
  std::string name = fmt::format("{} {}/{}{}",
                                 lengths.front() == lengths.back()
                                     ? fmt::format("{}x{}", lengths.size(), lengths.front())
                                     : fmt::format("{}", fmt::join(lengths, ",")),
                                 heads, kv_heads, lse.dim() == 3 ? " cuDNN" : "");
  if (size != 128) name += fmt::format(" size {}", size);
  if (window > 0) name += fmt::format(" window {}", window);
  const double flops = 4.0 * pairs * static_cast<double>(heads * size);
  table.Arithmetic("attn " + name, flops,
                   [&] { ops::Attention(out, q, k, v, documents, scale, window); });
  for (const bool fixed : {false, true}) {
    ops::SetDeterministic(fixed);
    table.Arithmetic((fixed ? "back fixed " : "attn back ") + name, 2.5 * flops, [&] {
      ops::AttentionBackward(dq, dk, dv, dout, q, k, v, out, lse, documents, scale, window);
    });
  }
  ops::SetDeterministic(false);
}

void Attentions(const Table& table) {
  Attention(table, std::vector<int64_t>(4, 2048), {32, 8});
  Attention(table, {4096}, {64, 8});
  Attention(table, std::vector<int64_t>(4, 4096), {32, 8});
  Attention(table, std::vector<int64_t>(2, 8192), {32, 8});
  Attention(table, {32768}, {16, 16});
  Attention(table, {8192}, {32, 8});
  Attention(table, {12288}, {40, 8});
  Attention(table, {16384}, {64, 8});
  Attention(table, {32768}, {32, 8});
  Attention(table, {65536}, {32, 8});
  Attention(table, {131072}, {32, 8});
  Attention(table, {1000, 96, 3000}, {64, 8});
  Attention(table, std::vector<int64_t>(8, 512), {64, 8});
  Attention(table, std::vector<int64_t>(8, 512), {32, 8});
  Attention(table, std::vector<int64_t>(64, 64), {64, 8});
  for (const int64_t window : {0, 1024}) {
    Attention(table, std::vector<int64_t>(4, 4096), {32, 16, 128, window});
    Attention(table, {16384}, {32, 16, 128, window});
    Attention(table, std::vector<int64_t>(8, 2048), {8, 4, 256, window});
    Attention(table, {8192}, {8, 4, 256, window});
  }
  Attention(table, std::vector<int64_t>(16, 1024), {16, 16, 64});
  for (const int64_t length : {512, 1024, 2048, 4096, 16384}) {
    const std::vector<int64_t> lengths(16384 / length, length);
    Attention(table, lengths, {32, 8, 64});
    Attention(table, lengths, {64, 8, 64, 128});
  }
}

int Main(std::string_view what) {
  const CudaPlugin& plugin = LoadCudaPlugin(DefaultCudaPluginPath());
  if (plugin.devices->Count() == 0) {
    fmt::print("no GPU on this machine: nothing timed\n");
    return 0;
  }
  plugin.devices->Select(0);
  fmt::print("{}\n", plugin.devices->Properties(0).name);
  const Table table(*plugin.devices);
  const std::pair<std::string_view, void (*)(const Table&)> parts[] = {{"attention", Attentions},
                                                                       {"biases", Biases},
                                                                       {"delta", DeltaSpeeds},
                                                                       {"experts", ExpertSpeeds}};
  for (const auto& [name, part] : parts) {
    if (what != name) continue;
    part(table);
    return 0;
  }
  Nf4(table);
  Int8(table);
  Factors(table);
  Fp8Conversions(table);
  for (const int64_t width : {5120, 25600}) MadeInFp8(table, width);
  Products(table, plugin.devices->Properties(0));
  WeightGradients(table, plugin.devices->Properties(0));
  for (const int64_t width : {4096, 5120}) Norms(table, width);
  Heads(table, 32, 8, 128);
  Heads(table, 64, 8, 128);
  for (const int64_t width : {12288, 25600}) Mlp(table, width);
  Biases(table);
  Loss(table);
  Optimizers(table);
  Attentions(table);
  return 0;
}

}  // namespace
}  // namespace sft::engine

int main(int argc, char** argv) { return sft::engine::Main(argc > 1 ? argv[1] : ""); }
