#include "worker/engine/model/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "common/plan/tensors.h"

namespace sft::engine {
namespace {

// Layers of one kind, in the order in which the first of each stands in the model.
class Kinds {
 public:
  void Add(const std::string& line) {
    const auto [entry, added] = counts_.try_emplace(line, 0);
    if (added) order_.push_back(line);
    ++entry->second;
  }
  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    for (const std::string& line : order_) {
      lines.push_back(fmt::format("  {} x {}", counts_.at(line), line));
    }
    return lines;
  }

 private:
  std::map<std::string, int> counts_;
  std::vector<std::string> order_;
};

// The adapter's rank on a linear's weight; 0: none.
int64_t RankOf(const UnitInfo& unit, const ParamInfo& weight) {
  const int factor = unit.Find(std::string(weight.module()) + ".lora_A.weight");
  if (factor < 0) return 0;
  return unit.params[factor].shape[0] / std::max<int64_t>(weight.experts, 1);
}

std::string TreatmentOf(const UnitInfo& unit, const ParamInfo& param, const spec::JobSpec& spec) {
  if (param.trainable) return "trained";
  std::string text = "frozen";
  if (param.mxfp4) {
    text += ", kept in MXFP4";
  } else if (param.quantized && !param.plain_among_quantized && spec.qlora()) {
    text += fmt::format(", quantised to {} bits", spec.quantization.bits);
  }
  const int64_t rank = param.role == ParamRole::kLinear ? RankOf(unit, param) : 0;
  if (rank == 0) return text;
  return text + fmt::format(", with adapters of rank {}{} trained", rank,
                            param.experts > 0 ? " for each expert" : "");
}

}  // namespace

std::vector<std::string> DescribeTraining(const ModelLayout& layout, const spec::JobSpec& spec) {
  Kinds kinds;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      if (!param.of_base()) continue;
      const char* what = param.role == ParamRole::kBias ? "bias of " : "";
      kinds.Add(fmt::format("{}{} [{}]: {}", what, plan::LastName(param.module()),
                            fmt::join(param.shape, ", "), TreatmentOf(unit, param, spec)));
    }
  }
  std::vector<std::string> lines = kinds.Lines();
  lines.insert(lines.begin(),
               fmt::format("{} of the model's {} parameters are trained:",
                           layout.trainable_parameters(), layout.total_parameters()));
  return lines;
}

std::string DescribeOtherParts(std::span<const std::string> names, const ModelLayout& layout) {
  int64_t count = 0;
  std::set<std::string> parts;
  for (const std::string_view name : names) {
    if (!layout.IsOtherPart(name)) continue;
    ++count;
    constexpr std::string_view kModel = "model.";
    const std::string_view inner = name.starts_with(kModel) ? name.substr(kModel.size()) : name;
    parts.emplace(inner.substr(0, inner.find('.')));
  }
  if (count == 0) return {};
  return fmt::format("not trained, kept as they are: {} tensors of {}", count,
                     fmt::join(parts, ", "));
}

}  // namespace sft::engine
