#include "worker/engine/train/other_parts.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "worker/engine/weights/file_tensors.h"

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
      for (FileTensor& tensor : FileTensorsOf(param)) {
        infos.push_back(InfoOf(std::move(tensor.name), param.exact ? at::kFloat : type,
                               std::move(tensor.shape)));
      }
    }
  }
  for (const StoredTensor& part : parts) {
    infos.push_back(IsPlain(part) ? files.Info(part.name) : InfoOf(part.name, type, part.shape));
  }
  return infos;
}

void WriteParam(const ParamInfo& param, const at::Tensor& value, ModelWriter& writer) {
  const std::vector<FileTensor> tensors = FileTensorsOf(param);
  for (size_t i = 0; i < tensors.size(); ++i)
    writer.Write(tensors[i].name, ToFile(param, value, i));
}

}  // namespace sft::engine
