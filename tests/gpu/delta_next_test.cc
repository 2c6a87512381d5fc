#include <algorithm>
#include <string>
#include <vector>

#include "tests/gpu/gpu_test.h"
#include "worker/engine/kernels/ops.h"

// Linear attention of pieces of documents, for generation. The CPU kernels in fp32 are the
// reference; tests/unit holds those against whole documents.

namespace sft::engine {
namespace {

using at::Tensor;

constexpr int64_t kStates = 6;
const std::vector<int64_t> kPieceLengths = {1, 70, 3, 8, 2, 9};
const std::vector<int64_t> kPieceStates = {4, 0, 5, -1, 1, 2};  // state 3 belongs to none

struct NextPieces {
  ops::Pieces cpu, gpu;
  int64_t tokens = 0;

  NextPieces(const std::vector<int64_t>& lengths, const std::vector<int64_t>& states)
      : cpu{lengths, states, {}} {
    std::vector<int64_t> firsts;
    for (const int64_t length : lengths) {
      firsts.push_back(tokens);
      tokens += length;
    }
    gpu = cpu;
    gpu.table = ToGpu(at::stack({at::tensor(firsts), at::tensor(lengths), at::tensor(states)}, 0));
  }
};

NextPieces SomePieces() { return {kPieceLengths, kPieceStates}; }

struct NextHeads {
  int64_t keys, values, key_size, value_size;
};
std::ostream& operator<<(std::ostream& out, const NextHeads& h) {
  return out << h.keys << " heads of " << h.key_size << ", " << h.values << " of " << h.value_size;
}

// What GatedDeltaNext reads, and the states before.
struct NextData {
  Tensor q, k, v, g, beta, states;

  NextData As(at::ScalarType type) const {
    return {q.to(type), k.to(type), v.to(type), g, beta, states};
  }
  NextData OnGpu() const {
    return {ToGpu(q), ToGpu(k), ToGpu(v), ToGpu(g), ToGpu(beta), ToGpu(states)};
  }
  NextData Rows(int64_t first, int64_t count) const {
    const auto part = [&](const Tensor& x) { return x.narrow(0, first, count); };
    return {part(q), part(k), part(v), part(g), part(beta), states};
  }
  // Advances the states.
  Tensor Run(const ops::Pieces& pieces) {
    Tensor out = at::full_like(v, NAN);
    ops::GatedDeltaNext(out, states, q, k, v, g, beta, pieces);
    return out;
  }
};

NextData MakeNextData(int64_t tokens, const NextHeads& h) {
  return {Normal({tokens, h.keys, h.key_size}, 1),
          Normal({tokens, h.keys, h.key_size}, 2),
          Normal({tokens, h.values, h.value_size}, 3),
          -0.2 * at::softplus(Normal({tokens, h.values}, 4)),
          at::sigmoid(Normal({tokens, h.values}, 5)),
          Normal({kStates, h.values, h.key_size, h.value_size}, 6)};
}

class DeltaNextGpuTest : public GpuTest, public ::testing::WithParamInterface<NextHeads> {};

TEST_P(DeltaNextGpuTest, PiecesFromTheirStatesEqualTheCpu) {
  const NextPieces pieces = SomePieces();
  const NextData values = MakeNextData(pieces.tokens, GetParam());
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    NextData cpu = values.As(type).As(at::kFloat), gpu = values.As(type).OnGpu();
    cpu.states = values.states.clone();
    const Tensor expected = cpu.Run(pieces.cpu), out = gpu.Run(pieces.gpu);
    EXPECT_LT(RelativeError(out, expected), type == at::kFloat ? 1e-5 : 4e-3) << type;
    EXPECT_LT(RelativeError(gpu.states, cpu.states), 1e-5) << type;
    EXPECT_TRUE(SameBits(gpu.states[3], ToGpu(values.states[3]))) << "nobody's";
  }
}

TEST_P(DeltaNextGpuTest, BitsDependNeitherOnTheCutNorOnOtherDocuments) {
  constexpr int64_t kTokens = 40;
  const NextData values = MakeNextData(kTokens, GetParam()).As(at::kBFloat16).OnGpu();
  NextData whole = values, cut = values;
  whole.states = values.states.clone();
  cut.states = values.states.clone();
  const Tensor expected = whole.Run(NextPieces({kTokens}, {2}).gpu);
  int64_t first = 0;
  for (const int64_t count : {1, 1, 9, 7, 22}) {
    // Beside the same rows once more, of another document, and padding.
    NextData part = cut.Rows(first, count);
    for (Tensor* x : {&part.q, &part.k, &part.v, &part.g, &part.beta}) *x = at::cat({*x, *x, *x});
    const Tensor out =
        part.Run(NextPieces({count, count, count}, {5, 2, -1}).gpu).narrow(0, count, count);
    EXPECT_TRUE(SameBits(out, expected.narrow(0, first, count))) << first;
    first += count;
  }
  EXPECT_TRUE(SameBits(cut.states[2], whole.states[2]));
}

INSTANTIATE_TEST_SUITE_P(Heads, DeltaNextGpuTest,
                         ::testing::Values(NextHeads{1, 1, 3, 5}, NextHeads{2, 4, 8, 6},
                                           NextHeads{3, 3, 32, 40}, NextHeads{2, 4, 64, 64},
                                           NextHeads{2, 6, 128, 128}, NextHeads{1, 2, 200, 256}),
                         [](const auto& info) {
                           return std::to_string(info.param.key_size) + "_" +
                                  std::to_string(info.param.value_size);
                         });

TEST_F(GpuTest, DeltaNextPaddingIsZeros) {
  const NextPieces pieces = SomePieces();
  NextData data = MakeNextData(pieces.tokens, {2, 4, 64, 64}).As(at::kBFloat16).OnGpu();
  const Tensor padding = data.Run(pieces.gpu).narrow(0, 1 + 70 + 3, 8);
  EXPECT_EQ(at::count_nonzero(padding).item<int64_t>(), 0);
}

TEST_F(GpuTest, DeltaNextRefusesPiecesWithoutATableOnTheGpu) {
  const NextPieces pieces = SomePieces();
  NextData data = MakeNextData(pieces.tokens, {2, 4, 64, 64}).OnGpu();
  EXPECT_THROW(data.Run(pieces.cpu), c10::Error);
  NextData wide = MakeNextData(pieces.tokens, {1, 1, 300, 64}).OnGpu();
  EXPECT_THROW(wide.Run(pieces.gpu), c10::Error);
}

TEST_F(GpuTest, GatedConvNextEqualsTheCpu) {
  const NextPieces pieces = SomePieces();
  for (const int64_t channels : {1, 7, 24, 1000, 8192}) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      // Rows of a wider matrix, as the convolution reads them.
      const Tensor x = Normal({pieces.tokens, channels + 64}, 1).to(type).narrow(1, 0, channels);
      const Tensor states = Normal({kStates, 3, channels}, 2).to(type);
      for (const auto weight_type : {type, at::kFloat}) {
        const Tensor weight = Normal({channels, 4}, 3).to(weight_type);
        Tensor expected = at::empty({pieces.tokens, channels}),
               before = states.to(at::kFloat).clone();
        ops::ShortConvNext(expected, before, x.to(at::kFloat), weight.to(at::kFloat), pieces.cpu);
        const Tensor rows = ToGpu(Normal(x.sizes(), 4).to(type));
        Tensor wide = ToGpu(at::zeros({pieces.tokens, channels + 64}, type));
        wide.narrow(1, 0, channels).copy_(x);
        Tensor out = at::full_like(rows, NAN), kept = ToGpu(states);
        ops::ShortConvNext(out, kept, wide.narrow(1, 0, channels), ToGpu(weight), pieces.gpu);
        EXPECT_LT(RelativeError(out, expected), type == at::kFloat ? 3e-6 : 4e-3)
            << channels << type;
        EXPECT_TRUE(SameBits(kept, ToGpu(before.to(type)))) << channels << type;
      }
    }
  }
}

TEST_F(GpuTest, GatedConvNextGivesTheBitsOfWholeDocuments) {
  constexpr int64_t kTokens = 30, kChannels = 512;
  const Tensor x = ToGpu(Normal({kTokens, kChannels}, 1).to(at::kBFloat16));
  const Tensor weight = ToGpu(Normal({kChannels, 4}, 2).to(at::kBFloat16));
  const Tensor starts = ToGpu(at::tensor(std::vector<int32_t>{0, kTokens}, at::kInt));
  const std::vector<int64_t> lengths{kTokens};
  Tensor whole = at::empty_like(x), kept = at::zeros({1, 3, kChannels}, x.options());
  ops::ShortConv(whole, x, weight, {starts, lengths});
  int64_t first = 0;
  for (const int64_t count : {1, 2, 1, 20, 6}) {
    Tensor out = at::empty({count, kChannels}, x.options());
    ops::ShortConvNext(out, kept, x.narrow(0, first, count), weight, NextPieces({count}, {0}).gpu);
    EXPECT_TRUE(SameBits(out, whole.narrow(0, first, count))) << first;
    first += count;
  }
}

}  // namespace
}  // namespace sft::engine
