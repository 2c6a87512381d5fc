#include "worker/engine/weights/layout.h"

#include <algorithm>
#include <utility>

namespace sft::engine {

int64_t ParamInfo::numel() const {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

std::string_view ParamInfo::module() const {
  std::string_view view = name;
  for (std::string_view suffix :
       {".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector", ".weight", ".bias"}) {
    if (view.ends_with(suffix)) return view.substr(0, view.size() - suffix.size());
  }
  return view;
}

int UnitInfo::Find(std::string_view wanted) const {
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].name == wanted) return static_cast<int>(i);
  }
  return -1;
}

bool UnitInfo::trainable() const {
  return std::any_of(params.begin(), params.end(), [](const ParamInfo& p) { return p.trainable; });
}

bool UnitInfo::held() const {
  return std::any_of(params.begin(), params.end(), [](const ParamInfo& p) { return p.held; });
}

MatrixInfo UnitInfo::Matrix(int index) const {
  MatrixInfo matrix;
  for (int weight : shared_matrices[index]) {
    const ParamInfo& param = params[weight];
    const std::string module(param.module());
    MatrixInfo::Member member;
    member.weight = weight;
    member.bias = Find(module + ".bias");
    member.lora_a = Find(module + ".lora_A.weight");
    member.lora_b = Find(module + ".lora_B.weight");
    member.magnitude = Find(module + ".lora_magnitude_vector");
    member.first_row = matrix.rows;
    member.rows = param.shape[0];
    member.first_rank = matrix.rank;
    const bool stack = param.experts > 0;
    member.rank = member.lora_a >= 0 && !stack ? params[member.lora_a].shape[0] : 0;
    if (member.lora_b >= 0) member.scale_ratio = params[member.lora_b].scale_ratio;
    matrix.rows += member.rows;
    matrix.columns = param.shape[1];
    matrix.rank += member.rank;
    matrix.dora |= member.magnitude >= 0;
    matrix.members.push_back(member);
  }
  return matrix;
}

bool ModelLayout::tied_head() const {
  const auto& params = units.back().params;
  return std::none_of(params.begin(), params.end(),
                      [](const ParamInfo& p) { return p.role == ParamRole::kHead; });
}

int ModelLayout::first_trainable() const {
  int unit = 0;
  while (unit < size() && !units[unit].trainable()) ++unit;
  return unit;
}

std::vector<int> ModelLayout::StagesOf(int unit, int param) const {
  const int stage_of_unit = stages.StageOf(unit), last = stages.StageOf(head_unit());
  // The table is the first of its unit.
  const bool copied = tied_head() && unit == 0 && param == 0 && last != stage_of_unit;
  return copied ? std::vector<int>{stage_of_unit, last} : std::vector<int>{stage_of_unit};
}

void ModelLayout::Divide(plan::StageMap map, int own_stage) {
  stages = std::move(map);
  stage = own_stage;
  for (int unit = 0; unit < size(); ++unit) {
    std::vector<ParamInfo>& params = units[unit].params;
    for (size_t i = 0; i < params.size(); ++i) {
      const std::vector<int> holders = StagesOf(unit, static_cast<int>(i));
      params[i].held = std::find(holders.begin(), holders.end(), stage) != holders.end();
    }
  }
}

int64_t ModelLayout::total_parameters() const {
  int64_t count = 0;
  for (const UnitInfo& unit : units) {
    for (const ParamInfo& param : unit.params) {
      if (param.of_base()) count += param.numel();
    }
  }
  return count;
}

int64_t ModelLayout::trainable_parameters() const {
  int64_t count = 0;
  for (const UnitInfo& unit : units) {
    for (const ParamInfo& param : unit.params) count += param.trainable ? param.numel() : 0;
  }
  return count;
}

void FlatLayout::Append(int param, int64_t count, int64_t align) {
  size_ = (size_ + align - 1) / align * align;
  pieces_.push_back({param, size_, count, 0});
  size_ = (size_ + count + align - 1) / align * align;
}

std::vector<FlatLayout::Piece> FlatLayout::Slice(int64_t begin, int64_t count) const {
  std::vector<Piece> slice;
  for (const Piece& piece : pieces_) {
    const int64_t first = std::max(piece.begin, begin);
    const int64_t last = std::min(piece.begin + piece.count, begin + count);
    if (first < last) slice.push_back({piece.param, first, last - first, first - piece.begin});
  }
  return slice;
}

}  // namespace sft::engine
