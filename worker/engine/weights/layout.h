#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/plan/checkpoint_names.h"
#include "common/plan/parameters.h"
#include "common/plan/stages.h"
#include "common/plan/stored_weights.h"
#include "common/plan/tensors.h"
#include "common/plan/whole_modules.h"

// A model's parameters, cut into units: the pieces that are acquired, gathered, reduced and
// released as one. Unit 0 is the embedding, then one unit a block, the last is final norm and
// head.

namespace sft::engine {

// A constant is never trained; a router is neither quantised nor adapted.
enum class ParamRole {
  kEmbedding,
  kNorm,
  kLinear,
  kBias,
  kHead,
  kConstant,
  kRouter,
  kMixer,
  kLoraA,
  kLoraB,
  kMagnitude
};

// How the ranks that share matrices have a parameter: each a part of it, or all of them the whole.
// Those that have the same elements are consecutive, and each computes with them for other tokens
// or other heads: the gradient of what they have is the sum of theirs (weights/tensor_cut.h).
struct TensorCut {
  enum class Along { kNothing, kRows, kColumns };
  Along along = Along::kNothing;
  int ranks = 1;               // that share matrices
  int parts = 1;               // that differ
  int part = 0;                // this rank's
  std::vector<int64_t> whole;  // shape of the whole parameter; empty where ranks is 1
  // Rows of the linears that stand one below the other in it: each is cut for itself.
  std::vector<int64_t> joined;

  // Ranks that have the same elements.
  int sharers() const { return ranks / parts; }
};

// One parameter of the model or of an adapter.
struct ParamInfo {
  // Hugging Face's; of an adapter: "<module>.lora_A.weight", "<module>.lora_magnitude_vector".
  std::string name;
  std::vector<int64_t> shape;  // of what this rank has of it (`cut`)
  ParamRole role = ParamRole::kLinear;
  bool trainable = false;
  bool quantized = false;  // kept as bytes of a format (quant_format.h), never trainable
  bool mxfp4 = false;      // quantised: as the checkpoint has it, in MXFP4
  // Counted as quantised, but plain in the checkpoint: it stands in one matrix with weights that
  // the checkpoint has in 4 bits.
  bool plain_among_quantized = false;
  // For an adapter's factor B: this adapter's scale divided by the scale that the job or the
  // adapter's configuration sets for all (lora.alpha_pattern and lora.rank_pattern change it).
  double scale_ratio = 1.0;
  bool transposed = false;  // a weight that stands in the model's files as [inputs, outputs]
  // Of a stack and its adapter's factors: the experts whose parts lie one below the other; 0: of
  // one linear.
  int64_t experts = 0;
  bool exact = false;              // plan::TensorInfo::exact
  std::vector<std::string> parts;  // plan::TensorInfo::parts, and single_parts
  std::vector<std::string> single_parts;
  std::vector<int64_t> joined = {};  // plan::TensorInfo::joined; of B and a magnitude, those of W
  TensorCut cut;

  bool held = true;  // by this rank's stage of a pipeline; else another's

  // A parameter of the model, not of an adapter.
  bool of_base() const { return role < ParamRole::kLoraA; }
  int64_t numel() const;
  // The shape of the whole parameter, wherever its parts are.
  const std::vector<int64_t>& whole_shape() const { return cut.ranks > 1 ? cut.whole : shape; }
  // "model.layers.0.self_attn.q_proj" of "....q_proj.weight" or "....q_proj.lora_A.weight".
  std::string_view module() const;
};

// Linear layers that read one input. Their weights stand one below the other in one matrix, so that
// one product serves them all; adapters have room beside and below them (nn/projection.h).
struct MatrixInfo {
  // A linear layer: positions of its parameters in the unit (-1: has none) and its place.
  struct Member {
    int weight = -1;
    int bias = -1;
    int lora_a = -1;
    int lora_b = -1;
    int magnitude = -1;     // DoRA's
    int64_t first_row = 0;  // of the matrix
    int64_t rows = 0;       // its outputs
    int64_t first_rank = 0;
    int64_t rank = 0;          // of its adapter; 0: has none
    double scale_ratio = 1.0;  // of its adapter (ParamInfo)
  };
  std::vector<Member> members;
  int64_t rows = 0;     // N: outputs of all members
  int64_t columns = 0;  // K: inputs
  int64_t rank = 0;     // R: of all adapters; 0 of a stack, whose adapters stand apart
  bool dora = false;    // one has a magnitude

  // R in FP8, whose products need inner sizes that are multiples of 16: the columns beyond R are
  // zeros. Rows have room for as many, where K and N are such multiples.
  int64_t fp8_rank() const { return (rank + 15) / 16 * 16; }
  // Elements from one row to the next where there is room for the adapters.
  int64_t stride() const { return plan::RowStride(columns, rank); }
  int64_t numel() const { return (rows + rank) * stride(); }
};

// Parameters that are gathered and released together: the embedding, a block, or norm and head.
struct UnitInfo {
  std::string name;  // "embedding", "model.layers.3", "head"
  std::vector<ParamInfo> params;
  // The weights of the linear layers by the matrix they share, as positions in `params`.
  std::vector<std::vector<int>> shared_matrices;

  // Position of a parameter by name, -1 when the unit has none.
  int Find(std::string_view name) const;
  bool trainable() const;
  bool held() const;  // some of it
  // shared_matrices[index] with the adapters that the unit has now.
  MatrixInfo Matrix(int index) const;
};

// All units of a model in the order of the forward pass.
struct ModelLayout {
  std::vector<UnitInfo> units;
  plan::CheckpointNames in_files;
  plan::NamedModules named;  // of the base, which may be trained whole beside adapters
  plan::StoredWeights stored;
  plan::StageMap stages;  // of a pipeline; else one holds all
  int stage = 0;          // this rank's
  int tensor_ranks = 1;   // that share matrices (CutOver)

  // Of the names of all base parameters (plan::ModelShape::prefix).
  const std::string& prefix() const { return in_files.prefix; }
  bool IsOtherPart(std::string_view name) const { return in_files.IsOtherPart(name); }
  int size() const { return static_cast<int>(units.size()); }
  int head_unit() const { return size() - 1; }
  bool is_block(int unit) const { return unit > 0 && unit < head_unit(); }
  int blocks() const { return size() - 2; }
  // The head has the embedding's weight, none of its own.
  bool tied_head() const;
  // The lowest unit with a trainable parameter; size() when nothing is trained.
  int first_trainable() const;
  // Divides the units over stages; parameters of other stages are held no longer. The last has a
  // copy of the embedding's table where that is the head.
  void Divide(plan::StageMap map, int own_stage);
  // The stages that hold a parameter, ascending.
  std::vector<int> StagesOf(int unit, int param) const;
  int64_t total_parameters() const;  // of the base: adapters do not count
  int64_t trainable_parameters() const;
};

// Some parameters of a unit laid end to end in one flat buffer, in the order of the unit.
class FlatLayout {
 public:
  struct Piece {
    int param = 0;      // position in the unit
    int64_t begin = 0;  // in the flat buffer
    int64_t count = 0;  // elements
    int64_t first = 0;  // element of the parameter at `begin`; 0 but in a Slice
  };

  FlatLayout() = default;
  // `select` says which parameters belong; `align`: each starts at a multiple of it.
  template <typename Select>
  FlatLayout(const UnitInfo& unit, const Select& select, int64_t align = 1) {
    for (int i = 0; i < static_cast<int>(unit.params.size()); ++i) {
      if (select(unit.params[i])) Append(i, unit.params[i].numel(), align);
    }
  }

  const std::vector<Piece>& pieces() const { return pieces_; }
  int64_t size() const { return size_; }
  bool empty() const { return pieces_.empty(); }

  // The pieces that lie in [begin, begin + count) of the flat buffer, cut to it; their `begin`
  // stays a position in the whole flat buffer.
  std::vector<Piece> Slice(int64_t begin, int64_t count) const;

 private:
  void Append(int param, int64_t count, int64_t align);

  std::vector<Piece> pieces_;
  int64_t size_ = 0;
};

}  // namespace sft::engine
