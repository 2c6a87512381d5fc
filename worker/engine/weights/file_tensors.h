#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "worker/engine/weights/layout.h"

namespace sft::engine {

// One of the tensors that a parameter of the base stands in the model's files as.
struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// The parameter itself, turned, or the parts of a stack (plan::TensorInfo::parts), in their order.
std::vector<FileTensor> FileTensorsOf(const ParamInfo& param);
// The tensor of that number, of a parameter's value; may be a view of it.
at::Tensor ToFile(const ParamInfo& param, const at::Tensor& value, size_t number);
// The parameter's value of what `read` gives for each name.
at::Tensor FromFiles(const ParamInfo& param,
                     const std::function<at::Tensor(const std::string& name)>& read);

}  // namespace sft::engine
