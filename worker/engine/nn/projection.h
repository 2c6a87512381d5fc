#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "worker/engine/kernels/ops.h"
#include "worker/engine/nn/pass.h"
#include "worker/engine/nn/rows.h"
#include "worker/engine/weights/layout.h"

namespace sft::engine {

// out = scale * a weight^T + addend, which may be missing; by rows where the pass asks for it.
void AddProduct(at::Tensor& out, const at::Tensor& a, const at::Tensor& weight,
                const at::Tensor& addend, double scale, const Pass& pass);

// Linear layers that read one input, as one product: y = x W^T (+ bias) (+ scale * drop(x) A^T B^T
// for each adapted one), where W holds their weights one below the other and y their outputs side
// by side. T tokens, K inputs, N outputs, R the sum of the adapters' ranks.
//
// The adapters' second factors cost no pass of their own: with them beside the weight and the first
// factors below it (WeightSource places them),
//
//       M = | W  sB |        y  = [ x | x A^T ] [ W | sB ]^T
//           | A   . |        dx = [ dy | s dy B ] [ W ; A ]
//
// where B is block diagonal. So x and dy are rows with R spare columns (rows.h), which the forward
// and the backward write. Where the source left no room in M, and for dx under dropout, the
// products are separate and add up.
//
// Where the source gives FP8 matrices, x and dy are converted row by row, their spare columns too,
// and the products y and dx are in FP8. The adapters' own gradients and first products stay as they
// are. The gradients of trained weights are sums over tokens: for them x and dy are converted once
// more, by columns and transposed (WeightColumns), where the source asks for these products in FP8.
// Who makes x or dy may convert its rows in the same pass: EmptyInput, AsInput and AsGradient have
// room for that. AsGradient has room for the sums of dy's columns, too (ColumnSums).
//
// With magnitudes (DoRA) the output is y = gain * z + bias, where z is the product above and gain
// the rows' (RowGains), as PEFT has it: the norm counts as a constant in the backward. Under
// dropout the weight's own product stays, and the rest is of the dropped input:
//
//       y = x W^T + gain * v - u + bias        u = drop(x) W^T, v = u + s drop(x) A^T B^T
//
// z, or u and v, are made again for the magnitudes' gradient, so nothing more is kept.
//
// A bias is added within the product where one linear has the matrix for itself; the biases of
// several, and those behind FP8 products or gains, are added in a pass of their own.
//
// Where ranks share the matrix (Pass::sharers), each has a part of it, and x or y is of the rank's
// own tokens alone (token_exchange.h). With outputs cut, x and x A^T are gathered in one message,
// and y is of all tokens; backward, dx and dy B are parts of sums, added up and handed back in one
// message, and A's gradient is of own tokens. With inputs cut, x is of all tokens, the products of
// W and B are parts of one sum, and bias and addend join own rows behind it; backward, dy is
// gathered, and B's gradient is a part, since x A^T is. The gradients of what each rank has whole,
// A, B and bias, are sums over the ranks, which the sink's owner makes (ParamPlacement::sharers). A
// linear with inputs cut has its matrix for itself.
//
// Holds positions of parameters, no tensors. Frozen weights get no gradient product.
class Projection {
 public:
  Projection() = default;
  // The linears of `unit`'s shared matrix `matrix`; `first_module` + i identifies member i for
  // dropout.
  Projection(const UnitInfo& unit, int matrix, uint64_t first_module);

  int64_t outputs() const { return info_.rows; }
  int64_t inputs() const { return info_.columns; }
  // Tokens of y where x has so many.
  int64_t OutputTokens(int64_t tokens, const Pass& pass) const;
  // Columns to spare that x and dy need: R.
  int64_t spare() const { return info_.rank; }

  // Rows for x [T, K], and for dy [T, N], uninitialised. `like`: T rows.
  at::Tensor EmptyInputRows(const at::Tensor& like) const;
  at::Tensor EmptyGradientRows(const at::Tensor& like) const;
  // x [T, K], uninitialised; `rows` as x, and as dy. Each with room in FP8 where the product that
  // reads it is in FP8.
  Activation EmptyInput(const at::Tensor& like, const Pass& pass) const;
  Activation AsInput(const at::Tensor& rows, const Pass& pass) const;
  Activation AsGradient(const at::Tensor& rows, const Pass& pass) const;

  // Room for the sums of dy's columns (rows.h); undefined where they are no bias's gradient.
  at::Tensor EmptySums(const at::Tensor& like) const;

  // Writes y, rows [T, N], of x [T, K]; with `addend`, rows [T, N], that is added. Returns
  // drop(x) A^T [T, R] for the backward, undefined without adapters: a view of x's spare columns
  // where the source left room. Of shared matrices the tokens of both are those of what is cut.
  at::Tensor Forward(at::Tensor& y, Activation x, const Pass& pass,
                     const at::Tensor& addend = {}) const;

  // Adds the parameters' gradients and, where dx is not null, writes the gradient of x into *dx,
  // rows [T, K].
  void Backward(Activation dy, const at::Tensor& x, const at::Tensor& xa, const Pass& pass,
                UnitGradients& gradients, at::Tensor* dx) const;

  // True if outputs have gains.
  bool has_gains() const { return info_.dora; }
  // True if one of its parameters is trained.
  bool trained(UnitGradients& gradients) const;

  // For a layer that works out the rest of the backward itself (mlp.cc).

  size_t members() const { return info_.members.size(); }
  // The rank that all members' adapters have; 0 where they differ, a member has none or a scale of
  // its own.
  int64_t common_rank() const;
  // The second factor [rows, rank] of a member, and the gradients of its factors.
  const at::Tensor& SecondFactor(size_t member, const Pass& pass) const;
  at::Tensor FirstGradient(size_t member, UnitGradients& gradients) const;
  at::Tensor SecondGradient(size_t member, UnitGradients& gradients) const;
  // Target [T, R] of the adapters' product with `rows`, uninitialised: spare columns of `rows`
  // where the source left room.
  at::Tensor Beside(const at::Tensor& rows, const Pass& pass) const;
  // s dy B [T, R]
  at::Tensor AdapterGradient(const at::Tensor& dy, const Pass& pass) const;
  // Add the gradients of the factors B, and A.
  void AddSecondGradients(const at::Tensor& dy, const at::Tensor& xa, const Pass& pass,
                          UnitGradients& gradients) const;
  // Adds the gradients of the biases that are trained; dy before GatheredGradient.
  void AddBiasGradients(const Activation& dy, UnitGradients& gradients) const;
  // dy of all tokens, where the inputs are cut; else dy.
  Activation GatheredGradient(Activation dy, const Pass& pass) const;
  // The gradient of x where that is of all tokens.
  void InputGradient(Activation dy, const at::Tensor& dxa, const Pass& pass, at::Tensor& dx) const;
  // Ends a backward, of dy and s dy B: adds the gradients of the factors A and, where dx is not
  // null, writes that of x.
  void FinishBackward(Activation dy, const at::Tensor& x, const at::Tensor& dxa, const Pass& pass,
                      UnitGradients& gradients, at::Tensor* dx) const;

 private:
  using Member = MatrixInfo::Member;
  using Along = TensorCut::Along;

  bool outputs_cut() const { return along_ == Along::kRows; }
  bool inputs_cut() const { return along_ == Along::kColumns; }
  // Throws InternalError where the pass has none.
  const TokenExchange& Sharers(const Pass& pass) const;
  // x with its product xa [T, R] beside it, of all tokens; makes xa a view of it.
  at::Tensor GatherInput(const at::Tensor& x, at::Tensor& xa, const Pass& pass) const;
  // y of the ranks' parts of it.
  void SumParts(at::Tensor& y, const at::Tensor& part, const at::Tensor& addend,
                const Pass& pass) const;
  // FinishBackward where the outputs are cut.
  void ScatterInputGradient(Activation dy, const at::Tensor& x, at::Tensor dxa, const Pass& pass,
                            UnitGradients& gradients, at::Tensor* dx) const;
  // The parts of InputGradient: W's, with the adapters' where they join, and these by themselves.
  // Written, or added to dx, which products in FP8 do not.
  void ProductGradient(Activation dy, const at::Tensor& dxa, bool adds, const Pass& pass,
                       at::Tensor& dx) const;
  void ThroughFactors(at::Tensor& dx, const at::Tensor& dxa, bool adds, const Pass& pass) const;
  void AddFirstGradients(const at::Tensor& x, const at::Tensor& dxa, const Pass& pass,
                         UnitGradients& gradients) const;

  bool HasRoom(const Pass& pass) const;
  // Throws InternalError where the source gives none.
  const RowGains& GainsOf(const Pass& pass) const;
  // W of a member, [rows, K].
  at::Tensor Weight(const Member& member, const Pass& pass) const;
  // u and v of a member under dropout; v is rows [T, N] of it.
  struct Dropped {
    at::Tensor u, v;
  };
  Dropped DroppedOutputs(size_t member, const at::Tensor& x, const at::Tensor& xa,
                         const Pass& pass) const;
  // Makes y of z = x W^T (+ adapters), which it holds.
  void ApplyGains(at::Tensor& y, const at::Tensor& x, const at::Tensor& xa, const Pass& pass) const;
  // z [T, N] again, without dropout.
  at::Tensor OutputAgain(const at::Tensor& x, const at::Tensor& xa, const Pass& pass) const;
  // Adds the magnitudes' gradients, and returns gain * dy, rows [T, N].
  at::Tensor BehindGains(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& xa,
                         const Pass& pass, UnitGradients& gradients) const;
  void AddMagnitudeGradient(const Member& member, const at::Tensor& dy, const at::Tensor& outputs,
                            const Pass& pass, UnitGradients& gradients) const;
  // The gradient of x, of dy and of gain * dy.
  void InputGradientWithGains(const at::Tensor& dy, const at::Tensor& scaled, const at::Tensor& dxa,
                              const Pass& pass, at::Tensor& dx) const;
  // Null where the products are not in FP8.
  const Fp8Matrix* Fp8(const Pass& pass) const;
  // FP8 target for rows like `like` of `columns`; empty where the products are not in FP8.
  ops::Fp8Rows Fp8Room(int64_t columns, bool joins, const at::Tensor& like, const Pass& pass) const;
  // rows times `matrix`, [spare columns included]; `beside`, [T, R], goes into the spare columns of
  // rows, with zeros up to a multiple of 16; undefined: none. Sums are fast in the backward alone:
  // in the forward they moved the second loss of a model of 8B by one part in a hundred, there by
  // nothing (docs/benchmarks).
  void Fp8Product(at::Tensor& out, const ops::Fp8Rows& rows, const at::Tensor& beside,
                  const at::Tensor& matrix, const at::Tensor& matrix_scale,
                  const at::Tensor& addend, bool fast_sums) const;
  // True if the adapters are part of the one product that makes y, or dx.
  bool JoinsForward(const Pass& pass) const;
  bool JoinsBackward(const Pass& pass) const;
  // y = x W^T (+ adapters) (+ addend) (+ bias). Adapters that do not join stand in y before the
  // product is added to them: what they give is small at first, and in bf16 it would be lost in the
  // rounding of a whole output. On an H200 much of it is lost all the same, as if cuBLAS rounded
  // its product before it adds, so the weights of training have room wherever they can.
  void Product(at::Tensor& y, Activation x, const at::Tensor& xa, const at::Tensor& addend,
               const at::Tensor& bias, const Pass& pass) const;
  // y = x W^T (+ addend, which may be y) (+ bias), the spare columns of x included where the
  // adapters join.
  void PlainProduct(at::Tensor& y, const at::Tensor& x, bool joins, const at::Tensor& addend,
                    const at::Tensor& bias, const Pass& pass) const;
  // The bias of all of y, which its product adds; undefined: AddBiases does.
  at::Tensor BiasOfProduct(const Pass& pass) const;
  at::Tensor FirstFactorProduct(const at::Tensor& x, const Pass& pass) const;
  // y = what the adapters give, zeros where a member has none.
  void WriteSecondFactors(at::Tensor& y, const at::Tensor& xa, const Pass& pass) const;
  void AddBiases(at::Tensor& y, const Pass& pass) const;
  // Adds (or writes) the product of dy and x to the gradients of the weights.
  void WeightGradients(const Activation& dy, at::Tensor x, const Pass& pass,
                       UnitGradients& gradients) const;
  void AddBiasGradient(const Member& member, const Activation& dy, UnitGradients& gradients) const;

  MatrixInfo info_;
  int matrix_ = 0;
  uint64_t first_module_ = 0;
  bool sums_columns_ = false;      // one linear, whose bias is trained
  Along along_ = Along::kNothing;  // that the ranks' parts are cut
};

}  // namespace sft::engine
