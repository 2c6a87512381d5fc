#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/engine/checkpoint/model_writer.h"
#include "worker/engine/checkpoint/safetensors.h"
#include "worker/engine/train/stored_tensor.h"
#include "worker/engine/weights/layout.h"

namespace sft::engine {

// The parts of a multimodal model that are not trained: a written model has them as they are, but
// none in FP8.
std::vector<StoredTensor> OtherParts(const ModelFiles& files, const ModelLayout& layout);

// The part as a written model has it.
at::Tensor ReadPart(const StoredTensor& part, const ModelFiles& files);

// The tensors of a model that is written: those of the layout in `type`, as the files turn them,
// and `parts`, what OtherParts gave.
std::vector<TensorInfo> TensorsToWrite(const ModelLayout& layout, const ModelFiles& files,
                                       const std::vector<StoredTensor>& parts, at::ScalarType type);

// Writes a parameter of the layout, as the tensors that stand for it in files.
void WriteParam(const ParamInfo& param, const at::Tensor& value, ModelWriter& writer);

}  // namespace sft::engine
