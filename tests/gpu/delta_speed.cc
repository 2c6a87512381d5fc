#include "tests/gpu/delta_speed.h"

#include "worker/engine/kernels/ops.h"

namespace sft::engine {
namespace {

using at::Tensor;

constexpr int64_t kSize = 128;

struct PackedDocuments {
  explicit PackedDocuments(const std::vector<int64_t>& given) : lengths(given) {
    std::vector<int> offsets{0};
    for (const int64_t length : lengths) {
      offsets.push_back(offsets.back() + static_cast<int>(length));
    }
    starts = at::tensor(offsets, at::kInt).to(at::kCUDA);
    tokens = offsets.back();
  }
  ops::Documents documents() const { return {starts, lengths}; }
  std::vector<int64_t> lengths;
  Tensor starts;
  int64_t tokens = 0;
};

// q, k and v lie in the rows of one convolution, as in a layer. Rates count what chunks of 64 need:
// C (5 Dk + 3 Dv) + 6 Dk Dv a token and value head, and three times that backwards.
void Rule(const Table& table, const PackedDocuments& packed, int64_t key_heads,
          int64_t value_heads) {
  const int64_t width = (2 * key_heads + value_heads) * kSize, tokens = packed.tokens;
  const Tensor rows = RandomRows(tokens, width), drows = RandomRows(tokens, width);
  const auto part = [&](const Tensor& of, int64_t first, int64_t heads) {
    return of.narrow(1, first * kSize, heads * kSize).unflatten(1, {heads, kSize});
  };
  const auto gates = [&] {
    return at::randn({tokens, value_heads}, at::TensorOptions(at::kFloat).device(at::kCUDA));
  };
  const Tensor q = part(rows, 0, key_heads), k = part(rows, key_heads, key_heads);
  const Tensor v = part(rows, 2 * key_heads, value_heads);
  Tensor dq = part(drows, 0, key_heads), dk = part(drows, key_heads, key_heads);
  Tensor dv = part(drows, 2 * key_heads, value_heads);
  const Tensor g = at::softplus(gates()).mul_(-0.2), beta = at::sigmoid(gates());
  Tensor dg = at::empty_like(g), dbeta = at::empty_like(beta);
  Tensor out = Random({tokens, value_heads, kSize});
  const Tensor dout = Random({tokens, value_heads, kSize});
  const ops::Documents documents = packed.documents();
  const std::string name = fmt::format("{}x{} {}/{}", packed.lengths.size(), packed.lengths.front(),
                                       key_heads, value_heads);
  const double flops = static_cast<double>(tokens * value_heads) *
                       static_cast<double>(64 * 8 * kSize + 6 * kSize * kSize);
  table.Arithmetic("delta " + name, flops,
                   [&] { ops::GatedDelta(out, q, k, v, g, beta, documents); });
  table.Arithmetic("delta back " + name, 3 * flops, [&] {
    ops::GatedDeltaBackward(dq, dk, dv, dg, dbeta, dout, q, k, v, g, beta, documents);
  });
}

void Around(const Table& table, const PackedDocuments& packed) {
  constexpr int64_t kKeys = 16 * kSize, kValues = 32 * kSize, kChannels = 2 * kKeys + kValues;
  const int64_t tokens = packed.tokens;
  const ops::Documents documents = packed.documents();
  const std::string name = fmt::format(" {}x{}", packed.lengths.size(), packed.lengths.front());
  {
    const Tensor x = RandomRows(tokens, kChannels), dy = Random({tokens, kChannels});
    const Tensor weight = Random({kChannels, 4});
    Tensor out = Random({tokens, kChannels}), dx = RandomRows(tokens, kChannels);
    table.Memory("short_conv" + name, 2 * Bytes(x),
                 [&] { ops::ShortConv(out, x, weight, documents); });
    table.Memory("short_conv backward", 3 * Bytes(x),
                 [&] { ops::ShortConvBackward(dx, dy, x, weight, documents, false); });
    table.Memory("short_conv backward + weight", 3 * Bytes(x),
                 [&] { ops::ShortConvBackward(dx, dy, x, weight, documents, true); });
  }
  const Tensor x = Random({tokens, kValues}), gate = RandomRows(tokens, kValues);
  const Tensor weight = Random({kSize}).to(at::kFloat), dy = Random({tokens, kValues});
  Tensor y = RandomRows(tokens, kValues), dx = Random({tokens, kValues});
  Tensor dgate = RandomRows(tokens, kValues);
  const Tensor rstd = ops::GatedRmsNorm(y, x, gate, weight, 1e-6);
  table.Memory("gated_norm" + name, 3 * Bytes(x),
               [&] { ops::GatedRmsNorm(y, x, gate, weight, 1e-6); });
  table.Memory("gated_norm backward", 5 * Bytes(x),
               [&] { ops::GatedRmsNormBackward(dx, dgate, dy, x, gate, weight, rstd, false); });
  table.Memory("gated_norm backward + weight", 5 * Bytes(x),
               [&] { ops::GatedRmsNormBackward(dx, dgate, dy, x, gate, weight, rstd, true); });
}

// Of a forward of generation: pieces of so many requests. Bytes are those of states alone.
void Next(const Table& table, int64_t requests, int64_t length) {
  constexpr int64_t kKeyHeads = 16, kHeads = 32, kChannels = (2 * kKeyHeads + kHeads) * kSize;
  const int64_t tokens = requests * length;
  ops::Pieces pieces;
  std::vector<int64_t> firsts;
  for (int64_t i = 0; i < requests; ++i) {
    firsts.push_back(i * length);
    pieces.lengths.push_back(length);
    pieces.states.push_back(i);
  }
  pieces.table =
      at::stack({at::tensor(firsts), at::tensor(pieces.lengths), at::tensor(pieces.states)}, 0)
          .to(at::kCUDA);
  const auto floats = at::TensorOptions(at::kFloat).device(at::kCUDA);
  const Tensor rows = Random({tokens, kChannels}), weight = Random({kChannels, 4});
  Tensor convolved = at::empty_like(rows), before = Random({requests, 3, kChannels});
  Tensor states = at::zeros({requests, kHeads, kSize, kSize}, floats);
  const auto part = [&](int64_t first, int64_t heads) {
    return rows.narrow(1, first * kSize, heads * kSize).unflatten(1, {heads, kSize});
  };
  const Tensor g = at::full({tokens, kHeads}, -0.1, floats);
  const Tensor beta = at::full({tokens, kHeads}, 0.5, floats);
  Tensor out = Random({tokens, kHeads, kSize});
  const std::string name = fmt::format(" {}x{}", requests, length);
  table.Memory("short_conv next" + name, 2 * (Bytes(rows) + Bytes(before)),
               [&] { ops::ShortConvNext(convolved, before, rows, weight, pieces); });
  table.Memory("delta next" + name, 2 * Bytes(states), [&] {
    ops::GatedDeltaNext(out, states, part(0, kKeyHeads), part(kKeyHeads, kKeyHeads),
                        part(2 * kKeyHeads, kHeads), g, beta, pieces);
  });
}

}  // namespace

void DeltaSpeeds(const Table& table) {
  const auto documents = [](int64_t count, int64_t length) {
    return PackedDocuments(std::vector<int64_t>(static_cast<size_t>(count), length));
  };
  for (const auto& [count, length] : {std::pair<int64_t, int64_t>{1, 8192},
                                      {1, 16384},
                                      {1, 32768},
                                      {8, 4096},
                                      {8, 2048},
                                      {32, 512}}) {
    Rule(table, documents(count, length), 16, 32);
  }
  for (const int64_t value_heads : {16, 48, 64}) Rule(table, documents(8, 2048), 16, value_heads);
  Around(table, documents(8, 2048));
  Around(table, documents(32, 512));
  for (const auto& [requests, length] :
       {std::pair<int64_t, int64_t>{1, 1}, {64, 1}, {1, 512}, {8, 64}}) {
    Next(table, requests, length);
  }
}

}  // namespace sft::engine
