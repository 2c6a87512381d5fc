#include "worker/engine/train/other_parts.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "common/plan/tensors.h"

namespace sft::engine {
namespace {

bool IsPlain(const StoredTensor& part) { return part.form == plan::StoredForm::kPlain; }

TensorInfo InfoOf(std::string name, at::ScalarType type, std::vector<int64_t> shape) {
  TensorInfo info;
  info.name = std::move(name);
  info.dtype = type;
  info.shape = std::move(shape);
  return info;
}

std::vector<int64_t> ShapeInFiles(const ParamInfo& param) {
  return plan::ShapeInFiles(param.shape, param.experts, param.parts.size(), param.transposed);
}

// A stack that is one tensor of the files.
bool IsOneStack(const ParamInfo& param) { return param.experts > 0 && param.parts.size() == 1; }

}  // namespace

std::vector<StoredTensor> OtherParts(const ModelFiles& files, const ModelLayout& layout) {
  std::vector<StoredTensor> parts;
  std::set<std::string, std::less<>> beside;
  for (const std::string& name : files.Names()) {
    if (!layout.IsOtherPart(name)) continue;
    const TensorInfo& info = files.Info(name);
    const bool fp8 = info.dtype == at::kFloat8_e4m3fn && info.shape.size() == 2 &&
                     files.Contains(name + plan::kFp8Scales);
    if (fp8 && layout.stored.form == plan::StoredForm::kFp8) {
      parts.push_back(FindStored(files, {name, info.shape}, name, layout.stored));
      beside.insert(parts.back().beside.begin(), parts.back().beside.end());
    } else {
      parts.push_back({.name = name, .shape = info.shape});
    }
  }
  std::erase_if(parts, [&](const StoredTensor& part) { return beside.contains(part.name); });
  return parts;
}

at::Tensor ReadPart(const StoredTensor& part, const ModelFiles& files) {
  if (IsPlain(part)) return files.View(part.name);
  const auto read = [&](const std::string& name, int64_t first, int64_t count) {
    return files.ViewRange(name, first, count);
  };
  return ReadStored(part, 0, files.Info(part.name).numel(), read).view(part.shape);
}

std::vector<TensorInfo> TensorsToWrite(const ModelLayout& layout, const ModelFiles& files,
                                       const std::vector<StoredTensor>& parts,
                                       at::ScalarType type) {
  std::vector<TensorInfo> infos;
  for (const UnitInfo& unit : layout.units) {
    for (const ParamInfo& param : unit.params) {
      for (const std::string& part : param.parts) {
        infos.push_back(InfoOf(part, type, ShapeInFiles(param)));
      }
      if (param.parts.empty()) infos.push_back(InfoOf(param.name, type, ShapeInFiles(param)));
    }
  }
  for (const StoredTensor& part : parts) {
    infos.push_back(IsPlain(part) ? files.Info(part.name) : InfoOf(part.name, type, part.shape));
  }
  return infos;
}

void WriteParam(const ParamInfo& param, const at::Tensor& weight, ModelWriter& writer) {
  if (param.parts.empty()) {
    writer.Write(param.name, param.transposed ? weight.t().contiguous() : weight);
    return;
  }
  if (IsOneStack(param)) {
    at::Tensor stack = weight.unflatten(0, {param.experts, -1});
    if (param.transposed) stack = stack.transpose(1, 2).contiguous();
    writer.Write(param.parts[0], stack);
    return;
  }
  const int64_t rows = ShapeInFiles(param)[0];
  for (size_t i = 0; i < param.parts.size(); ++i) {
    writer.Write(param.parts[i], weight.narrow(0, static_cast<int64_t>(i) * rows, rows));
  }
}

at::Tensor ReadParam(const ParamInfo& param, const ModelFiles& files) {
  if (param.parts.empty()) {
    const at::Tensor stored = files.View(param.name);
    return param.transposed ? stored.t().contiguous() : stored;
  }
  if (IsOneStack(param)) {
    const at::Tensor stack = files.View(param.parts[0]);
    return (param.transposed ? stack.transpose(1, 2) : stack).contiguous().view(param.shape);
  }
  std::vector<at::Tensor> parts;
  for (const std::string& name : param.parts) parts.push_back(files.View(name));
  return at::cat(parts);
}

}  // namespace sft::engine
