#include "worker/engine/train/stored_tensor.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>

#include "common/base/json.h"
#include "common/base/round.h"
#include "common/plan/checkpoint_names.h"
#include "common/plan/tensors.h"
#include "worker/engine/base/error.h"
#include "worker/engine/kernels/mxfp4_format.h"
#include "worker/engine/kernels/nf4_tables.h"
#include "worker/engine/kernels/ops.h"

namespace sft::engine {

namespace {

using at::Tensor;
using plan::kNf4State;
using plan::StoredForm;

constexpr int64_t kMaxStateBytes = 1 << 20;

[[noreturn]] void BadTensor(const ModelFiles& files, const std::string& problem,
                            const std::string& advice = "download the model again") {
  throw UserError(files.dir().string() + ": " + problem, "bad_model", advice);
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

int64_t Numel(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// A tensor that belongs to `tensor`, with the type and number of elements that it must have.
void Require(const ModelFiles& files, const std::string& name, at::ScalarType type, int64_t count,
             StoredTensor& tensor) {
  if (!files.Contains(name)) {
    BadTensor(files, fmt::format("the weights hold {} in 4 bits, but not {}", tensor.name, name));
  }
  const TensorInfo& info = files.Info(name);
  if (info.dtype != type || info.numel() != count) {
    BadTensor(files, fmt::format("{} has {} elements of {}, {} of shape {} asks for {} of {}", name,
                                 info.numel(), SafetensorsDtype(info.dtype), tensor.name,
                                 ShapeText(tensor.shape), count, SafetensorsDtype(type)));
  }
  tensor.beside.push_back(name);
}

bool HoldsTable(const ModelFiles& files, const std::string& name, std::span<const float> table) {
  const Tensor stored = files.View(name).contiguous();
  return std::memcmp(stored.const_data_ptr(), table.data(), table.size_bytes()) == 0;
}

// The description that bitsandbytes packs into a tensor.
nlohmann::json ReadState(const ModelFiles& files, const std::string& name) {
  const TensorInfo& info = files.Info(name);
  nlohmann::json state;
  if (info.dtype == at::kByte && info.numel() <= kMaxStateBytes) {
    const Tensor bytes = files.View(name).contiguous();
    state = ParseJson(std::string_view(static_cast<const char*>(bytes.const_data_ptr()),
                                       static_cast<size_t>(bytes.numel())));
  }
  if (!state.is_object()) BadTensor(files, name + " is not the JSON object of bitsandbytes");
  return state;
}

template <typename T>
T StateValue(const ModelFiles& files, const nlohmann::json& state, const std::string& name,
             const char* key) {
  try {
    return state.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {
    BadTensor(files, fmt::format("{} has no \"{}\", or of another type", name, key));
  }
}

void FindNf4(const ModelFiles& files, StoredTensor& tensor) {
  tensor.form = StoredForm::kNf4;
  const std::string& name = tensor.name;
  const std::string state_name = name + kNf4State;
  const nlohmann::json state = ReadState(files, state_name);
  tensor.beside.push_back(state_name);
  if (const auto shape = StateValue<std::vector<int64_t>>(files, state, state_name, "shape");
      shape != tensor.shape) {
    BadTensor(files, plan::OtherShape(name, shape, tensor.shape),
              "config.json and weights must be of one model");
  }
  const int64_t n = Numel(tensor.shape);
  if (files.Info(name).numel() != CeilDiv(n, 2)) {
    BadTensor(files, fmt::format("{} has {} bytes, {} elements of 4 bits are {}", name,
                                 files.Info(name).numel(), n, CeilDiv(n, 2)));
  }
  tensor.block = StateValue<int64_t>(files, state, state_name, "blocksize");
  if (tensor.block <= 0 || tensor.block % kNf4Block != 0) {
    BadTensor(files,
              fmt::format("{} is in blocks of {} elements: multiples of {} are read", name,
                          tensor.block, kNf4Block),
              "use the original weights: they are quantised when loaded");
  }
  Require(files, name + ".quant_map", at::kFloat, std::size(kNf4Values), tensor);
  if (!HoldsTable(files, name + ".quant_map", kNf4Values)) {
    BadTensor(files, name + ".quant_map does not hold the values of NF4",
              "use the original weights: they are quantised when loaded");
  }
  const int64_t blocks = CeilDiv(n, tensor.block);
  if (!files.Contains(name + ".nested_absmax")) {
    Require(files, name + ".absmax", at::kFloat, blocks, tensor);
    return;
  }
  Require(files, name + ".absmax", at::kByte, blocks, tensor);
  tensor.nested_block = StateValue<int64_t>(files, state, state_name, "nested_blocksize");
  tensor.offset = StateValue<float>(files, state, state_name, "nested_offset");
  if (tensor.nested_block <= 0)
    BadTensor(files, state_name + ": \"nested_blocksize\" is not above 0");
  Require(files, name + ".nested_absmax", at::kFloat, CeilDiv(blocks, tensor.nested_block), tensor);
  Require(files, name + ".nested_quant_map", at::kFloat, std::size(kDynamicMap), tensor);
  tensor.nested_as_held = tensor.block == kNf4Block && tensor.nested_block == kNestedBlock &&
                          HoldsTable(files, name + ".nested_quant_map", kDynamicMap);
}

// FP8: "X.weight_scale_inv" beside "X.weight". The scales of activations are for products in FP8.
void FindFp8(const ModelFiles& files, const plan::StoredWeights& stored, StoredTensor& tensor) {
  tensor.form = StoredForm::kFp8;
  const std::string scale = tensor.name + plan::kFp8Scales;
  const int64_t rows = tensor.shape.front(), columns = Numel(tensor.shape) / rows;
  tensor.scale_rows = stored.block > 0 ? stored.block : rows;
  tensor.scale_columns = stored.block > 0 ? stored.block : columns;
  if (!files.Contains(scale)) {
    BadTensor(files, plan::NoScales(tensor.name, scale));
  }
  const TensorInfo& info = files.Info(scale);
  const std::vector<int64_t> expected = {CeilDiv(rows, tensor.scale_rows),
                                         CeilDiv(columns, tensor.scale_columns)};
  const bool fits = stored.block > 0 ? info.shape == expected : info.numel() == 1;
  if (!fits || (!at::isFloatingType(info.dtype) && info.dtype != at::kByte)) {
    BadTensor(files,
              fmt::format("{} has shape {} and type {}, {} of shape {} asks for {} of floats",
                          scale, ShapeText(info.shape), SafetensorsDtype(info.dtype), tensor.name,
                          ShapeText(tensor.shape), ShapeText(expected)));
  }
  tensor.beside.push_back(scale);
  const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
  for (const std::string_view unused : plan::kFp8Unused) {
    const std::string name = module + std::string(unused);
    if (files.Contains(name)) tensor.beside.push_back(name);
  }
}

// The scales of blocks of 64 elements.
Tensor ReadAbsmax(const StoredTensor& tensor, int64_t first, int64_t count,
                  const ReadElements& read) {
  const int64_t ratio = tensor.block / kNf4Block;
  const int64_t begin = first / ratio, stored = CeilDiv(first + count, ratio) - begin;
  Tensor absmax = read(tensor.name + ".absmax", begin, stored);
  if (tensor.nested_block > 0) {
    const int64_t nested = begin / tensor.nested_block;
    const int64_t before = begin - nested * tensor.nested_block;
    const Tensor scales =
        read(tensor.name + ".nested_absmax", nested, CeilDiv(before + stored, tensor.nested_block))
            .repeat_interleave(tensor.nested_block)
            .narrow(0, before, stored);
    const Tensor map = read(tensor.name + ".nested_quant_map", 0, std::size(kDynamicMap));
    absmax = map.index_select(0, absmax.to(at::kInt)).mul_(scales).add_(tensor.offset);
  }
  if (ratio == 1) return absmax;
  return absmax.repeat_interleave(ratio).narrow(0, first - begin * ratio, count);
}

Tensor DequantizeNf4(const StoredTensor& tensor, int64_t first, int64_t count,
                     const ReadElements& read) {
  const int64_t begin = first / kNf4Block * kNf4Block, elements = first + count - begin;
  const Tensor codes = read(tensor.name, begin / 2, CeilDiv(elements, 2));
  const Tensor absmax =
      ReadAbsmax(tensor, begin / kNf4Block, CeilDiv(elements, kNf4Block), read).contiguous();
  Tensor weight = at::empty({elements}, codes.options().dtype(at::kFloat));
  ops::Nf4Dequantize(weight, codes, absmax);
  return weight.narrow(0, first - begin, count);
}

// Bytes are powers of two (E8M0).
Tensor AsFloat(const Tensor& scale) {
  const Tensor values = scale.to(at::kFloat);
  return scale.scalar_type() == at::kByte ? at::pow(2.0, values.sub(127.0)) : values;
}

Tensor DequantizeFp8(const StoredTensor& tensor, int64_t first, int64_t count,
                     const ReadElements& read) {
  const int64_t columns = Numel(tensor.shape) / tensor.shape.front();
  const int64_t first_row = first / columns, rows = CeilDiv(first + count, columns) - first_row;
  const Tensor weight =
      read(tensor.name, first_row * columns, rows * columns).to(at::kFloat).view({rows, columns});
  const int64_t across = CeilDiv(columns, tensor.scale_columns);
  const int64_t first_block = first_row / tensor.scale_rows;
  const int64_t blocks = CeilDiv(first_row + rows, tensor.scale_rows) - first_block;
  const Tensor scales =
      AsFloat(read(tensor.name + plan::kFp8Scales, first_block * across, blocks * across))
          .view({blocks, across});
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t from = std::max((first_block + block) * tensor.scale_rows, first_row);
    const int64_t until = std::min((first_block + block + 1) * tensor.scale_rows, first_row + rows);
    weight.narrow(0, from - first_row, until - from)
        .mul_(scales[block].repeat_interleave(tensor.scale_columns).narrow(0, 0, columns));
  }
  return weight.view({-1}).narrow(0, first - first_row * columns, count);
}

}  // namespace

StoredTensor FindStored(const ModelFiles& files, const ParamInfo& param, const std::string& name,
                        const plan::StoredWeights& stored) {
  if (!files.Contains(name)) {
    BadTensor(files, plan::NoSuchTensor(param.name),
              "download the model again, or correct config.json");
  }
  StoredTensor tensor;
  tensor.name = name;
  tensor.shape = param.shape;
  const TensorInfo& info = files.Info(name);
  if (stored.form == StoredForm::kNf4 && files.Contains(name + kNf4State)) {
    FindNf4(files, tensor);  // never transposed
    return tensor;
  }
  tensor.transposed = param.transposed;
  if (tensor.transposed) std::reverse(tensor.shape.begin(), tensor.shape.end());
  if (info.shape != tensor.shape) {
    throw UserError(
        files.File(name).path().string() + ": " + plan::OtherShape(name, info.shape, tensor.shape),
        "bad_model", "config.json and weights must be of one model");
  }
  if (stored.form == StoredForm::kFp8 && info.dtype == at::kFloat8_e4m3fn) {
    FindFp8(files, stored, tensor);
    return tensor;
  }
  const bool is_float = at::isFloatingType(info.dtype) && c10::elementSize(info.dtype) > 1;
  if (!is_float) {
    BadTensor(files, plan::OtherType(name, SafetensorsDtype(info.dtype)),
              "use the original weights: they are quantised when loaded");
  }
  return tensor;
}

namespace {

// A stack that the files hold in MXFP4.
void FindMxfp4(const ModelFiles& files, const ParamInfo& param, StoredTensor& tensor) {
  tensor.name = param.parts[0];
  for (const auto& [end, shape] : plan::Mxfp4Shapes(param.shape, param.experts)) {
    const std::string name = tensor.name + end;
    if (!files.Contains(name)) BadTensor(files, plan::NoSuchTensor(name));
    const TensorInfo& info = files.Info(name);
    if (info.shape != shape) BadTensor(files, plan::OtherShape(name, info.shape, shape));
    if (info.dtype != at::kByte) {
      BadTensor(files, plan::OtherType(name, SafetensorsDtype(info.dtype)));
    }
    tensor.beside.push_back(name);
  }
  tensor.form = StoredForm::kMxfp4;
}

// A stack that the files hold as one tensor, or its biases.
void FindStack(const ModelFiles& files, const ParamInfo& param, const plan::StoredWeights& stored,
               StoredTensor& tensor) {
  const std::string& name = param.parts[0];
  if (stored.form == StoredForm::kMxfp4 && files.Contains(name + plan::kMxfp4Blocks)) {
    FindMxfp4(files, param, tensor);
    return;
  }
  const ParamInfo whole{
      .name = name, .shape = plan::ShapeInFiles(param.shape, param.experts, 1, param.transposed)};
  StoredTensor found = FindStored(files, whole, name, {});
  tensor.beside.push_back(name);
  found.transposed = param.transposed;
  found.shape.erase(found.shape.begin());
  for (int64_t expert = 0; expert < param.experts; ++expert) {
    found.begin = expert * Numel(found.shape);
    tensor.parts.push_back(found);
  }
}

// True for a stack of which the files hold single experts' tensors instead of itself.
bool IsInSingles(const ModelFiles& files, const ParamInfo& param) {
  return !param.single_parts.empty() && !files.Contains(param.parts[0]) &&
         files.Contains(param.single_parts[0]);
}

}  // namespace

void NamePartsAsStored(const ModelFiles& files, ModelLayout& layout) {
  for (UnitInfo& unit : layout.units) {
    for (ParamInfo& param : unit.params) {
      if (!IsInSingles(files, param)) continue;
      param.parts = std::move(param.single_parts);
      param.single_parts.clear();
    }
  }
}

StoredTensor FindParts(const ModelFiles& files, const ParamInfo& param,
                       const plan::StoredWeights& stored) {
  StoredTensor tensor;
  tensor.name = param.name;
  tensor.shape = param.shape;
  const bool single = IsInSingles(files, param);
  if (param.parts.size() == 1 && !single) {
    FindStack(files, param, stored, tensor);
    return tensor;
  }
  const std::vector<std::string>& names = single ? param.single_parts : param.parts;
  ParamInfo part{.shape = param.shape};
  part.shape[0] /= static_cast<int64_t>(names.size());
  for (const std::string& name : names) {
    part.name = name;
    tensor.parts.push_back(FindStored(files, part, name, stored));
    const StoredTensor& found = tensor.parts.back();
    tensor.beside.push_back(name);
    tensor.beside.insert(tensor.beside.end(), found.beside.begin(), found.beside.end());
  }
  return tensor;
}

namespace {

// Elements of one part, turned as the parameter has it.
Tensor ReadTurned(const StoredTensor& part, int64_t first, int64_t count,
                  const ReadElements& read) {
  if (!part.transposed) return ReadStored(part, first, count, read);
  const Tensor whole = ReadStored(part, 0, Numel(part.shape), read);
  return whole.view(part.shape).t().reshape({-1}).narrow(0, first, count);
}

Tensor DequantizeMxfp4(const StoredTensor& tensor, int64_t first, int64_t count,
                       const ReadElements& read) {
  const int64_t block = first / kMxfp4Block, blocks = CeilDiv(first + count, kMxfp4Block) - block;
  const QuantizedPart bytes = ReadMxfp4(tensor, block * kMxfp4Block, blocks * kMxfp4Block, read);
  Tensor values = at::empty({blocks * kMxfp4Block}, bytes.planes[0].options().dtype(at::kFloat));
  ops::Mxfp4Dequantize(values, bytes.planes[0], bytes.planes[1]);
  return values.narrow(0, first - block * kMxfp4Block, count);
}

// Elements of a tensor in parts, which may begin and end within one.
Tensor ReadParts(const StoredTensor& tensor, int64_t first, int64_t count,
                 const ReadElements& read) {
  const int64_t of_part = Numel(tensor.parts[0].shape);
  if (count == 0) return ReadStored(tensor.parts[0], 0, 0, read);
  std::vector<Tensor> pieces;
  for (int64_t at = first; at < first + count;) {
    const int64_t within = at % of_part;
    const int64_t elements = std::min(of_part - within, first + count - at);
    pieces.push_back(ReadTurned(tensor.parts[at / of_part], within, elements, read));
    at += elements;
  }
  return pieces.size() == 1 ? pieces[0] : at::cat(pieces);
}

}  // namespace

Tensor ReadStored(const StoredTensor& tensor, int64_t first, int64_t count,
                  const ReadElements& read) {
  if (!tensor.parts.empty()) return ReadParts(tensor, first, count, read);
  if (count == 0 || tensor.form == StoredForm::kPlain) {
    // In MXFP4 no tensor has the weight's own name.
    const std::string& name =
        tensor.form == StoredForm::kMxfp4 ? tensor.beside.front() : tensor.name;
    const Tensor part = read(name, tensor.begin + (count == 0 ? 0 : first), count);
    const bool kept = part.scalar_type() == at::kFloat || part.scalar_type() == at::kBFloat16;
    return kept ? part : part.to(at::kFloat);
  }
  if (tensor.form == StoredForm::kMxfp4) return DequantizeMxfp4(tensor, first, count, read);
  return tensor.form == StoredForm::kNf4 ? DequantizeNf4(tensor, first, count, read)
                                         : DequantizeFp8(tensor, first, count, read);
}

QuantizedPart ReadMxfp4(const StoredTensor& tensor, int64_t first, int64_t count,
                        const ReadElements& read) {
  QuantizedPart part;
  if (count == 0) return part;
  part.planes.push_back(read(tensor.name + plan::kMxfp4Blocks, first / 2, CeilDiv(count, 2)));
  part.planes.push_back(
      read(tensor.name + plan::kMxfp4Scales, first / kMxfp4Block, CeilDiv(count, kMxfp4Block)));
  return part;
}

QuantizedPart ReadNf4(const StoredTensor& tensor, int64_t first, int64_t count, bool double_quant,
                      at::Device device, const ReadElements& read) {
  QuantizedPart part;
  if (double_quant) {
    part.constants = at::full({}, tensor.offset, at::TensorOptions(device).dtype(at::kFloat));
  }
  if (count == 0) return part;
  part.planes.push_back(read(tensor.name, first / 2, CeilDiv(count, 2)));
  const int64_t block = first / kNf4Block, blocks = CeilDiv(count, kNf4Block);
  if (!double_quant) {
    part.planes.push_back(ReadAbsmax(tensor, block, blocks, read));
    return part;
  }
  part.planes.push_back(read(tensor.name + ".absmax", block, blocks));
  part.planes.push_back(
      read(tensor.name + ".nested_absmax", block / kNestedBlock, CeilDiv(blocks, kNestedBlock)));
  return part;
}

}  // namespace sft::engine
