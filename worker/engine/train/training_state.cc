#include "worker/engine/train/training_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
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

std::string NameOf(std::string_view kind, int64_t first, std::string_view param) {
  return fmt::format("{}/{}/{}", kind, first, param);
}

[[noreturn]] void Incomplete(const std::filesystem::path& dir, const std::string& what) {
  throw InfrastructureError(fmt::format("the checkpoint {} {}", dir.string(), what),
                            "checkpoint_damaged",
                            "Resume from another checkpoint, and report this one.");
}

const std::string& NameOf(const TrainingModel& model, const TrainablePart& part) {
  return model.layout().units[part.unit].params[part.param].name;
}

}  // namespace

std::vector<NamedTensor> StateTensors(TrainingModel& model,
                                      const std::vector<Tensor>& best_weights) {
  std::vector<NamedTensor> tensors;
  for (const AdamW* optimizer : model.Optimizers()) {
    for (size_t i = 0; i < optimizer->params().size(); ++i) {
      const OptimizerParam& param = optimizer->params()[i];
      if (param.weight.numel() == 0 || !model.Saves(param.name)) continue;
      tensors.push_back({NameOf(kMaster, param.offset, param.name), param.weight.view({-1})});
      const AdamWMoments moments = optimizer->Moments(i);
      for (const Half& half : kMoments) {
        const Tensor& values = moments.*half.member;
        if (values.defined()) {
          tensors.push_back({NameOf(half.kind, param.offset, param.name), values});
        }
      }
    }
  }
  for (size_t i = 0; i < best_weights.size(); ++i) {
    const TrainablePart& part = model.store().parts()[i];
    if (!model.Saves(NameOf(model, part))) continue;
    tensors.push_back({NameOf(kBest, part.first, NameOf(model, part)), best_weights[i]});
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
      const char* begin = name.data() + slash + 1;
      const char* end = name.data() + second;
      if (second == std::string::npos || std::from_chars(begin, end, piece.first).ptr != end) {
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

void SavedState::Read(std::string_view kind, const std::string& param, int64_t first,
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

std::vector<AdamWMoments> SavedState::Moments(const std::string& param) const {
  std::vector<AdamWMoments> moments;
  for (const Piece& piece : Find("m", param)) moments.push_back({.first = piece.first});
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

void RestoreMoments(SavedState& saved, AdamW& optimizer, size_t index) {
  const std::string& param = optimizer.params()[index].name;
  const AdamWMoments own = optimizer.Moments(index);
  if (own.m_absmax.defined() || saved.Contains("m_absmax", param)) {  // codes
    optimizer.Restore(index, saved.Moments(param));
    return;
  }
  saved.Read("m", param, own.first, own.m);
  saved.Read("v", param, own.first, own.v);
}

}  // namespace

void RestoreState(SavedState& saved, const Manifest& manifest, TrainingModel& model) {
  const at::NoGradGuard no_grad;
  for (AdamW* optimizer : model.Optimizers()) {
    optimizer->SetSteps(manifest.optimizer_steps);
    for (size_t i = 0; i < optimizer->params().size(); ++i) {
      const OptimizerParam& param = optimizer->params()[i];
      if (param.weight.numel() == 0) continue;
      saved.Read(kMaster, param.name, param.offset, param.weight.view({-1}));
      RestoreMoments(saved, *optimizer, i);
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
    saved.Read(kBest, NameOf(model, part), part.first, weights.back());
  }
  return weights;
}

}  // namespace sft::engine
