#include "worker/engine/export/merge.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>

#include <utility>
#include <vector>

#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/checkpoint/model_writer.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/model/adapters.h"
#include "worker/engine/model/config.h"
#include "worker/engine/model/families.h"
#include "worker/engine/train/base_weights.h"
#include "worker/engine/train/other_parts.h"

namespace sft::engine {
namespace {

using at::Tensor;

double Rms(const Tensor& values) { return at::linalg_vector_norm(values.flatten()).item<double>(); }

class Merger {
 public:
  explicit Merger(const MergeOptions& options)
      : options_(options),
        config_(ReadConfig(options.model_dir)),
        layout_(MakeLayout(config_)),
        base_(options.model_dir, layout_, at::kCPU),
        adapter_(ReadAdapter(options.adapter_dir, config_.prefix)),
        alone_(MakeLocalCommunicator(at::kCPU)) {
    NamePartsAsStored(base_.files(), layout_);
    ModelLayout adapted = layout_;
    values_ = AddAdapter(adapted, adapter_);
    for (const LoraPair& pair : adapter_.pairs) {
      if (layout_.IsOtherPart(pair.module)) {
        throw UserError("the adapter changes " + pair.module +
                            ", which is not of the part of the model that is merged",
                        "bad_adapter", "merge it with PEFT, or use it as an adapter");
      }
      pairs_.emplace(pair.module + ".weight", &pair);
    }
  }

  MergeReport Run() {
    const std::vector<StoredTensor> others = OtherParts(base_.files(), layout_);
    ModelWriterOptions writing;
    writing.target = options_.target;
    writing.source = options_.model_dir;
    writing.metadata = options_.metadata;
    if (std::filesystem::exists(options_.adapter_dir / "tokenizer.json")) {
      writing.tokenizer = options_.adapter_dir;
    }
    ModelWriter writer(std::move(writing),
                       TensorsToWrite(layout_, base_.files(), others, options_.type));
    for (const UnitInfo& unit : layout_.units) {
      for (const ParamInfo& param : unit.params) {
        if (options_.on_tensor) options_.on_tensor();
        const Tensor weight = Weight(param);
        WriteParam(param, weight, writer);
        base_.Done(param);
      }
    }
    for (const StoredTensor& part : others) {
      if (options_.on_tensor) options_.on_tensor();
      writer.Write(part.name, ReadPart(part, base_.files()));
    }
    writer.Commit();
    if (report_.modules > 0) report_.mean_rounding /= static_cast<double>(report_.modules);
    return report_;
  }

 private:
  Tensor Weight(const ParamInfo& param) {
    const auto own = values_.find(param.name);
    if (own != values_.end()) return own->second.view(param.shape);
    Tensor weight = base_.Read(param, 0, param.numel()).view(param.shape);
    // The job kept what the files hold in MXFP4 as it is.
    if (options_.quantized != nullptr && param.role == ParamRole::kLinear &&
        !base_.HoldsMxfp4(param)) {
      weight = AfterQuantizing(*options_.quantized, weight, *alone_);
    }
    const auto pair = pairs_.find(param.name);
    return pair == pairs_.end() ? weight : Merge(*pair->second, weight.to(at::kFloat));
  }

  Tensor Merge(const LoraPair& pair, const Tensor& base) {
    const int64_t each = std::max<int64_t>(pair.experts, 1);
    const auto by_expert = [&](const Tensor& factor) {
      return factor.to(at::kFloat).view({each, factor.size(0) / each, factor.size(1)});
    };
    const Tensor delta =
        at::matmul(by_expert(pair.b), by_expert(pair.a)).view(base.sizes()) * pair.scale;
    Tensor merged = base + delta;
    if (pair.magnitude.defined()) {
      const Tensor norms = at::linalg_vector_norm(merged, 2, {1}, /*keepdim=*/true);
      merged = merged * (pair.magnitude.to(at::kFloat).unsqueeze(1) / norms);
    }
    Note(pair.module, base, merged);
    return merged;
  }

  void Note(const std::string& module, const Tensor& base, const Tensor& merged) {
    ++report_.modules;
    const double added = Rms(merged - base);
    if (added == 0) return;
    const double rounding = Rms(merged.to(options_.type).to(at::kFloat) - merged) / added;
    report_.mean_rounding += rounding;
    if (rounding <= report_.largest_rounding) return;
    report_.largest_rounding = rounding;
    report_.largest_module = module;
  }

  const MergeOptions& options_;
  const ModelConfig config_;
  ModelLayout layout_;
  const BaseWeights base_;
  const Adapter adapter_;
  const std::unique_ptr<Communicator> alone_;
  std::map<std::string, Tensor> values_;
  std::map<std::string, const LoraPair*, std::less<>> pairs_;
  MergeReport report_;
};

}  // namespace

MergeReport MergeAdapter(const MergeOptions& options) {
  const at::NoGradGuard no_grad;
  return Merger(options).Run();
}

}  // namespace sft::engine
