#include "worker/engine/weights/file_tensors.h"

#include <ATen/ops/cat.h>

#include "common/plan/tensors.h"

namespace sft::engine {

using at::Tensor;

namespace {

// A stack that is one tensor of the files, with the experts as a dimension.
bool IsOneStack(const ParamInfo& param) { return param.experts > 0 && param.parts.size() == 1; }

std::vector<int64_t> ShapeOf(const ParamInfo& param) {
  return plan::ShapeInFiles(param.shape, param.experts, param.parts.size(), param.transposed);
}

Tensor Turned(const ParamInfo& param, const Tensor& value) {
  return param.transposed ? value.transpose(-2, -1).contiguous() : value;
}

}  // namespace

std::vector<FileTensor> FileTensorsOf(const ParamInfo& param) {
  if (param.parts.empty()) return {{param.name, ShapeOf(param)}};
  std::vector<FileTensor> tensors;
  for (const std::string& part : param.parts) tensors.push_back({part, ShapeOf(param)});
  return tensors;
}

Tensor ToFile(const ParamInfo& param, const Tensor& value, size_t number) {
  if (param.parts.empty()) return Turned(param, value);
  if (IsOneStack(param)) return Turned(param, value.unflatten(0, {param.experts, -1}));
  const int64_t rows = ShapeOf(param)[0];
  return value.narrow(0, static_cast<int64_t>(number) * rows, rows);
}

Tensor FromFiles(const ParamInfo& param, const std::function<Tensor(const std::string&)>& read) {
  if (param.parts.empty()) return Turned(param, read(param.name));
  if (IsOneStack(param)) return Turned(param, read(param.parts[0])).reshape(param.shape);
  std::vector<Tensor> parts;
  for (const std::string& name : param.parts) parts.push_back(read(name));
  return at::cat(parts);
}

}  // namespace sft::engine
