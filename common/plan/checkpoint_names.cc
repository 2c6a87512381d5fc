#include "common/plan/checkpoint_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "common/plan/tensors.h"

namespace sft::plan {
namespace {

// Types of weights that are read as they are.
constexpr std::string_view kFloats[] = {"F64", "F32", "F16", "BF16"};

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// A mask of GPT-2's that is computed, of a block that the model has; its name may lack the start
// that names may lack.
bool IsMask(const CheckpointNames& names, std::string_view name) {
  const std::string_view optional = names.optional_prefix;
  if (optional.empty()) return false;
  if (name.starts_with(optional)) name.remove_prefix(optional.size());
  return std::any_of(names.blocks.begin(), names.blocks.end(), [&](std::string_view block) {
    if (!block.starts_with(optional)) return false;
    block.remove_prefix(optional.size());
    if (!name.starts_with(block)) return false;
    const std::string_view rest = name.substr(block.size());
    return rest == ".attn.bias" || rest == ".attn.masked_bias";
  });
}

// Compares tensors with the description, one after the other.
class Comparison {
 public:
  Comparison(const ModelShape& shape, const HeaderTensors& tensors)
      : shape_(shape), tensors_(tensors), names_(NamesInFiles(shape)) {}

  std::string Find() {
    for (const auto& [name, tensor] : tensors_) {
      if (std::string problem = ExpertInFourBits(name); !problem.empty()) return problem;
    }
    for (const TensorUnit& unit : TensorsOf(shape_)) {
      for (const TensorInfo& tensor : unit.tensors) {
        if (std::string problem = Look(tensor); !problem.empty()) return problem;
      }
    }
    for (const auto& [name, tensor] : tensors_) {
      if (!known_.contains(name) && !names_.MayBeExtra(name)) return UnknownTensor(name);
    }
    return "";
  }

 private:
  bool Has(const std::string& name) const { return tensors_.contains(name); }

  // What is wrong with a tensor of the model; takes note of it and of what belongs to it.
  std::string Look(const TensorInfo& tensor) {
    if (tensor.parts.empty()) return LookAt(tensor.name, tensor);
    const bool single =
        !tensor.single_parts.empty() && !Has(tensor.parts[0]) && Has(tensor.single_parts[0]);
    if (!single) return LookAtParts(tensor);
    TensorInfo of_singles = tensor;
    of_singles.parts = tensor.single_parts;
    return LookAtParts(of_singles);
  }
  std::string LookAtParts(const TensorInfo& tensor) {
    for (const std::string& name : tensor.parts) {
      if (std::string problem = LookAt(name, tensor); !problem.empty()) return problem;
    }
    return "";
  }
  // At the tensor `full`, or a part of it by that name.
  std::string LookAt(const std::string& full, const TensorInfo& tensor) {
    if (shape_.stored.form == StoredForm::kMxfp4 && Has(full + kMxfp4Blocks)) {
      return LookAtMxfp4(full, tensor);
    }
    const auto has = [this](const std::string& name) { return Has(name); };
    const std::string name = names_.InFiles(full, has);
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return NoSuchTensor(full);
    known_.insert(name);
    if (shape_.stored.form == StoredForm::kNf4 && Has(name + kNf4State)) {
      TakeBeside(name);
      return "";
    }
    const std::vector<int64_t> expected = tensor.ShapeInFiles();
    const HeaderTensor& header = found->second;
    if (header.shape != expected) {
      return fmt::format("{}: {}", header.file, OtherShape(name, header.shape, expected));
    }
    if (shape_.stored.form == StoredForm::kFp8 && header.type == "F8_E4M3") return TakeScales(name);
    const bool reads =
        std::find(std::begin(kFloats), std::end(kFloats), header.type) != std::end(kFloats);
    return reads ? "" : OtherType(name, header.type);
  }

  std::string LookAtMxfp4(const std::string& name, const TensorInfo& tensor) {
    for (const auto& [end, shape] : Mxfp4Shapes(tensor.shape, tensor.experts)) {
      const auto found = tensors_.find(name + end);
      if (found == tensors_.end()) return NoSuchTensor(name + end);
      known_.insert(found->first);
      if (found->second.shape != shape) {
        return fmt::format("{}: {}", found->second.file,
                           OtherShape(found->first, found->second.shape, shape));
      }
      if (found->second.type != "U8") return OtherType(found->first, found->second.type);
    }
    return "";
  }

  // What bitsandbytes writes beside a weight in 4 bits.
  void TakeBeside(const std::string& name) {
    const std::string start = name + ".";
    for (auto it = tensors_.lower_bound(start);
         it != tensors_.end() && it->first.starts_with(start); ++it) {
      known_.insert(it->first);
    }
  }

  std::string TakeScales(const std::string& name) {
    const std::string scales = name + kFp8Scales;
    if (!Has(scales)) return NoScales(name, scales);
    known_.insert(scales);
    const std::string module = name.substr(0, name.rfind('.'));
    for (const std::string_view unused : kFp8Unused) known_.insert(module + std::string(unused));
    return "";
  }

  const ModelShape& shape_;
  const HeaderTensors& tensors_;
  const CheckpointNames names_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace

bool CheckpointNames::IsOtherPart(std::string_view name) const {
  if (!other_part.empty() && name.starts_with(other_part) &&
      name.substr(other_part.size()).starts_with('.')) {
    return true;
  }
  return !name.starts_with(prefix) && name != PrefixedName(prefix, "lm_head.weight");
}

bool CheckpointNames::MayBeExtra(std::string_view name) const {
  const auto is_unused = [name](const std::string& module) {
    return name.starts_with(module) && name.substr(module.size()).starts_with('.');
  };
  return name == PrefixedName(prefix, "lm_head.weight") || name.ends_with("rotary_emb.inv_freq") ||
         IsMask(*this, name) || IsOtherPart(name) ||
         std::any_of(unused.begin(), unused.end(), is_unused);
}

CheckpointNames NamesInFiles(const ModelShape& shape) {
  CheckpointNames names{.prefix = shape.prefix,
                        .optional_prefix = std::string(NamesOf(shape).optional_prefix)};
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    TensorUnit block = BlockTensors(shape, layer);
    names.blocks.push_back(std::move(block.name));
    std::move(block.unused.begin(), block.unused.end(), std::back_inserter(names.unused));
  }
  if (NamesOf(shape).other_part != nullptr) names.other_part = NamesOf(shape).other_part;
  if (NamesOf(shape).has_mtp_layer) names.unused.push_back(BlockName(shape, shape.layers));
  return names;
}

std::string NoSuchTensor(std::string_view name) {
  return fmt::format("the weights hold no tensor {}, which config.json asks for", name);
}

std::string UnknownTensor(std::string_view name) {
  return fmt::format("the weights hold {}, which the architecture in config.json does not have",
                     name);
}

std::string OtherShape(std::string_view name, const std::vector<int64_t>& shape,
                       const std::vector<int64_t>& expected) {
  return fmt::format("{} has shape {}, config.json asks for {}", name, ShapeText(shape),
                     ShapeText(expected));
}

std::string OtherType(std::string_view name, std::string_view type) {
  return fmt::format(
      "{} has type {}, and config.json has no quantization_config that says how to read it", name,
      type);
}

std::string NoScales(std::string_view name, std::string_view scales) {
  return fmt::format("the weights hold {} in FP8, but not {}", name, scales);
}

std::string ExpertInFourBits(std::string_view name) {
  const std::string_view state = kNf4State;
  if (!name.ends_with(state) || name.find(".experts.") == name.npos) return "";
  name.remove_suffix(state.size());
  return fmt::format(
      "{} is stored in 4 bits, which is not read of experts: use the original weights (of gpt-oss "
      "those with experts in MXFP4, which QLoRA keeps as they are; all others it quantises when "
      "they are loaded)",
      name);
}

std::string HeldTwice(std::string_view file, std::string_view other, std::string_view name) {
  return fmt::format("{} and {} both hold the tensor \"{}\"", file, other, name);
}

std::string NotInItsShard(std::string_view index, std::string_view name, std::string_view shard) {
  return fmt::format("{} places \"{}\" in {}, which does not hold it", index, name, shard);
}

std::string FindContradiction(const ModelShape& shape, const HeaderTensors& tensors) {
  return Comparison(shape, tensors).Find();
}

}  // namespace sft::plan
