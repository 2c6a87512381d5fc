#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/checkpoint/safetensors.h"
#include "worker/engine/checkpoint/safetensors_writer.h"
#include "worker/engine/train/tensor_reader.h"
#include "worker/engine/train/training_model.h"

// The tensors of a checkpoint. One is named "<kind>/<first>/<parameter>": consecutive elements of a
// parameter from `first` on, flat. Kinds:
//
//   master              the weights that the optimizer updates, fp32 or bf16
//   m, v                AdamW's moments, fp32, bf16 or 8-bit codes
//   m_absmax, v_absmax  fp32, of each started block of 256 codes
//   best                the weights of the best validation, where that is of an earlier step

namespace sft::engine {

// This rank's tensors of the state; they share the model's storage. `best_weights`: as
// TrainingModel::Snapshot, or nothing.
std::vector<NamedTensor> StateTensors(TrainingModel& model,
                                      const std::vector<at::Tensor>& best_weights);

// The tensors of all shards of a checkpoint, however it was cut. Thread-compatible.
class SavedState {
 public:
  // Opens the manifest's files, which were verified before. `device`: of what is read.
  SavedState(const std::filesystem::path& dir, const Manifest& manifest, at::Device device);

  bool Contains(std::string_view kind) const;
  bool Contains(std::string_view kind, const std::string& param) const;
  // Fills `to`, contiguous and of the device or in host memory, with elements of a parameter from
  // `first` on, in to's own type. Throws InfrastructureError "checkpoint_damaged" naming the
  // parameter where one is missing.
  void Read(std::string_view kind, const std::string& param, int64_t first, const at::Tensor& to);
  // The optimizer's states of a parameter, ascending, in mapped files.
  std::vector<AdamWMoments> Moments(const std::string& param) const;

 private:
  struct Piece {
    int64_t first = 0;
    std::shared_ptr<const SafetensorsFile> file;
    std::string name;  // in the file

    int64_t count() const { return file->Info(name).numel(); }
  };
  const std::vector<Piece>& Find(std::string_view kind, const std::string& param) const;

  std::filesystem::path dir_;
  TensorReader reader_;
  std::map<std::string, std::vector<Piece>, std::less<>> pieces_;  // by "<kind>/<parameter>"
};

// Makes the model what it was when it was saved: master weights, states, steps taken. A collective.
void RestoreState(SavedState& saved, const Manifest& manifest, TrainingModel& model);
// The weights of the best step, as TrainingModel::Snapshot gives them; nothing where there are
// none.
std::vector<at::Tensor> BestWeights(SavedState& saved, const TrainingModel& model);

}  // namespace sft::engine
