#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/plan/stored_weights.h"
#include "worker/engine/checkpoint/safetensors.h"
#include "worker/engine/weights/layout.h"
#include "worker/engine/weights/quant_format.h"

namespace sft::engine {

// How a checkpoint holds one tensor of the model: as it is, or as several tensors of which it is
// computed (bitsandbytes' NF4, FP8 with scales).
struct StoredTensor {
  plan::StoredForm form = plan::StoredForm::kPlain;
  std::string name;                 // in the files
  int64_t begin = 0;                // of a part: elements of that tensor before it
  std::vector<int64_t> shape;       // in the files, or of what is packed
  bool transposed = false;          // the parameter is its transpose
  std::vector<std::string> beside;  // the other tensors that belong to it

  // NF4: elements of a block and, where the blocks' scales are quantised too, scales of a nested
  // block and their mean.
  int64_t block = 0;
  int64_t nested_block = 0;
  float offset = 0.0f;
  // Nested scales as kernels/nf4_tables.h has them: 64 elements a block, 256 scales a nested one.
  bool nested_as_held = false;

  // The tensors that it is made of, one below the other and of one shape, each stored in a way of
  // its own; empty: it is one.
  std::vector<StoredTensor> parts;

  // FP8: rows and columns of a block of one scale.
  int64_t scale_rows = 0, scale_columns = 0;
};

// Finds a parameter of the base in the files, where it is called `name`, and checks what belongs to
// it. Throws UserError naming the tensor: missing, of another shape or type than config.json says,
// stored in a form that `stored` does not say or that is not read.
StoredTensor FindStored(const ModelFiles& files, const ParamInfo& param, const std::string& name,
                        const plan::StoredWeights& stored);
// A stack, of the parts that the files hold (ParamInfo::parts, or single_parts). Throws likewise;
// UserError too for parts in 4 bits.
StoredTensor FindParts(const ModelFiles& files, const ParamInfo& param,
                       const plan::StoredWeights& stored);
// Has the stacks of `layout` be made of single experts' tensors where the files hold those: what is
// delivered is then in tensors of the same names.
void NamePartsAsStored(const ModelFiles& files, ModelLayout& layout);

// Reads elements of a flattened tensor of the files, as stored, onto the device.
using ReadElements =
    std::function<at::Tensor(const std::string& name, int64_t first, int64_t count)>;

// Elements [first, first + count), flat: as stored (16-bit floats that are not bf16 become fp32),
// or de-quantised to fp32.
at::Tensor ReadStored(const StoredTensor& tensor, int64_t first, int64_t count,
                      const ReadElements& read);

// The bytes of elements [first, first + count) of an NF4 weight as MakeNf4Format(double_quant)
// holds them; `first` is a multiple of its cut unit. With double_quant the tensor must be
// nested_as_held. Constants are there for count 0 too.
QuantizedPart ReadNf4(const StoredTensor& tensor, int64_t first, int64_t count, bool double_quant,
                      at::Device device, const ReadElements& read);

// The bytes of elements [first, first + count) of a stack in MXFP4 as MakeMxfp4Format holds them;
// `first` is a multiple of its cut unit.
QuantizedPart ReadMxfp4(const StoredTensor& tensor, int64_t first, int64_t count,
                        const ReadElements& read);

}  // namespace sft::engine
