#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "tests/gpu/gpu_test.h"
#include "tests/unit/worker/engine/kernels/dropout_attention.h"
#include "tests/unit/worker/engine/kernels/last_queries.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

struct AttentionCase {
  const char* name;
  std::vector<int64_t> lengths;
  int64_t heads, kv_heads, size, window;

  friend void PrintTo(const AttentionCase& c, std::ostream* out) { *out << c.name; }
};

int64_t Tokens(const AttentionCase& c) {
  int64_t tokens = 0;
  for (const int64_t length : c.lengths) tokens += length;
  return tokens;
}

at::Tensor Offsets(const std::vector<int64_t>& lengths) {
  std::vector<int> offsets{0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + static_cast<int>(length));
  return at::tensor(offsets, at::kInt);
}

// Elements to spare in a row, as activations have them, and what stands in them.
constexpr int64_t kSpare = 64;
constexpr double kMark = -7.0;

struct AttentionResult {
  at::Tensor out, lse, dq, dk, dv;
};

// Heads side by side in rows with elements to spare, all of them marks.
class Rows {
 public:
  Rows(const AttentionCase& c, int64_t heads, const at::TensorOptions& options)
      : size_(c.size), rows_(at::full({Tokens(c), heads * c.size + kSpare}, kMark, options)) {}

  at::Tensor Heads(int64_t first, int64_t count) const {
    return rows_.narrow(1, first * size_, count * size_).view({rows_.size(0), count, size_});
  }
  void Fill(const at::Tensor& values) const { rows_.narrow(1, 0, values.size(1)).copy_(values); }
  bool SpareIsUntouched() const {
    return rows_.narrow(1, rows_.size(1) - kSpare, kSpare).eq(kMark).all().item<bool>();
  }

 private:
  int64_t size_;
  at::Tensor rows_;
};

// q, k and v lie in one buffer and their gradients in another, as a fused projection has them.
AttentionResult Attend(const AttentionCase& c, const at::Tensor& qkv, const at::Tensor& dout) {
  const at::TensorOptions options = qkv.options();
  const ops::Documents documents{Offsets(c.lengths).to(qkv.device()), c.lengths};
  const int64_t all = c.heads + 2 * c.kv_heads;
  const Rows inputs(c, all, options), gradients(c, all, options);
  const Rows outs(c, c.heads, options), douts(c, c.heads, options);
  inputs.Fill(qkv);
  douts.Fill(dout.reshape({dout.size(0), -1}));
  const at::Tensor q = inputs.Heads(0, c.heads), k = inputs.Heads(c.heads, c.kv_heads);
  const at::Tensor v = inputs.Heads(c.heads + c.kv_heads, c.kv_heads);
  at::Tensor out = outs.Heads(0, c.heads), dq = gradients.Heads(0, c.heads);
  at::Tensor dk = gradients.Heads(c.heads, c.kv_heads);
  at::Tensor dv = gradients.Heads(c.heads + c.kv_heads, c.kv_heads);
  const double scale = 0.8 / std::sqrt(static_cast<double>(c.size));
  const at::Tensor lse = ops::Attention(out, q, k, v, documents, scale, c.window);
  ops::AttentionBackward(dq, dk, dv, douts.Heads(0, c.heads), q, k, v, out, lse, documents, scale,
                         c.window);
  EXPECT_TRUE(outs.SpareIsUntouched()) << c.name;
  EXPECT_TRUE(gradients.SpareIsUntouched()) << c.name;
  return {out, lse, dq, dk, dv};
}

// The same in fp64 by the formulas, one document at a time.
AttentionResult Reference(const AttentionCase& c, const at::Tensor& qkv, const at::Tensor& dout) {
  const int64_t tokens = Tokens(c), group = c.heads / c.kv_heads;
  const double scale = 0.8 / std::sqrt(static_cast<double>(c.size));
  const at::TensorOptions options = qkv.options().dtype(at::kDouble);
  const auto heads = [&](int64_t first, int64_t count) {
    return qkv.narrow(1, first * c.size, count * c.size).view({tokens, count, c.size});
  };
  AttentionResult r{at::empty({tokens, c.heads, c.size}, options),
                    at::empty({c.heads, tokens}, options),
                    at::empty({tokens, c.heads, c.size}, options),
                    at::empty({tokens, c.kv_heads, c.size}, options),
                    at::empty({tokens, c.kv_heads, c.size}, options)};
  int64_t first = 0;
  for (const int64_t length : c.lengths) {
    const at::Tensor position = at::arange(length, options);
    const at::Tensor distance = position.unsqueeze(1) - position.unsqueeze(0);
    at::Tensor hidden = distance.lt(0);
    if (c.window > 0) hidden = hidden.logical_or(distance.ge(c.window));
    for (int64_t head = 0; head < c.heads; ++head) {
      const int64_t key_head = head / group;
      const auto rows = [&](const at::Tensor& x, int64_t which) {
        return x.narrow(0, first, length).select(1, which).to(at::kDouble);
      };
      const at::Tensor q = rows(heads(0, c.heads), head);
      const at::Tensor k = rows(heads(c.heads, c.kv_heads), key_head);
      const at::Tensor v = rows(heads(c.heads + c.kv_heads, c.kv_heads), key_head);
      const at::Tensor dy = rows(dout, head);
      const at::Tensor scores = at::matmul(q, k.t()).mul_(scale).masked_fill_(hidden, -INFINITY);
      const at::Tensor lse = scores.logsumexp({1});
      const at::Tensor p = (scores - lse.unsqueeze(1)).exp();
      const at::Tensor out = at::matmul(p, v);
      const at::Tensor delta = (dy * out).sum({1}, /*keepdim=*/true);
      const at::Tensor ds = (at::matmul(dy, v.t()) - delta) * p * scale;
      r.out.narrow(0, first, length).select(1, head).copy_(out);
      r.lse.select(0, head).narrow(0, first, length).copy_(lse);
      r.dq.narrow(0, first, length).select(1, head).copy_(at::matmul(ds, k));
      at::Tensor dk = r.dk.narrow(0, first, length).select(1, key_head);
      at::Tensor dv = r.dv.narrow(0, first, length).select(1, key_head);
      if (head % group == 0) {
        dk.zero_();
        dv.zero_();
      }
      dk.add_(at::matmul(ds.t(), q));
      dv.add_(at::matmul(p.t(), dy));
    }
    first += length;
  }
  return r;
}

// What sinks make of Attention's results and gradients.
struct SinkResult {
  at::Tensor out, dq, dk, dv, dsinks;
};

SinkResult AttendWithSinks(const AttentionCase& c, const at::Tensor& qkv, const at::Tensor& dout,
                           const at::Tensor& sinks) {
  const ops::Documents documents{Offsets(c.lengths).to(qkv.device()), c.lengths};
  const auto heads = [&](int64_t first, int64_t count) {
    return qkv.narrow(1, first * c.size, count * c.size).view({qkv.size(0), count, c.size});
  };
  const at::Tensor q = heads(0, c.heads), k = heads(c.heads, c.kv_heads);
  const at::Tensor v = heads(c.heads + c.kv_heads, c.kv_heads);
  SinkResult r{at::empty(q.sizes(), q.options()),
               at::empty(q.sizes(), q.options()),
               at::empty(k.sizes(), q.options()),
               at::empty(v.sizes(), q.options()),
               {}};
  const double scale = 0.8 / std::sqrt(static_cast<double>(c.size));
  at::Tensor lse = ops::Attention(r.out, q, k, v, documents, scale, c.window);
  ops::AddSinks(r.out, lse, sinks, documents);
  ops::AttentionBackward(r.dq, r.dk, r.dv, dout, q, k, v, r.out, lse, documents, scale, c.window);
  r.dsinks = ops::SinkGradient(dout, r.out, lse, sinks, documents);
  return r;
}

// cuDNN returns [documents, heads, longest], the others [heads, tokens]: here all as the latter.
bool IsCudnn(const AttentionResult& r) { return r.lse.dim() == 3; }
at::Tensor LseOfTokens(const AttentionCase& c, const AttentionResult& r) {
  if (!IsCudnn(r)) return r.lse;
  std::vector<at::Tensor> documents;
  for (size_t i = 0; i < c.lengths.size(); ++i) {
    documents.push_back(r.lse.select(0, static_cast<int64_t>(i)).narrow(1, 0, c.lengths[i]));
  }
  return at::cat(documents, 1);
}

// Of the values of one tensor, of which some may be zero but for rounding: by the norm of `beside`.
double ErrorBeside(const at::Tensor& actual, const at::Tensor& expected, const at::Tensor& beside) {
  const at::Tensor a = actual.to(at::kDouble);
  if (!a.isfinite().all().item<bool>()) return INFINITY;
  return ((a - expected).norm() / beside.norm()).item<double>();
}

class AttentionGpuTest : public GpuTest, public ::testing::WithParamInterface<AttentionCase> {
 protected:
  // bf16 inputs on the GPU.
  std::pair<at::Tensor, at::Tensor> Inputs(uint64_t seed) const {
    const AttentionCase& c = GetParam();
    const int64_t tokens = Tokens(c);
    const at::Tensor qkv = Normal({tokens, (c.heads + 2 * c.kv_heads) * c.size}, seed);
    const at::Tensor dout = Normal({tokens, c.heads, c.size}, seed + 1);
    return {ToGpu(qkv).to(at::kBFloat16), ToGpu(dout).to(at::kBFloat16)};
  }
};

// The tolerance for bf16 is that of its rounding of probabilities, gradients of scores and results:
// each is 2^-9 or less of a value, and errors of many values add up as their root.
TEST_P(AttentionGpuTest, EqualsTheFormulasInDoubles) {
  const AttentionCase& c = GetParam();
  const auto [qkv, dout] = Inputs(21);
  const AttentionResult expected = Reference(c, qkv, dout);
  for (const auto& [type, tolerance] :
       {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 1e-2)}) {
    // fp32 takes plain products: all scores of a document at once.
    if (type == at::kFloat && Tokens(c) > 1024) continue;
    const AttentionResult actual = Attend(c, qkv.to(type), dout.to(type));
    EXPECT_LT(RelativeError(actual.out, expected.out), tolerance) << type;
    EXPECT_LT(RelativeError(LseOfTokens(c, actual), expected.lse), 1e-5) << type;
    EXPECT_LT(RelativeError(actual.dv, expected.dv), tolerance) << type;
    // Where each query sees one key, dq and dk are zero but for rounding.
    const bool one_key = c.window == 1 || Tokens(c) == static_cast<int64_t>(c.lengths.size());
    EXPECT_LT(ErrorBeside(actual.dq, expected.dq, one_key ? expected.dv : expected.dq), tolerance)
        << type;
    EXPECT_LT(ErrorBeside(actual.dk, expected.dk, one_key ? expected.dv : expected.dk), tolerance)
        << type;
  }
}

TEST_P(AttentionGpuTest, IsAsRightInAnyOrder) {
  const AttentionCase& c = GetParam();
  const auto [qkv, dout] = Inputs(27);
  const AttentionResult expected = Reference(c, qkv, dout);
  ops::SetDeterministic(false);
  const AttentionResult actual = Attend(c, qkv, dout);
  const bool one_key = c.window == 1 || Tokens(c) == static_cast<int64_t>(c.lengths.size());
  EXPECT_LT(RelativeError(actual.dv, expected.dv), 1e-2);
  EXPECT_LT(ErrorBeside(actual.dq, expected.dq, one_key ? expected.dv : expected.dq), 1e-2);
  EXPECT_LT(ErrorBeside(actual.dk, expected.dk, one_key ? expected.dv : expected.dk), 1e-2);
}

TEST_P(AttentionGpuTest, EachDocumentIsRightByItself) {
  const AttentionCase& c = GetParam();
  const auto [qkv, dout] = Inputs(31);
  const AttentionResult expected = Reference(c, qkv, dout), actual = Attend(c, qkv, dout);
  int64_t first = 0;
  for (const int64_t length : c.lengths) {
    const auto of = [&](const at::Tensor& x) { return x.narrow(0, first, length); };
    // The first few tokens have next to no gradient of q and k: one key has all the weight.
    const bool few = length < 16 || c.window == 1;
    const at::Tensor beside_q = of(few ? expected.dv : expected.dq);
    const at::Tensor beside_k = of(few ? expected.dv : expected.dk);
    SCOPED_TRACE(testing::Message() << "document of " << length << " tokens at " << first);
    EXPECT_LT(RelativeError(of(actual.out), of(expected.out)), 2e-2);
    EXPECT_LT(RelativeError(of(actual.dv), of(expected.dv)), 2e-2);
    EXPECT_LT(ErrorBeside(of(actual.dq), of(expected.dq), beside_q), 2e-2);
    EXPECT_LT(ErrorBeside(of(actual.dk), of(expected.dk), beside_k), 2e-2);
    first += length;
  }
}

TEST_P(AttentionGpuTest, RepeatsBitForBit) {
  const AttentionCase& c = GetParam();
  const auto [qkv, dout] = Inputs(23);
  const AttentionResult first = Attend(c, qkv, dout);
  for (int i = 0; i < 5; ++i) {
    const AttentionResult again = Attend(c, qkv, dout);
    EXPECT_TRUE(SameBits(first.out, again.out));
    EXPECT_TRUE(SameBits(first.dq, again.dq));
    EXPECT_TRUE(SameBits(first.dk, again.dk));
    EXPECT_TRUE(SameBits(first.dv, again.dv));
  }
}

// Attention with all keys of the later half of each document's queries alone; the gradient of the
// other queries is zero.
TEST_P(AttentionGpuTest, OfTheLastQueriesIsTheEndOfTheFormulas) {
  const AttentionCase& c = GetParam();
  const auto [lengths, numbers] = LastQueries(c.lengths);
  const auto [qkv, every_dout] = Inputs(37);
  const at::Tensor chosen = ToGpu(at::tensor(numbers, at::kLong));
  const auto last = [&](const at::Tensor& x) { return x.index_select(0, chosen); };
  const at::Tensor dout = at::zeros_like(every_dout).index_copy(0, chosen, last(every_dout));
  const AttentionResult expected = Reference(c, qkv, dout);
  const auto heads = [&](int64_t from, int64_t count) {
    return qkv.narrow(1, from * c.size, count * c.size).view({qkv.size(0), count, c.size});
  };
  const at::Tensor q = last(heads(0, c.heads)), k = heads(c.heads, c.kv_heads),
                   v = heads(c.heads + c.kv_heads, c.kv_heads);
  const at::Tensor keys_end = ToGpu(Offsets(c.lengths));
  const ops::Documents documents{ToGpu(Offsets(lengths)), lengths, keys_end, c.lengths};
  const double scale = 0.8 / std::sqrt(static_cast<double>(c.size));
  const auto attend = [&] {
    AttentionResult r{at::empty(q.sizes(), q.options()),
                      {},
                      at::empty(q.sizes(), q.options()),
                      at::empty(k.sizes(), k.options()),
                      at::empty(k.sizes(), k.options())};
    r.lse = ops::Attention(r.out, q, k, v, documents, scale, c.window);
    ops::AttentionBackward(r.dq, r.dk, r.dv, last(dout), q, k, v, r.out, r.lse, documents, scale,
                           c.window);
    return r;
  };
  const AttentionResult actual = attend(), again = attend();
  EXPECT_LT(RelativeError(actual.out, last(expected.out)), 1e-2);
  EXPECT_LT(RelativeError(actual.lse, expected.lse.index_select(1, chosen)), 1e-5);
  EXPECT_LT(RelativeError(actual.dv, expected.dv), 1e-2);
  const bool one_key = c.window == 1 || Tokens(c) == static_cast<int64_t>(c.lengths.size());
  EXPECT_LT(ErrorBeside(actual.dq, last(expected.dq), one_key ? expected.dv : last(expected.dq)),
            1e-2);
  EXPECT_LT(ErrorBeside(actual.dk, expected.dk, one_key ? expected.dv : expected.dk), 1e-2);
  EXPECT_TRUE(SameBits(actual.out, again.out));
  EXPECT_TRUE(SameBits(actual.dq, again.dq));
  EXPECT_TRUE(SameBits(actual.dk, again.dk));
  EXPECT_TRUE(SameBits(actual.dv, again.dv));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AttentionGpuTest,
    ::testing::Values(
        AttentionCase{"one_token", {1}, 2, 1, 64, 0},
        AttentionCase{"one_document", {300}, 4, 2, 128, 0},
        AttentionCase{"ragged", {5, 1, 130, 64, 257}, 6, 2, 64, 0},
        AttentionCase{"many_heads", {700, 324}, 16, 2, 128, 0},
        AttentionCase{"ragged_with_a_token_between", {7, 1, 300, 64}, 32, 8, 128, 0},
        AttentionCase{"ragged_of_thousands", {1000, 96, 3000}, 64, 8, 128, 0},
        AttentionCase{"five_of_six_documents", {400, 1, 512, 300, 333}, 9, 3, 64, 0},
        AttentionCase{"dense", {512, 512, 512, 512}, 32, 8, 128, 0},
        AttentionCase{"dense_of_odd_length", {333, 333, 333}, 9, 3, 64, 0},
        AttentionCase{"dense_ungrouped", {640, 640}, 4, 4, 96, 0},
        AttentionCase{"dense_size_80", {512, 512}, 4, 2, 80, 0},
        AttentionCase{"dense_in_calls_of_documents", std::vector<int64_t>(3, 2048), 64, 8, 128, 0},
        AttentionCase{"dense_in_calls_of_heads", {4096}, 64, 8, 128, 0},
        AttentionCase{"dense_of_one_head_in_much_memory", {12288}, 5, 1, 128, 0},
        AttentionCase{"in_slabs", {20000}, 16, 2, 128, 0},
        AttentionCase{"two_documents_in_slabs", {17408, 17408}, 8, 1, 96, 0},
        AttentionCase{"window_in_slabs", {20000}, 8, 1, 128, 5000},
        AttentionCase{"ragged_in_slabs", {5000, 17000, 4096, 300}, 8, 1, 96, 0},
        AttentionCase{"ragged_window_in_slabs", {17000, 9001}, 16, 2, 128, 700},
        AttentionCase{"in_turns", {9000}, 8, 2, 128, 0},
        AttentionCase{"ragged_in_turns", {8193, 1, 63, 64, 65, 2047, 129, 300}, 6, 2, 128, 0},
        AttentionCase{"in_turns_ungrouped", {8200, 2500, 8192}, 5, 5, 128, 0},
        AttentionCase{"window_in_turns", {4096, 1, 2500, 127, 700}, 6, 3, 128, 300},
        AttentionCase{"window_of_one_in_turns", {4200}, 2, 1, 128, 1},
        AttentionCase{"wide_window_in_turns", {8300, 70}, 4, 1, 128, 4500},
        AttentionCase{"small_in_turns", {2100}, 8, 2, 64, 0},
        AttentionCase{"small_ragged_in_turns", {1025, 1, 63, 64, 65, 300, 129}, 6, 2, 64, 0},
        AttentionCase{"small_in_turns_ungrouped", {1024, 500, 1100}, 5, 5, 64, 0},
        AttentionCase{"small_window_in_turns", {1500, 1, 127, 700}, 16, 2, 64, 128},
        AttentionCase{"small_window_of_one_in_turns", {1100}, 2, 1, 64, 1},
        AttentionCase{"window_of_500", {4500}, 8, 2, 128, 500},
        AttentionCase{"window_of_128_in_two_documents", {2100, 2100}, 8, 2, 96, 128},
        AttentionCase{"window_size_256", {4200}, 4, 2, 256, 1024},
        AttentionCase{"ragged_window_of_600", {4096, 700, 2500, 1}, 8, 2, 128, 600},
        AttentionCase{"many_short", std::vector<int64_t>(64, 64), 8, 2, 128, 0},
        AttentionCase{
            "one_among_many_short", {900, 3, 5, 2, 17, 1, 8, 4, 9, 33, 2, 6, 1}, 8, 2, 64, 0},
        AttentionCase{"window", {200, 33, 90}, 4, 4, 64, 16},
        AttentionCase{"dense_window", {512, 512}, 8, 2, 128, 100},
        AttentionCase{"ragged_window", {700, 411, 64}, 8, 2, 128, 130},
        AttentionCase{"window_of_one", {40, 9}, 2, 2, 64, 1},
        AttentionCase{"dense_window_of_one", {256, 256}, 2, 2, 64, 1},
        AttentionCase{"window_beyond_the_rows", {40, 9}, 2, 1, 64, 4096},
        AttentionCase{"size_of_no_flash_kernel", {50, 70}, 4, 2, 20, 0},
        // Heads of no library: plain products, of many key heads at once, and in blocks of queries.
        AttentionCase{"size_512", {50, 70}, 8, 2, 512, 0},
        AttentionCase{"size_512_window", {300, 1, 470}, 4, 2, 512, 100},
        AttentionCase{"size_512_in_blocks", {5000}, 8, 2, 512, 0},
        AttentionCase{"size_512_window_in_blocks", {5000, 33}, 4, 1, 512, 900},
        AttentionCase{"size_80", {50, 70}, 4, 2, 80, 0},
        AttentionCase{"ragged_size_80", {300, 470}, 4, 2, 80, 0},
        AttentionCase{"size_96", {300, 470}, 4, 2, 96, 0},
        AttentionCase{"size_256", {300, 470}, 4, 2, 256, 0},
        AttentionCase{"dense_size_256", {512, 512}, 8, 4, 256, 0},
        AttentionCase{"dense_window_size_256", {640, 640}, 8, 4, 256, 100}),
    [](const auto& info) { return info.param.name; });

class CudnnAttentionGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    const std::string name = Plugin().devices->Properties(0).name;
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    if (!has("H100") && !has("H200") && !has("H800") && !has("H20") && !has("GH200")) {
      GTEST_SKIP() << "cuDNN's attention is held to this on Hopper, this is " << name;
    }
  }
};

TEST_F(CudnnAttentionGpuTest, TakesLongDocumentsAndLeavesTheRest) {
  const auto is_cudnn = [](const AttentionCase& c) {
    const at::Tensor qkv =
        ToGpu(Normal({Tokens(c), (c.heads + 2 * c.kv_heads) * c.size}, 41)).to(at::kBFloat16);
    const at::Tensor dout = ToGpu(Normal({Tokens(c), c.heads, c.size}, 42)).to(at::kBFloat16);
    const bool taken = IsCudnn(Attend(c, qkv, dout));
    const at::Tensor q = qkv.narrow(1, 0, c.heads * c.size).view({Tokens(c), c.heads, c.size});
    EXPECT_EQ(ops::AttentionKind(q, c.lengths) == "cuDNN", taken);
    return taken;
  };
  EXPECT_TRUE(is_cudnn({"", {2048, 2048}, 32, 8, 128, 0}));
  EXPECT_TRUE(is_cudnn({"", {333, 333, 333}, 9, 3, 64, 0}));
  EXPECT_TRUE(is_cudnn({"", {1000, 96, 3000}, 64, 8, 128, 0}));
  EXPECT_TRUE(is_cudnn({"", {512, 512}, 8, 2, 128, 100}));
  EXPECT_TRUE(is_cudnn({"", {512, 512}, 4, 2, 80, 0}));
  EXPECT_FALSE(is_cudnn({"", std::vector<int64_t>(64, 64), 8, 2, 128, 0}));
  EXPECT_TRUE(is_cudnn({"", {512, 512}, 8, 4, 256, 0}));
}

// A plan takes tens of milliseconds to build, a call of this size far less than one, or a few where
// other programs share the GPU.
TEST_F(CudnnAttentionGpuTest, BuildsAPlanOnceForBatchesThatRoundAlike) {
  const auto seconds = [](const std::vector<int64_t>& lengths) {
    const AttentionCase c{"", lengths, 10, 5, 128, 0};
    const at::Tensor qkv = ToGpu(Normal({Tokens(c), 20 * 128}, 51)).to(at::kBFloat16);
    const at::Tensor dout = ToGpu(Normal({Tokens(c), 10, 128}, 52)).to(at::kBFloat16);
    const ops::Documents documents{ToGpu(Offsets(c.lengths)), c.lengths};
    const auto heads = [&](int64_t first, int64_t count) {
      return qkv.narrow(1, first * 128, count * 128).view({Tokens(c), count, 128});
    };
    const at::Tensor q = heads(0, 10), k = heads(10, 5), v = heads(15, 5);
    at::Tensor out = at::empty_like(dout), dq = at::empty_like(dout);
    at::Tensor dk = at::empty({Tokens(c), 5, 128}, q.options()), dv = at::empty_like(dk);
    Plugin().devices->Synchronize(0);
    const MonoTime begin = Clock::Real().Mono();
    const at::Tensor lse = ops::Attention(out, q, k, v, documents, 0.1, 0);
    ops::AttentionBackward(dq, dk, dv, dout, q, k, v, out, lse, documents, 0.1, 0);
    Plugin().devices->Synchronize(0);
    EXPECT_EQ(lse.dim(), 3);
    return std::chrono::duration<double>(Clock::Real().Mono() - begin).count();
  };
  const double first = seconds({901, 700, 3});
  double best = seconds({899, 690, 20});
  for (int i = 0; i < 5; ++i) best = std::min(best, seconds({1020 - i, 650 + i, 33}));
  EXPECT_LT(best, 0.5 * first);
}

// The backward of any implementation follows the forward of any: here a batch whose gradients do
// not lie on 16 bytes, which cuDNN does not take.
TEST_F(CudnnAttentionGpuTest, FlashGoesOnFromItsLogsumexp) {
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{512, 512}, std::vector<int64_t>{700, 45, 279}}) {
    const AttentionCase c{"", lengths, 8, 2, 64, 0};
    const int64_t tokens = Tokens(c);
    const at::Tensor qkv = ToGpu(Normal({tokens, 12 * 64}, 61)).to(at::kBFloat16);
    const at::Tensor dout = ToGpu(Normal({tokens, 8, 64}, 62)).to(at::kBFloat16);
    const ops::Documents documents{ToGpu(Offsets(lengths)), lengths};
    const auto heads = [&](const at::Tensor& rows, int64_t first, int64_t count) {
      return rows.narrow(1, first * 64, count * 64).view({tokens, count, 64});
    };
    const at::Tensor q = heads(qkv, 0, 8), k = heads(qkv, 8, 2), v = heads(qkv, 10, 2);
    const double scale = 0.8 / 8.0;
    at::Tensor out = at::empty_like(dout);
    const at::Tensor lse = ops::Attention(out, q, k, v, documents, scale, 0);
    ASSERT_EQ(lse.dim(), 3);
    const at::Tensor gradients = at::empty({tokens, 12 * 64 + 1}, qkv.options());
    at::Tensor dq = heads(gradients, 0, 8), dk = heads(gradients, 8, 2);
    at::Tensor dv = heads(gradients, 10, 2);
    ops::AttentionBackward(dq, dk, dv, dout, q, k, v, out, lse, documents, scale, 0);
    const AttentionResult expected = Reference(c, qkv, dout);
    EXPECT_LT(RelativeError(dq, expected.dq), 1e-2);
    EXPECT_LT(RelativeError(dk, expected.dk), 1e-2);
    EXPECT_LT(RelativeError(dv, expected.dv), 1e-2);
  }
}

TEST_F(GpuTest, DropoutAttentionDropsProbabilitiesByASeedAndBackward) {
  ExpectDropoutAttention(at::Device(at::kCUDA, 0), at::kBFloat16, 1.5e-2);
  const at::Tensor q = ToGpu(at::zeros({4, 1, 8}));
  at::Tensor out = at::empty_like(q);
  const std::vector<int64_t> lengths = {4};
  const at::Tensor cu_seqlens = ToGpu(at::tensor({0, 4}, at::kInt));
  EXPECT_THROW(ops::DropoutAttention(out, q, q, q, {cu_seqlens, lengths}, 1.0, 0, {0.1, 1}),
               c10::Error)
      << "fp32";
}

// Every implementation: plain products (fp32), FlashAttention-2 and cuDNN, ragged and not.
TEST_F(GpuTest, SinksAreThoseOfTheCpu) {
  const AttentionCase cases[] = {{"short", {70, 1, 130}, 8, 2, 64, 0},
                                 {"equal", {2048, 2048}, 8, 2, 64, 0},
                                 {"ragged", {2048, 900, 1500}, 8, 2, 64, 0},
                                 {"windows", {2048, 1500}, 8, 2, 64, 128}};
  for (const AttentionCase& c : cases) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      at::manual_seed(3);
      const at::Tensor qkv = at::randn({Tokens(c), (c.heads + 2 * c.kv_heads) * c.size}).to(type);
      const at::Tensor dout = at::randn({Tokens(c), c.heads, c.size}).to(type);
      const at::Tensor sinks = at::tensor({-20.0F, 0.0F, 1.5F, 4.0F, 9.0F, 2.0F, -1.0F, 0.5F});
      const SinkResult gpu = AttendWithSinks(c, ToGpu(qkv), ToGpu(dout), ToGpu(sinks));
      const SinkResult cpu = AttendWithSinks(c, qkv.to(at::kFloat), dout.to(at::kFloat), sinks);
      const double tolerance = type == at::kFloat ? 1e-4 : 2e-2;
      EXPECT_LT(RelativeError(gpu.out, cpu.out), tolerance) << c.name;
      EXPECT_LT(RelativeError(gpu.dq, cpu.dq), tolerance) << c.name;
      EXPECT_LT(RelativeError(gpu.dk, cpu.dk), tolerance) << c.name;
      EXPECT_LT(RelativeError(gpu.dv, cpu.dv), tolerance) << c.name;
      EXPECT_LT(RelativeError(gpu.dsinks, cpu.dsinks), tolerance) << c.name;
    }
  }
}

}  // namespace
}  // namespace sft::engine
