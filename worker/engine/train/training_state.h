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
#include "worker/engine/weights/tensor_cut.h"

// The tensors of a checkpoint. One is named "<kind>/<first>/<parameter>": consecutive elements of a
// parameter from `first` on, flat. Where ranks share matrices, a part along the columns is named
// "<kind>/<first>@<column>+<columns>/<parameter>": elements from `first` on of the matrix of these
// columns alone, of the whole parameter's. Kinds:
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
  // Fills `to`, contiguous and of the device or in host memory, with elements of what this rank has
  // of a parameter from `first` on, in to's own type. Throws InfrastructureError
  // "checkpoint_damaged" naming the parameter where one is missing.
  void Read(std::string_view kind, const ParamInfo& param, int64_t first, const at::Tensor& to);
  // The optimizer's states of a whole parameter, ascending, in mapped files or memory.
  std::vector<AdamWMoments> Moments(const ParamInfo& param);

 private:
  struct Piece {
    int64_t first = 0;
    int64_t column = 0, columns = 0;  // 0: of all columns
    std::shared_ptr<const SafetensorsFile> file;
    std::string name;  // in the file

    int64_t count() const { return file->Info(name).numel(); }
    CutRange RangeIn(const ParamInfo& param) const;
  };
  // Takes <first>, or <first>@<column>+<columns>; false where the text is neither.
  static bool ReadPlace(std::string_view text, Piece* piece);
  // Fills `to` with a range whose pieces are those of consecutive elements.
  void ReadFlat(std::string_view kind, const std::string& param, int64_t first,
                const at::Tensor& to);
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
