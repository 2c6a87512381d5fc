#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/plan/execution.h"
#include "worker/engine/checkpoint/safetensors.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/train/stored_tensor.h"
#include "worker/engine/train/tensor_reader.h"
#include "worker/engine/weights/quantized_source.h"
#include "worker/engine/weights/weight_source.h"

namespace sft::engine {

// A model directory's tensors, checked against a layout, on their way to a device.
// Thread-compatible.
class BaseWeights {
 public:
  // Throws UserError naming the tensor: missing, of another shape or type than config.json says,
  // stored in a form that is not read (FindStored), or present in the files but unknown to the
  // layout (the result would be another model).
  BaseWeights(const std::filesystem::path& model_dir, const ModelLayout& layout, at::Device device);

  const ModelFiles& files() const { return files_; }
  // Has `layout` quantise the weights that the files hold in 4 bits and no others. Throws UserError
  // if none is.
  void QuantizeAsStored(ModelLayout& layout) const;

  // Has `layout` keep stacks that are to be quantised in MXFP4 where the files hold them so.
  void KeepMxfp4(ModelLayout& layout) const;

  at::Device device() const { return device_; }
  // Elements [first, first + count) of what this rank has of a parameter of the base, flat, as
  // stored (16-bit floats that are not bf16 become fp32) or de-quantised to fp32, on the device. On
  // a CPU pages are read from the file when the tensor is used.
  at::Tensor Read(const ParamInfo& param, int64_t first, int64_t count) const;
  // The same of the whole parameter.
  at::Tensor ReadWhole(const ParamInfo& param, int64_t first, int64_t count) const;
  // The bytes of such elements where the files hold them in NF4, or of a parameter that is kept in
  // MXFP4; `first` is a multiple of the format's cut unit. Of the whole parameter.
  QuantizedPart ReadBytes(const ParamInfo& param, int64_t first, int64_t count) const;
  bool HoldsNf4(const ParamInfo& param) const;
  bool HoldsMxfp4(const ParamInfo& param) const;
  // True if ReadBytes gives scales that are quantised too: as bitsandbytes' are, unless some
  // weight's are laid out in another way than kernels/nf4_tables.h says.
  bool nested() const { return nested_; }
  // All that this rank has of the parameter into `to`, of its shape and of any type and stride, in
  // parts of whole rows of at most so many elements: on a GPU no second one of its size is held.
  void Copy(const ParamInfo& param, const at::Tensor& to,
            int64_t part_elements = int64_t{64} << 20) const;
  // To be called when `param` was used: its pages are this process's memory no longer.
  void Done(const ParamInfo& param) const;

 private:
  // Throws UserError where config.json makes the head the embedding and the files hold another one.
  void CheckTiedHead(const ModelLayout& layout) const;
  at::Tensor ReadElements(const std::string& name, int64_t first, int64_t count) const;
  const StoredTensor& Stored(const ParamInfo& param) const { return stored_.at(param.name); }

  ModelFiles files_;
  at::Device device_;
  std::map<std::string, StoredTensor, std::less<>> stored_;
  bool nested_ = true;
  std::unique_ptr<TensorReader> reader_;  // none on a CPU
};

// Storage of frozen parameters.
struct FrozenOptions {
  at::ScalarType compute = at::kFloat;
  int bits = 4;  // of quantised weights: 4 (NF4), 8 (INT8), or 0: as they are
  bool double_quant = true;
  // Products with the blocks' linears are in FP8: with 4-bit weights, or with those in 16 bits,
  // which are then held in FP8 alone (frozen_fp8.h) and whole on every rank.
  bool fp8 = false;
  bool sharded = false;  // each rank its own part of each unit; else whole on every rank
  // Decides how blocks' weights are written (QuantizedSource) and where the embedding's table
  // stays: not on the host for a tied head, nor where it is sharded or trained.
  plan::ExecutionPlan run;
};

// The frozen parameters of `layout` read from `base`, quantised where the layout says so. A
// collective.
std::unique_ptr<WeightSource> LoadFrozen(const ModelLayout& layout, const BaseWeights& base,
                                         const FrozenOptions& options, Communicator& comm);

}  // namespace sft::engine
