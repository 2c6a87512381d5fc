#include "worker/engine/train/training_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "worker/engine/base/error.h"

namespace sft::engine {

using at::Tensor;

namespace {

constexpr std::string_view kMaster = "master", kBest = "best";

struct Half {
  std::string_view kind;
  Tensor AdamWMoments::*member;
};
constexpr Half kMoments[] = {{"m", &AdamWMoments::m},
                             {"v", &AdamWMoments::v},
                             {"m_absmax", &AdamWMoments::m_absmax},
                             {"v_absmax", &AdamWMoments::v_absmax}};

std::string NameOf(std::string_view kind, const CutRange& range, std::string_view param) {
  if (range.is_flat()) return fmt::format("{}/{}/{}", kind, range.first, param);
  return fmt::format("{}/{}@{}+{}/{}", kind, range.first, range.column, range.columns, param);
}

// By name, as this rank has them.
using Params = std::map<std::string_view, const ParamInfo*>;
Params ParamsOf(const ModelLayout& layout) {
  Params params;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) params.emplace(param.name, &param);
  }
  return params;
}

// Adds the elements [first, ...) of what this rank has of a parameter.
void AddTensors(std::string_view kind, const ParamInfo& param, int64_t first, const Tensor& values,
                std::vector<NamedTensor>& tensors) {
  for (const CutRange& range : RangesOf(param, first, values.numel())) {
    tensors.push_back(
        {NameOf(kind, range, param.name), values.narrow(0, range.begin, range.count)});
  }
}

[[noreturn]] void Incomplete(const std::filesystem::path& dir, const std::string& what) {
  throw InfrastructureError(fmt::format("the checkpoint {} {}", dir.string(), what),
                            "checkpoint_damaged",
                            "Resume from another checkpoint, and report this one.");
}

const ParamInfo& ParamOf(const TrainingModel& model, const TrainablePart& part) {
  return model.own_layout().units[part.unit].params[part.param];
}

}  // namespace

std::vector<NamedTensor> StateTensors(TrainingModel& model,
                                      const std::vector<Tensor>& best_weights) {
  std::vector<NamedTensor> tensors;
  const Params params = ParamsOf(model.own_layout());
  for (const AdamW* optimizer : model.Optimizers()) {
    for (size_t i = 0; i < optimizer->params().size(); ++i) {
      const OptimizerParam& param = optimizer->params()[i];
      if (param.weight.numel() == 0 || !model.Saves(param.name)) continue;
      const ParamInfo& info = *params.at(param.name);
      AddTensors(kMaster, info, param.offset, param.weight.view({-1}), tensors);
      const AdamWMoments moments = optimizer->Moments(i);
      for (const Half& half : kMoments) {
        const Tensor& values = moments.*half.member;
        if (!values.defined()) continue;
        if (moments.m_absmax.defined()) {  // of codes, whose blocks are not cut
          tensors.push_back({fmt::format("{}/{}/{}", half.kind, param.offset, param.name), values});
        } else {
          AddTensors(half.kind, info, param.offset, values.view({-1}), tensors);
        }
      }
    }
  }
  for (size_t i = 0; i < best_weights.size(); ++i) {
    const TrainablePart& part = model.store().parts()[i];
    const ParamInfo& info = ParamOf(model, part);
    if (model.Saves(info.name)) AddTensors(kBest, info, part.first, best_weights[i], tensors);
  }
  return tensors;
}

SavedState::SavedState(const std::filesystem::path& dir, const Manifest& manifest,
                       at::Device device)
    : dir_(dir), reader_(device) {
  for (const CheckpointFile& file : manifest.files) {
    const auto shard = SafetensorsFile::Open(dir / file.name);
    for (const auto& [name, info] : shard->tensors()) {
      const size_t slash = name.find('/'), second = name.find('/', slash + 1);
      Piece piece{.file = shard, .name = name};
      const std::string_view place = std::string_view(name).substr(0, second).substr(slash + 1);
      if (second == std::string::npos || !ReadPlace(place, &piece)) {
        Incomplete(dir,
                   fmt::format("holds a tensor \"{}\", which this version does not know", name));
      }
      pieces_[name.substr(0, slash) + name.substr(second)].push_back(std::move(piece));
    }
  }
  for (auto& [name, pieces] : pieces_) {
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.first < b.first; });
  }
}

bool SavedState::ReadPlace(std::string_view text, Piece* piece) {
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto read = [&](int64_t* number) {
    const auto [behind, error] = std::from_chars(at, end, *number);
    at = behind;
    return error == std::errc() && *number >= 0;
  };
  if (!read(&piece->first)) return false;
  if (at == end) return true;
  if (*at++ != '@' || !read(&piece->column)) return false;
  return at != end && *at++ == '+' && read(&piece->columns) && at == end && piece->columns > 0;
}

CutRange SavedState::Piece::RangeIn(const ParamInfo& param) const {
  CutRange range = WholeRange(param);
  range.first = first;
  range.count = count();
  if (columns > 0) {
    range.column = column;
    range.columns = columns;
  }
  return range;
}

bool SavedState::Contains(std::string_view kind) const {
  const std::string prefix = fmt::format("{}/", kind);
  const auto found = pieces_.lower_bound(prefix);
  return found != pieces_.end() && found->first.starts_with(prefix);
}

bool SavedState::Contains(std::string_view kind, const std::string& param) const {
  return pieces_.contains(fmt::format("{}/{}", kind, param));
}

const std::vector<SavedState::Piece>& SavedState::Find(std::string_view kind,
                                                       const std::string& param) const {
  const auto found = pieces_.find(fmt::format("{}/{}", kind, param));
  if (found == pieces_.end()) Incomplete(dir_, fmt::format("holds no {} of \"{}\"", kind, param));
  return found->second;
}

void SavedState::Read(std::string_view kind, const ParamInfo& param, int64_t first,
                      const Tensor& to) {
  const std::vector<Piece>& pieces = Find(kind, param.name);
  const bool flat =
      std::ranges::all_of(pieces, [](const Piece& piece) { return piece.columns == 0; });
  for (const CutRange& range : RangesOf(param, first, to.numel())) {
    const Tensor part = to.narrow(0, range.begin, range.count);
    if (flat && range.is_flat()) {
      ReadFlat(kind, param.name, range.first, part);
      continue;
    }
    int64_t copied = 0;
    for (const Piece& piece : pieces) {
      copied +=
          CopyCommon(piece.RangeIn(param), piece.file->View(piece.name).view({-1}), range, part);
    }
    if (copied == range.count) continue;
    Incomplete(dir_, fmt::format("holds {} of the {} elements of the {} of \"{}\" that are needed",
                                 copied, range.count, kind, param.name));
  }
}

void SavedState::ReadFlat(std::string_view kind, const std::string& param, int64_t first,
                          const Tensor& to) {
  int64_t done = 0;
  for (const Piece& piece : Find(kind, param)) {
    const int64_t begin = first + done - piece.first;
    if (done == to.numel() || begin < 0) break;
    const int64_t count = std::min(to.numel() - done, piece.count() - begin);
    if (count <= 0) continue;
    try {
      reader_.Read(*piece.file, piece.name, begin, to.narrow(0, done, count));
    } catch (const UserError& error) {  // as of a model's file; it was whole when it was verified
      Incomplete(dir_, fmt::format("changed while it was read: {}", error.what()));
    }
    done += count;
  }
  if (done < to.numel()) {
    Incomplete(dir_,
               fmt::format("lacks element {} of the {} of \"{}\"", first + done, kind, param));
  }
}

std::vector<AdamWMoments> SavedState::Moments(const ParamInfo& info) {
  const std::string& param = info.name;
  std::vector<AdamWMoments> moments;
  const std::vector<Piece>& firsts = Find("m", param);
  if (std::ranges::any_of(firsts, [](const Piece& piece) { return piece.columns > 0; })) {
    const at::TensorOptions options(firsts[0].file->Info(firsts[0].name).dtype);
    AdamWMoments whole;
    for (const Half& half : {kMoments[0], kMoments[1]}) {
      whole.*half.member = at::empty({WholeRange(info).count}, options);
      Read(half.kind, info, 0, whole.*half.member);
    }
    return {whole};
  }
  for (const Piece& piece : firsts) moments.push_back({.first = piece.first});
  for (const Half& half : kMoments) {
    const auto found = pieces_.find(fmt::format("{}/{}", half.kind, param));
    if (found == pieces_.end()) continue;
    size_t i = 0;
    for (const Piece& piece : found->second) {
      while (i < moments.size() && moments[i].first != piece.first) ++i;
      if (i == moments.size()) {
        Incomplete(dir_, fmt::format("holds states of \"{}\" that do not belong together", param));
      }
      moments[i].*half.member = piece.file->View(piece.name);
    }
  }
  for (const AdamWMoments& piece : moments) {
    const bool coded = piece.m.scalar_type() == at::kByte;
    if (!piece.v.defined() || piece.v.numel() != piece.m.numel() ||
        piece.m_absmax.defined() != coded || piece.v_absmax.defined() != coded) {
      Incomplete(dir_, fmt::format("holds states of \"{}\" that do not belong together", param));
    }
  }
  return moments;
}

namespace {

void RestoreMoments(SavedState& saved, const ParamInfo& param, AdamW& optimizer, size_t index) {
  const AdamWMoments own = optimizer.Moments(index);
  if (own.m_absmax.defined() || saved.Contains("m_absmax", param.name)) {  // codes
    if (param.cut.parts > 1) {
      throw UserError("the checkpoint's states are in 8 bits, which are not cut over ranks yet",
                      "checkpoint_mismatch", "resume without tensor_parallel_size");
    }
    optimizer.Restore(index, saved.Moments(param));
    return;
  }
  saved.Read("m", param, own.first, own.m);
  saved.Read("v", param, own.first, own.v);
}

}  // namespace

void RestoreState(SavedState& saved, const Manifest& manifest, TrainingModel& model) {
  const at::NoGradGuard no_grad;
  const Params params = ParamsOf(model.own_layout());
  for (AdamW* optimizer : model.Optimizers()) {
    optimizer->SetSteps(manifest.optimizer_steps);
    for (size_t i = 0; i < optimizer->params().size(); ++i) {
      const OptimizerParam& param = optimizer->params()[i];
      if (param.weight.numel() == 0) continue;
      const ParamInfo& info = *params.at(param.name);
      saved.Read(kMaster, info, param.offset, param.weight.view({-1}));
      RestoreMoments(saved, info, *optimizer, i);
    }
  }
  model.MastersChanged();
}

std::vector<Tensor> BestWeights(SavedState& saved, const TrainingModel& model) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> weights;
  if (!saved.Contains(kBest)) return weights;
  for (const TrainablePart& part : model.store().parts()) {
    weights.push_back(at::empty_like(part.master, at::TensorOptions(at::kCPU)));
    saved.Read(kBest, ParamOf(model, part), part.first, weights.back());
  }
  return weights;
}

}  // namespace sft::engine
