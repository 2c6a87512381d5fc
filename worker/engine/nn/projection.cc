#include "worker/engine/nn/projection.h"

#include <ATen/ops/add.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <utility>

#include "common/base/round.h"
#include "common/plan/execution.h"
#include "common/plan/parameters.h"
#include "worker/engine/base/error.h"
#include "worker/engine/nn/token_exchange.h"
#include "worker/engine/weights/frozen_fp8.h"

namespace sft::engine {

using at::Tensor;

namespace {

// The tensors `first`, `first + 1`, ... of `count` rows each as one matrix, where they lie end to
// end; undefined otherwise.
Tensor Joined(const std::vector<Tensor>& parts) {
  int64_t rows = 0;
  for (const Tensor& part : parts) {
    if (!part.defined() || !part.is_contiguous() || !part.is_alias_of(parts[0]) ||
        part.storage_offset() != parts[0].storage_offset() + rows * parts[0].size(1)) {
      return {};
    }
    rows += part.size(0);
  }
  return parts[0].as_strided({rows, parts[0].size(1)}, {parts[0].size(1), 1});
}

double AdapterScale(const MatrixInfo::Member& member, const Pass& pass) {
  return pass.lora.scale * member.scale_ratio;
}

// The columns of rows [T, C] in FP8, for a product that sums over tokens: [C, T], with zeros up to
// the multiple of 16 that such a product needs.
ops::Fp8Rows WeightColumns(const Tensor& rows) {
  const int64_t tokens = RoundUp(rows.size(0), 16);
  Tensor values = at::empty({rows.size(1), tokens}, rows.options().dtype(at::kFloat8_e4m3fn));
  Tensor scale = at::empty({rows.size(1)}, rows.options().dtype(at::kFloat));
  ops::Fp8QuantizeColumns(values, scale, rows);
  return {values, scale};
}

// sum = dy^T x + beta sum, where dy are the columns [first, first + height) of all.
void AddFp8Product(Tensor sum, double beta, const ops::Fp8Rows& dy, const ops::Fp8Rows& x,
                   int64_t first) {
  // Sums over so many tokens need their full precision.
  ops::Fp8Gemm(sum, dy.values.narrow(0, first, sum.size(0)), dy.scale.narrow(0, first, sum.size(0)),
               x.values, x.scale, beta != 0.0 ? sum : Tensor(), /*fast_sums=*/false);
}

Activation Quantised(Activation x) {
  ops::Fp8Quantize(x.fp8.values, x.fp8.scale, x.rows);
  return x;
}

}  // namespace

void AddProduct(Tensor& out, const Tensor& a, const Tensor& weight, const Tensor& addend,
                double scale, const Pass& pass) {
  if (pass.tile > 0) {
    ops::RowProduct(out, a, weight, addend, scale, pass.tile);
  } else if (addend.defined() && !addend.is_same(out)) {
    ops::GemmAdd(out, a, weight.t(), addend, {});
  } else {
    ops::Gemm(out, a, weight.t(), scale, addend.defined() ? 1.0 : 0.0);
  }
}

Projection::Projection(const UnitInfo& unit, int matrix, uint64_t first_module)
    : info_(unit.Matrix(matrix)), matrix_(matrix), first_module_(first_module) {
  const int bias = info_.members[0].bias;
  sums_columns_ = info_.members.size() == 1 && bias >= 0 && unit.params[bias].trainable;
  along_ = unit.params[info_.members[0].weight].cut.along;
}

const TokenExchange& Projection::Sharers(const Pass& pass) const {
  if (pass.sharers == nullptr) throw InternalError("a part of a matrix without the other parts");
  return *pass.sharers;
}

int64_t Projection::OutputTokens(int64_t tokens, const Pass& pass) const {
  return outputs_cut() ? tokens * Sharers(pass).ranks() : tokens;
}

Tensor Projection::GatherInput(const Tensor& x, Tensor& xa, const Pass& pass) const {
  if (info_.rank == 0) return Sharers(pass).Gather(x);
  if (!HasRoom(pass)) SpareColumns(x, info_.rank).copy_(xa);
  const Tensor all = Sharers(pass).Gather(x);
  xa = SpareColumns(all, info_.rank);
  return all;
}

void Projection::SumParts(Tensor& y, const Tensor& part, const Tensor& addend,
                          const Pass& pass) const {
  const Tensor own = Sharers(pass).ScatterSum(part);
  if (addend.defined()) {
    at::add_out(y, own, addend);
  } else {
    y.copy_(own);
  }
  AddBiases(y, pass);
}

bool Projection::HasRoom(const Pass& pass) const {
  const Tensor& matrix = pass.weights.matrices[matrix_];
  return matrix.defined() && matrix.size(1) == info_.columns + info_.rank;
}

const Fp8Matrix* Projection::Fp8(const Pass& pass) const {
  if (pass.weights.fp8.empty()) return nullptr;
  const Fp8Matrix& matrix = pass.weights.fp8[matrix_];
  return matrix.forward.defined() || matrix.backward.defined() ? &matrix : nullptr;
}

bool Projection::JoinsForward(const Pass& pass) const {
  if (info_.rank == 0) return false;
  // Under dropout DoRA treats the weight's output and the adapters' in different ways.
  if (info_.dora && pass.drops()) return false;
  return Fp8(pass) != nullptr || HasRoom(pass);
}

const RowGains& Projection::GainsOf(const Pass& pass) const {
  if (pass.weights.gains.empty()) throw InternalError("no source gives the gains of DoRA's rows");
  return pass.weights.gains[matrix_];
}

Tensor Projection::Weight(const Member& member, const Pass& pass) const {
  return pass.weights.matrices[matrix_]
      .narrow(0, member.first_row, member.rows)
      .narrow(1, 0, info_.columns);
}

bool Projection::JoinsBackward(const Pass& pass) const {
  return !pass.drops() && JoinsForward(pass);
}

Tensor Projection::EmptyInputRows(const Tensor& like) const {
  return EmptyRows(like.size(0), info_.columns, info_.rank, like);
}

Tensor Projection::EmptyGradientRows(const Tensor& like) const {
  return EmptyRows(like.size(0), info_.rows, info_.rank, like);
}

ops::Fp8Rows Projection::Fp8Room(int64_t columns, bool joins, const Tensor& like,
                                 const Pass& pass) const {
  if (Fp8(pass) == nullptr) return {};
  const int64_t stride = plan::RowStride(columns, joins ? info_.fp8_rank() : 0);
  const Tensor wide = at::empty({like.size(0), stride}, like.options().dtype(at::kFloat8_e4m3fn));
  return {wide.narrow(1, 0, columns), at::empty({like.size(0)}, like.options().dtype(at::kFloat))};
}

Activation Projection::EmptyInput(const Tensor& like, const Pass& pass) const {
  ops::Fp8Rows fp8 = Fp8Room(info_.columns, JoinsForward(pass), like, pass);
  return {EmptyInputRows(like), std::move(fp8)};
}

Activation Projection::AsInput(const Tensor& rows, const Pass& pass) const {
  return {rows, Fp8Room(info_.columns, JoinsForward(pass), rows, pass)};
}

Activation Projection::AsGradient(const Tensor& rows, const Pass& pass) const {
  Activation dy(rows, Fp8Room(info_.rows, JoinsBackward(pass), rows, pass));
  dy.sums = EmptySums(rows);
  return dy;
}

Tensor Projection::EmptySums(const Tensor& like) const {
  if (!sums_columns_) return {};
  return at::empty({info_.rows}, like.options().dtype(at::kFloat));
}

void Projection::Fp8Product(Tensor& out, const ops::Fp8Rows& rows, const Tensor& beside,
                            const Tensor& matrix, const Tensor& matrix_scale, const Tensor& addend,
                            bool fast_sums) const {
  Tensor wide = rows.values;
  if (beside.defined()) {
    wide = Widened(rows.values, info_.fp8_rank());
    Tensor next = SpareColumns(rows.values, info_.rank);
    ops::Fp8QuantizeWith(next, beside, rows.scale);
    ClearBehindFactors(wide, info_);
  }
  ops::Fp8Gemm(out, wide, rows.scale, matrix.narrow(1, 0, wide.size(1)), matrix_scale, addend,
               fast_sums);
}

bool Projection::trained(UnitGradients& gradients) const {
  for (const Member& member : info_.members) {
    if (gradients.Wants(member.weight) || gradients.Wants(member.bias) ||
        gradients.Wants(member.lora_a)) {
      return true;
    }
  }
  return false;
}

Tensor Projection::Beside(const Tensor& rows, const Pass& pass) const {
  if (HasRoom(pass)) return SpareColumns(rows, info_.rank);
  return at::empty({rows.size(0), info_.rank}, rows.options());
}

Tensor Projection::FirstFactorProduct(const Tensor& x, const Pass& pass) const {
  Tensor xa = Beside(x, pass);
  std::vector<Tensor> firsts;
  for (const Member& member : info_.members) {
    if (member.rank > 0) firsts.push_back(pass.weights[member.lora_a]);
  }
  if (const Tensor joined = Joined(firsts); joined.defined() && !pass.drops()) {
    AddProduct(xa, x, joined, {}, 1.0, pass);
    return xa;
  }
  for (size_t i = 0; i < info_.members.size(); ++i) {
    const Member& member = info_.members[i];
    if (member.rank == 0) continue;
    const Tensor dropped =
        pass.drops() ? Dropout(x, pass.lora.dropout, *pass.dropout, first_module_ + i) : x;
    Tensor part = xa.narrow(1, member.first_rank, member.rank);
    AddProduct(part, dropped, pass.weights[member.lora_a], {}, 1.0, pass);
  }
  return xa;
}

void Projection::WriteSecondFactors(Tensor& y, const Tensor& xa, const Pass& pass) const {
  for (const Member& member : info_.members) {
    Tensor part = y.narrow(1, member.first_row, member.rows);
    if (member.rank == 0) {
      part.zero_();
      continue;
    }
    AddProduct(part, xa.narrow(1, member.first_rank, member.rank), pass.weights[member.lora_b], {},
               AdapterScale(member, pass), pass);
  }
}

void Projection::AddBiases(Tensor& y, const Pass& pass) const {
  for (const Member& member : info_.members) {
    if (member.bias >= 0) {
      Tensor part = y.narrow(1, member.first_row, member.rows);
      ops::AddBias(part, pass.weights[member.bias]);
    }
  }
}

Tensor Projection::BiasOfProduct(const Pass& pass) const {
  const Member& first = info_.members[0];
  const bool apart = info_.members.size() > 1 || first.bias < 0 || info_.dora || pass.tile > 0 ||
                     Fp8(pass) || inputs_cut();
  return apart ? Tensor() : pass.weights[first.bias];
}

void Projection::Product(Tensor& y, Activation x, const Tensor& xa, const Tensor& addend,
                         const Tensor& bias, const Pass& pass) const {
  const bool joins = JoinsForward(pass);
  // Under dropout DoRA adds what its factors give with its gains.
  const bool apart = info_.rank > 0 && !joins && !(info_.dora && pass.drops());
  Tensor out = y, beside = addend;
  if (apart) {
    if (addend.defined() && addend.is_alias_of(y)) out = at::empty(y.sizes(), y.options());
    WriteSecondFactors(out, xa, pass);
    beside = out;
  }
  if (const Fp8Matrix* fp8 = Fp8(pass)) {
    if (!x.fp8.values.defined()) x = Quantised(AsInput(x.rows, pass));
    Fp8Product(out, x.fp8, joins ? xa : Tensor(), fp8->forward, fp8->forward_scale, beside,
               /*fast_sums=*/false);
  } else {
    PlainProduct(out, x.rows, joins, beside, bias, pass);
  }
  if (apart && addend.defined()) at::add_out(y, out, addend);
}

Tensor Projection::Forward(Tensor& y, Activation x, const Pass& pass, const Tensor& addend) const {
  Tensor xa;
  if (info_.rank > 0) xa = FirstFactorProduct(x.rows, pass);
  if (xa.defined() && pass.adapter_rows.defined()) xa.mul_(pass.adapter_rows);
  if (inputs_cut()) {
    Tensor part = at::empty({x.rows.size(0), info_.rows}, y.options());
    Product(part, x, xa, {}, {}, pass);
    SumParts(y, part, addend, pass);
    return xa;
  }
  if (outputs_cut()) x.rows = GatherInput(x.rows, xa, pass);
  const Tensor bias = BiasOfProduct(pass);
  Product(y, x, xa, info_.dora ? Tensor() : addend, bias, pass);
  if (info_.dora) {
    ApplyGains(y, x.rows, xa, pass);
    AddBiases(y, pass);
    TORCH_CHECK(!addend.is_same(y), "gains: the addend stands in the place of the result");
    if (addend.defined()) y.add_(addend);
    return xa;
  }
  if (!bias.defined()) AddBiases(y, pass);
  // Without the gathered rows, which nothing reads again.
  return outputs_cut() && xa.defined() ? xa.clone() : xa;
}

Projection::Dropped Projection::DroppedOutputs(size_t index, const Tensor& x, const Tensor& xa,
                                               const Pass& pass) const {
  const Member& member = info_.members[index];
  const Tensor dropped = Dropout(x, pass.lora.dropout, *pass.dropout, first_module_ + index);
  Dropped outputs{at::empty({x.size(0), member.rows}, x.options()), {}};
  ops::Gemm(outputs.u, dropped, Weight(member, pass).t(), 1.0, 0.0);
  outputs.v = outputs.u.clone();
  ops::Gemm(outputs.v, xa.narrow(1, member.first_rank, member.rank),
            pass.weights[member.lora_b].t(), AdapterScale(member, pass), 1.0);
  return outputs;
}

void Projection::ApplyGains(Tensor& y, const Tensor& x, const Tensor& xa, const Pass& pass) const {
  const Tensor& gain = GainsOf(pass).gain;
  if (!pass.drops()) {
    const Tensor& acted_on = pass.adapter_rows;
    y.mul_(acted_on.defined() ? at::where(acted_on.ne(0), gain, at::Scalar(1.0)) : gain);
    return;
  }
  for (size_t i = 0; i < info_.members.size(); ++i) {
    const Member& member = info_.members[i];
    if (member.magnitude < 0) continue;
    Dropped outputs = DroppedOutputs(i, x, xa, pass);
    outputs.v.mul_(gain.narrow(0, member.first_row, member.rows));
    y.narrow(1, member.first_row, member.rows).add_(outputs.v).sub_(outputs.u);
  }
}

Tensor Projection::OutputAgain(const Tensor& x, const Tensor& xa, const Pass& pass) const {
  Tensor z = at::empty({x.size(0), info_.rows}, x.options());
  const bool joins = JoinsForward(pass);
  if (joins) {
    // Rows that were made again hold no products of the factors yet.
    Tensor spare = SpareColumns(x, info_.rank);
    if (spare.data_ptr() != xa.data_ptr()) spare.copy_(xa);
  }
  if (!joins) WriteSecondFactors(z, xa, pass);
  PlainProduct(z, x, joins, joins ? Tensor() : z, {}, pass);
  return z;
}

void Projection::AddMagnitudeGradient(const Member& member, const Tensor& dy, const Tensor& outputs,
                                      const Pass& pass, UnitGradients& gradients) const {
  Tensor sum = gradients.Buffer(member.magnitude);
  if (!sum.defined()) return;
  const Tensor norm = GainsOf(pass).norm.narrow(0, member.first_row, member.rows);
  const int64_t most = std::max<int64_t>(plan::kNormElements / member.rows, 1);
  for (int64_t first = 0; first < dy.size(0); first += most) {
    const int64_t count = std::min(most, dy.size(0) - first);
    const Tensor part = dy.narrow(0, first, count).to(at::kFloat);
    sum.add_(at::sum(part.mul(outputs.narrow(0, first, count)), {0}).div_(norm));
  }
}

Tensor Projection::BehindGains(const Tensor& dy, const Tensor& x, const Tensor& xa,
                               const Pass& pass, UnitGradients& gradients) const {
  Tensor z;
  if (!pass.drops()) z = OutputAgain(x, xa, pass);
  for (size_t i = 0; i < info_.members.size(); ++i) {
    const Member& member = info_.members[i];
    if (member.magnitude < 0) continue;
    const Tensor outputs = pass.drops() ? DroppedOutputs(i, x, xa, pass).v
                                        : z.narrow(1, member.first_row, member.rows);
    AddMagnitudeGradient(member, dy.narrow(1, member.first_row, member.rows), outputs, pass,
                         gradients);
  }
  z = Tensor();
  Tensor scaled = EmptyGradientRows(dy);
  scaled.copy_(dy).mul_(GainsOf(pass).gain);
  return scaled;
}

void Projection::InputGradientWithGains(const Tensor& dy, const Tensor& scaled, const Tensor& dxa,
                                        const Pass& pass, Tensor& dx) const {
  if (!pass.drops()) {
    InputGradient(scaled, dxa, pass, dx);
    return;
  }
  ops::Gemm(dx, dy,
            pass.weights.matrices[matrix_].narrow(0, 0, info_.rows).narrow(1, 0, info_.columns),
            1.0, 0.0);
  for (size_t i = 0; i < info_.members.size(); ++i) {
    const Member& member = info_.members[i];
    if (member.magnitude < 0) continue;
    // Of v - u, through the weight; and of v, through the factors.
    const Tensor du = scaled.narrow(1, member.first_row, member.rows)
                          .sub(dy.narrow(1, member.first_row, member.rows));
    Tensor through = at::empty({dx.size(0), dx.size(1)}, dx.options());
    ops::Gemm(through, du, Weight(member, pass), 1.0, 0.0);
    ops::Gemm(through, dxa.narrow(1, member.first_rank, member.rank), pass.weights[member.lora_a],
              1.0, 1.0);
    dx.add_(Dropout(through, pass.lora.dropout, *pass.dropout, first_module_ + i));
  }
}

void Projection::PlainProduct(Tensor& y, const Tensor& x, bool joins, const Tensor& addend,
                              const Tensor& bias, const Pass& pass) const {
  if (!pass.weights.nf4.empty() && pass.weights.nf4[matrix_].codes.defined()) {
    const Nf4Matrix& nf4 = pass.weights.nf4[matrix_];
    const int64_t tile = pass.tile > 0 ? pass.tile : std::max<int64_t>(1, x.size(0));
    ops::Nf4RowProduct(y, x, nf4.codes, nf4.absmax, addend, tile);
    if (bias.defined()) AddBiases(y, pass);
    return;
  }
  const Tensor a = joins ? Widened(x, info_.rank) : x;
  const Tensor weight =
      pass.weights.matrices[matrix_].narrow(0, 0, info_.rows).narrow(1, 0, a.size(1));
  if (bias.defined()) {
    ops::GemmAdd(y, a, weight.t(), addend, bias);
  } else {
    AddProduct(y, a, weight, addend, 1.0, pass);
  }
}

void Projection::AddBiasGradient(const Member& member, const Activation& dy,
                                 UnitGradients& gradients) const {
  Tensor bias = gradients.Buffer(member.bias);
  if (!bias.defined()) return;
  if (!sums_columns_) {
    bias.add_(at::sum(dy.rows.narrow(1, member.first_row, member.rows), {0}, false, at::kFloat));
    return;
  }
  Tensor sums = dy.sums;
  if (!sums.defined()) {
    sums = EmptySums(dy.rows);
    ops::ColumnSums(sums, dy.rows);
  }
  bias.add_(sums);
}

void Projection::AddBiasGradients(const Activation& dy, UnitGradients& gradients) const {
  for (const Member& member : info_.members) AddBiasGradient(member, dy, gradients);
}

void Projection::WeightGradients(const Activation& gradient, Tensor x, const Pass& pass,
                                 UnitGradients& gradients) const {
  const Tensor& dy = gradient.rows;
  std::vector<ProductSum> products;
  std::vector<Tensor> sums;
  for (const Member& member : info_.members) {
    products.push_back(gradients.Product(member.weight));
    sums.push_back(products.back().sum);
  }
  const auto trained = [](const Tensor& sum) { return sum.defined(); };
  if (outputs_cut() && std::any_of(sums.begin(), sums.end(), trained)) x = Sharers(pass).Gather(x);
  const Fp8Matrix* const fp8 = Fp8(pass);
  const bool in_fp8 = fp8 != nullptr && fp8->weight_gradient;
  ops::Fp8Rows dy8, x8;
  if (in_fp8 && std::any_of(sums.begin(), sums.end(), trained)) {
    dy8 = WeightColumns(dy);
    x8 = WeightColumns(x);
  }
  const auto add = [&](Tensor sum, double beta, int64_t first) {
    if (in_fp8) {
      AddFp8Product(std::move(sum), beta, dy8, x8, first);
    } else {
      ops::Gemm(sum, dy.narrow(1, first, sum.size(0)).t(), x, 1.0, beta);
    }
  };
  // Of one matrix, so that all are at their first contribution or none is.
  if (const Tensor joined = Joined(sums); joined.defined()) {
    add(joined, products[0].beta, 0);
    return;
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].defined()) add(sums[i], products[i].beta, info_.members[i].first_row);
  }
}

Tensor Projection::AdapterGradient(const Tensor& dy, const Pass& pass) const {
  Tensor dxa = Beside(dy, pass);
  if (HasRoom(pass)) {
    ops::Gemm(dxa, dy,
              pass.weights.matrices[matrix_]
                  .narrow(0, 0, info_.rows)
                  .narrow(1, info_.columns, info_.rank),
              1.0, 0.0);
    return dxa;
  }
  for (const Member& member : info_.members) {
    if (member.rank == 0) continue;
    Tensor part = dxa.narrow(1, member.first_rank, member.rank);
    ops::Gemm(part, dy.narrow(1, member.first_row, member.rows), pass.weights[member.lora_b],
              AdapterScale(member, pass), 0.0);
  }
  return dxa;
}

int64_t Projection::common_rank() const {
  const int64_t rank = info_.members[0].rank;
  const auto differs = [rank](const Member& member) {
    return member.rank != rank || member.scale_ratio != 1.0;
  };
  return std::any_of(info_.members.begin(), info_.members.end(), differs) ? 0 : rank;
}

const Tensor& Projection::SecondFactor(size_t member, const Pass& pass) const {
  return pass.weights[info_.members[member].lora_b];
}

Tensor Projection::FirstGradient(size_t member, UnitGradients& gradients) const {
  return gradients.Buffer(info_.members[member].lora_a);
}

Tensor Projection::SecondGradient(size_t member, UnitGradients& gradients) const {
  return gradients.Buffer(info_.members[member].lora_b);
}

void Projection::AddSecondGradients(const Tensor& dy, const Tensor& xa, const Pass& pass,
                                    UnitGradients& gradients) const {
  for (const Member& member : info_.members) {
    if (member.rank == 0) continue;
    if (Tensor db = gradients.Buffer(member.lora_b); db.defined()) {
      ops::Gemm(db, dy.narrow(1, member.first_row, member.rows).t(),
                xa.narrow(1, member.first_rank, member.rank), AdapterScale(member, pass), 1.0);
    }
  }
}

void Projection::AddFirstGradients(const Tensor& x, const Tensor& dxa, const Pass& pass,
                                   UnitGradients& gradients) const {
  std::vector<Tensor> firsts;
  for (const Member& member : info_.members) {
    if (member.rank > 0) firsts.push_back(gradients.Buffer(member.lora_a));
  }
  if (Tensor joined = Joined(firsts); joined.defined() && !pass.drops()) {
    ops::Gemm(joined, dxa.t(), x, 1.0, 1.0);
    return;
  }
  for (size_t i = 0; i < info_.members.size(); ++i) {
    const Member& member = info_.members[i];
    Tensor da = gradients.Buffer(member.lora_a);
    if (!da.defined()) continue;
    const Tensor dropped =
        pass.drops() ? Dropout(x, pass.lora.dropout, *pass.dropout, first_module_ + i) : x;
    ops::Gemm(da, dxa.narrow(1, member.first_rank, member.rank).t(), dropped, 1.0, 1.0);
  }
}

void Projection::ProductGradient(Activation dy, const Tensor& dxa, bool adds, const Pass& pass,
                                 Tensor& dx) const {
  const bool joins = JoinsBackward(pass);
  if (const Fp8Matrix* fp8 = Fp8(pass)) {
    if (!dy.fp8.values.defined()) dy = Quantised(AsGradient(dy.rows, pass));
    Fp8Product(dx, dy.fp8, joins ? dxa : Tensor(), fp8->backward, fp8->backward_scale, {},
               /*fast_sums=*/true);
    return;
  }
  const Tensor rows = joins ? Widened(dy.rows, info_.rank) : dy.rows;
  const Tensor weights = pass.weights.matrices[matrix_].narrow(1, 0, info_.columns);
  ops::Gemm(dx, rows, weights.narrow(0, 0, rows.size(1)), 1.0, adds ? 1.0 : 0.0);
}

void Projection::ThroughFactors(Tensor& dx, const Tensor& dxa, bool adds, const Pass& pass) const {
  for (size_t i = 0; i < info_.members.size(); ++i) {
    const Member& member = info_.members[i];
    if (member.rank == 0) continue;
    const Tensor part = dxa.narrow(1, member.first_rank, member.rank);
    if (!pass.drops()) {
      ops::Gemm(dx, part, pass.weights[member.lora_a], 1.0, adds ? 1.0 : 0.0);
    } else {
      Tensor through = at::empty({dx.size(0), dx.size(1)}, dx.options());
      ops::Gemm(through, part, pass.weights[member.lora_a], 1.0, 0.0);
      through = Dropout(through, pass.lora.dropout, *pass.dropout, first_module_ + i);
      if (adds) {
        dx.add_(through);
      } else {
        dx.copy_(through);
      }
    }
    adds = true;
  }
}

void Projection::InputGradient(Activation dy, const Tensor& dxa, const Pass& pass,
                               Tensor& dx) const {
  const bool apart = dxa.defined() && !JoinsBackward(pass);
  // FP8 products whose sums are fast add nothing.
  const bool first = apart && Fp8(pass) == nullptr;
  if (first) ThroughFactors(dx, dxa, /*adds=*/false, pass);
  ProductGradient(std::move(dy), dxa, /*adds=*/first, pass, dx);
  if (apart && !first) ThroughFactors(dx, dxa, /*adds=*/true, pass);
}

void Projection::ScatterInputGradient(Activation dy, const Tensor& x, Tensor dxa, const Pass& pass,
                                      UnitGradients& gradients, Tensor* dx) const {
  // The masks are those of this rank's tokens.
  const bool dropped = dxa.defined() && pass.drops();
  if (dx != nullptr) {
    Tensor part = EmptyInputRows(dy.rows);
    if (dropped) {
      ProductGradient(std::move(dy), dxa, /*adds=*/false, pass, part);
    } else {
      InputGradient(std::move(dy), dxa, pass, part);
    }
    if (dxa.defined()) SpareColumns(part, info_.rank).copy_(dxa);
    const Tensor own = Sharers(pass).ScatterSum(part);
    dx->copy_(own);
    if (dxa.defined()) dxa = SpareColumns(own, info_.rank);
  } else if (dxa.defined()) {
    dxa = Sharers(pass).ScatterSum(dxa.contiguous());
  }
  if (!dxa.defined()) return;
  AddFirstGradients(x, dxa, pass, gradients);
  if (dx != nullptr && dropped) ThroughFactors(*dx, dxa, /*adds=*/true, pass);
}

void Projection::FinishBackward(Activation dy, const Tensor& x, const Tensor& dxa, const Pass& pass,
                                UnitGradients& gradients, Tensor* dx) const {
  if (outputs_cut()) {
    ScatterInputGradient(std::move(dy), x, dxa, pass, gradients, dx);
    return;
  }
  if (dxa.defined()) AddFirstGradients(x, dxa, pass, gradients);
  if (dx != nullptr) InputGradient(std::move(dy), dxa, pass, *dx);
}

Activation Projection::GatheredGradient(Activation dy, const Pass& pass) const {
  return inputs_cut() ? Activation(Sharers(pass).Gather(dy.rows)) : dy;
}

void Projection::Backward(Activation dy, const Tensor& x, const Tensor& xa, const Pass& pass,
                          UnitGradients& gradients, Tensor* dx) const {
  AddBiasGradients(dy, gradients);
  dy = GatheredGradient(std::move(dy), pass);
  WeightGradients(dy, x, pass, gradients);
  if (info_.dora) {
    const Tensor scaled = BehindGains(dy.rows, x, xa, pass, gradients);
    const Tensor dxa = AdapterGradient(scaled, pass);
    AddSecondGradients(scaled, xa, pass, gradients);
    AddFirstGradients(x, dxa, pass, gradients);
    if (dx != nullptr) InputGradientWithGains(dy.rows, scaled, dxa, pass, *dx);
    return;
  }
  Tensor dxa;
  if (info_.rank > 0) {
    dxa = AdapterGradient(dy.rows, pass);
    AddSecondGradients(dy.rows, xa, pass, gradients);
  }
  FinishBackward(std::move(dy), x, dxa, pass, gradients, dx);
}

}  // namespace sft::engine
