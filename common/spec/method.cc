#include <fmt/format.h>

#include "common/spec/draft.h"

// Method, precision and validation: several switches that must say one thing.

namespace sft::spec {
namespace {

constexpr std::string_view kMode = "training.mode", kQlora = "training.use_qlora",
                           kMatmul = "training.matmul", kKind = "hyperparameters.train_kind",
                           kBits = "quantization.bits", kBf16 = "hyperparameters.parallelism.bf16",
                           kFp16 = "hyperparameters.parallelism.fp16", kDtype = "model.torch_dtype",
                           kEnabled = "training.validation.enabled",
                           kEvaluation = "training.validation.evaluation_strategy",
                           kVal = "data.val";

// An overridden switch takes with it what the file says in other words.
void DragMethodAlong(Draft* draft) {
  const bool mode = draft->Overridden(kMode), qlora = draft->Overridden(kQlora),
             kind = draft->Overridden(kKind), bits = draft->Overridden(kBits);
  const bool full =
      (mode && draft->String(kMode) == "full_finetune") || (kind && draft->String(kKind) == "fft");
  const bool adapters = (mode && draft->String(kMode) != "full_finetune") ||
                        (kind && draft->String(kKind) == "peft") || (qlora && draft->Bool(kQlora));
  if (mode || adapters) draft->DropFromFile(kKind);
  if (kind || (qlora && draft->Bool(kQlora))) draft->DropFromFile(kMode);
  if (full || bits || (mode && draft->String(kMode) == "qlora")) draft->DropFromFile(kQlora);
  if (full || qlora || mode) draft->DropFromFile(kBits);
}

void CheckBits(Draft* draft) {
  const int64_t bits = draft->Int(kBits);
  if (bits == 8) {
    draft->AddProblem(kBits, "not supported yet: 8-bit base weights; use 4 (nf4), or 0 for none");
  } else if (bits != 0 && bits != 4) {
    draft->AddProblem(kBits,
                      fmt::format("must be 4, or 0 for an unquantised base, but is {}", bits));
  }
}

}  // namespace

void ResolveMethod(Draft* draft) {
  DragMethodAlong(draft);
  if (draft->Has(kBits)) CheckBits(draft);
  if (draft->Faulty({kMode, kQlora, kKind, kBits})) return;
  const bool qlora_mode = draft->String(kMode) == "qlora";
  if (qlora_mode) {
    if (draft->Given(kQlora) && !draft->Bool(kQlora)) {
      draft->AddProblem(kQlora,
                        fmt::format("{} contradicts mode = \"qlora\"; leave one of them out",
                                    draft->Quote(kQlora)));
      return;
    }
    if (!draft->Has(kQlora)) draft->Derive(kQlora, true, "training.mode = qlora");
    draft->Derive(kMode, std::string("lora"), "qlora is lora over a 4-bit base");
  }
  if (!draft->Has(kMode)) {
    const bool full = draft->String(kKind) == "fft";
    draft->Derive(kMode, std::string(full ? "full_finetune" : "lora"),
                  full ? "hyperparameters.train_kind" : "the default");
  }
  const bool full = draft->String(kMode) == "full_finetune";
  if (!draft->Has(kQlora)) {
    draft->Derive(kQlora, draft->Int(kBits) == 4,
                  draft->Has(kBits) ? "quantization.bits" : "the default");
  }
  if (full && draft->Bool(kQlora)) {
    draft->AddProblem(
        draft->Given(kQlora) ? kQlora : kBits,
        fmt::format("{} trains every weight, so the base cannot be quantised; use_qlora = "
                    "false, or mode = \"lora\"",
                    draft->Quote(kMode)));
  }
  if (draft->String(kMatmul) == "fp8" && !draft->Bool(kQlora)) {
    draft->AddProblem(kMatmul, fmt::format("{} multiplies frozen 4-bit weights, and {} has none; "
                                           "set use_qlora = true, or matmul = \"bf16\"",
                                           draft->Quote(kMatmul), draft->Quote(kMode)));
  }
  const std::string kind = full ? "fft" : "peft";
  if (!draft->Has(kKind)) draft->Derive(kKind, kind, kMode);
  if (draft->String(kKind) != kind) {
    draft->AddProblem(kKind, fmt::format("{} contradicts {}; train_kind = \"{}\" would agree",
                                         draft->Quote(kKind), draft->Quote(kMode), kind));
  }
  const int64_t bits = draft->Bool(kQlora) ? 4 : 0;
  if (!draft->Has(kBits)) draft->Derive(kBits, bits, kQlora);
  if (draft->Int(kBits) != bits) {
    draft->AddProblem(kBits, fmt::format("{} contradicts {}; bits = {} would agree",
                                         draft->Quote(kBits), draft->Quote(kQlora), bits));
  }
}

void ResolvePrecision(Draft* draft) {
  if (draft->Overridden(kDtype) && draft->String(kDtype) != "auto") draft->DropFromFile(kBf16);
  if (draft->Overridden(kBf16)) draft->DropFromFile(kDtype);
  if (draft->Faulty({kBf16, kFp16, kDtype})) return;
  const std::string dtype = draft->String(kDtype);
  if (dtype == "float16") {
    draft->AddProblem(kDtype, "not supported yet: fp16; use bfloat16, which needs no loss scaling");
    return;
  }
  if (!dtype.empty() && dtype != "auto") {
    const bool bf16 = dtype == "bfloat16";
    if (!draft->Has(kBf16)) draft->Derive(kBf16, bf16, kDtype);
    if (draft->Bool(kBf16) != bf16) {
      draft->AddProblem(kDtype, fmt::format("{} contradicts {}; leave one of them out",
                                            draft->Quote(kDtype), draft->Quote(kBf16)));
    }
  }
  const std::string backend = draft->String("train.distributed_backend");
  const std::string type = draft->String("compute.gpu_type");
  const std::string wanted = type == "CPU" ? "gloo" : "nccl";
  if (!backend.empty() && !type.empty() && backend != wanted) {
    draft->AddProblem("train.distributed_backend",
                      fmt::format("{} does not serve {}; {} does, and is chosen by itself",
                                  draft->Quote("train.distributed_backend"),
                                  draft->Quote("compute.gpu_type"), wanted));
  }
}

void ResolveValidation(Draft* draft) {
  const bool rows = !draft->String(kVal).empty();
  if (draft->Overridden(kVal) && rows && !draft->Overridden(kEnabled)) {
    // Rows named at submit are meant to be used.
    draft->DropFromFile(kEnabled);
  }
  if (draft->Faulty({kEnabled, kEvaluation, kVal})) return;
  if (!draft->Has(kEnabled)) {
    const bool scheduled = !draft->Has(kEvaluation) || draft->String(kEvaluation) != "no";
    draft->Derive(kEnabled, rows && scheduled, rows ? kVal : "no data.val");
  }
  if (draft->Bool(kEnabled) && !rows) {
    draft->AddProblem(kEnabled,
                      "validation needs rows: name them in data.val, or with --val; a part "
                      "held out of job.data is not supported yet");
  }
}

}  // namespace sft::spec
