#include <fmt/format.h>

#include "common/spec/draft.h"
#include "common/spec/hold_out.h"
#include "common/spec/module_patterns.h"

// Method, precision, validation and saving: groups of switches that must agree.

namespace sft::spec {
namespace {

constexpr std::string_view kMode = "training.mode", kQlora = "training.use_qlora",
                           kMatmul = "training.matmul", kKind = "hyperparameters.train_kind",
                           kBits = "quantization.bits", kIn4Bit = "model.load_in_4bit",
                           kIn8Bit = "model.load_in_8bit",
                           kBf16 = "hyperparameters.parallelism.bf16",
                           kFp16 = "hyperparameters.parallelism.fp16", kDtype = "model.torch_dtype",
                           kEnabled = "training.validation.enabled",
                           kEvaluation = "training.validation.evaluation_strategy",
                           kVal = "data.val", kValSplit = "data.val_split",
                           kSaveBest = "training.validation.save_best_model_at_end",
                           kPatience = "training.validation.early_stopping_patience",
                           kGreater = "training.validation.greater_is_better",
                           kMetric = "training.validation.metric_for_best_model",
                           kGenerates = "training.validation.predict_with_generate",
                           kLossTokens = "data.loss_on",
                           kGenerateMetrics = "training.validation.generate_metrics",
                           kGeneratePattern = "training.validation.generate_pattern",
                           kLossMetric = "val.loss", kSave = "checkpoint.save_strategy",
                           kSaveSteps = "checkpoint.save_steps",
                           kSaveMinutes = "checkpoint.save_minutes";

// Other spellings of kBits.
constexpr struct {
  std::string_view key;
  int64_t bits;
} kLoads[] = {{kIn4Bit, 4}, {kIn8Bit, 8}};

// True when a switch is given and asks for a quantised base.
bool Quantizes(const Draft& draft, std::string_view key) {
  if (!draft.Has(key)) return false;
  return key == kBits ? draft.Int(key) != 0 : draft.Bool(key);
}

// An overridden switch also removes what the file says about the method in other keys.
void DragMethodAlong(Draft* draft) {
  const bool mode = draft->Overridden(kMode), qlora = draft->Overridden(kQlora),
             kind = draft->Overridden(kKind);
  const bool full =
      (mode && draft->String(kMode) == "full_finetune") || (kind && draft->String(kKind) == "fft");
  bool bits = false, quantizes = qlora && draft->Bool(kQlora);
  for (const std::string_view key : {kBits, kIn4Bit, kIn8Bit}) {
    if (!draft->Overridden(key)) continue;
    bits = true;
    quantizes |= Quantizes(*draft, key);
  }
  const bool adapters = (mode && draft->String(kMode) != "full_finetune") ||
                        (kind && draft->String(kKind) == "peft") || quantizes;
  if (mode || adapters) draft->DropFromFile(kKind);
  if (kind || quantizes) draft->DropFromFile(kMode);
  const bool qlora_mode = mode && draft->String(kMode) == "qlora";
  if (full || bits || qlora_mode) draft->DropFromFile(kQlora);
  const bool off = full || (qlora && !draft->Bool(kQlora));
  for (const std::string_view key : {kBits, kIn4Bit, kIn8Bit}) {
    // The file's bits stay valid when use_qlora is turned on.
    const bool stays = !bits && Quantizes(*draft, key);
    if (off || bits || ((quantizes || qlora_mode) && !stays)) draft->DropFromFile(key);
  }
}

void CheckBits(Draft* draft) {
  const int64_t bits = draft->Int(kBits);
  if (bits != 0 && bits != 4 && bits != 8) {
    draft->AddProblem(kBits,
                      fmt::format("must be 4, 8, or 0 for an unquantised base, but is {}", bits));
  }
}

// Takes the bits from load_in_4bit and load_in_8bit where they are true and nothing else gives
// them.
void TakeLoads(Draft* draft) {
  for (const auto& load : kLoads) {
    if (draft->Bool(load.key) && !draft->Has(kBits)) draft->Derive(kBits, load.bits, load.key);
  }
}

// The key that gives the bits, for messages.
std::string_view BitsKey(const Draft& draft) {
  if (draft.Given(kBits)) return kBits;
  for (const auto& load : kLoads) {
    if (draft.Bool(load.key)) return load.key;
  }
  return kQlora;
}

// Checks that use_qlora, quantization.bits and load_in_* agree about the base.
void ResolveBits(Draft* draft) {
  const bool qlora = draft->Bool(kQlora);
  if (!draft->Has(kBits)) draft->Derive(kBits, int64_t{qlora ? 4 : 0}, kQlora);
  const int64_t bits = draft->Int(kBits);
  if ((bits != 0) != qlora) {
    const std::string_view key = BitsKey(*draft);
    draft->AddProblem(
        key, key == kBits
                 ? fmt::format("{} contradicts {}; bits = {} would agree", draft->Quote(kBits),
                               draft->Quote(kQlora), qlora ? "4 or 8" : "0")
                 : fmt::format("{} contradicts {}; use_qlora = true would agree", draft->Quote(key),
                               draft->Quote(kQlora)));
  }
  for (const auto& load : kLoads) {
    if (!draft->Given(load.key) || draft->Bool(load.key) == (bits == load.bits)) continue;
    const std::string_view other = BitsKey(*draft);
    draft->AddProblem(
        load.key, fmt::format("{} contradicts {}; leave one of them out", draft->Quote(load.key),
                              draft->Quote(other == load.key ? kBits : other)));
  }
}

bool IsFp8(const Draft& draft) { return draft.Has(kMatmul) && draft.String(kMatmul) != "bf16"; }

// FP8 products are with frozen weights in 4 or 16 bits, or with all that full fine-tuning trains.
void CheckProducts(bool full, Draft* draft) {
  if (!IsFp8(*draft) || full) return;
  if (draft->String(kMatmul) != "fp8") {
    draft->AddProblem(kMatmul,
                      fmt::format("{} is about gradients of weights, and {} trains none; set "
                                  "matmul = \"fp8\", or mode = \"full_finetune\"",
                                  draft->Quote(kMatmul), draft->Quote(kMode)));
    return;
  }
  if (draft->Int(kBits) != 8) return;
  draft->AddProblem(
      kMatmul, fmt::format("{} beside adapters multiplies frozen weights in 4 or 16 bits, and {} "
                           "has none; set quantization.bits = 4, use_qlora = false, or matmul = "
                           "\"bf16\"",
                           draft->Quote(kMatmul), draft->Quote(BitsKey(*draft))));
}

// Training that goes on from an adapter trains adapters.
void CheckStart(bool full, Draft* draft) {
  constexpr std::string_view kStart = "job.adapter";
  const bool trains = !draft->Has("job.kind") || draft->String("job.kind") == kTrainingKind;
  if (!full || !trains || draft->Faulty({kStart}) || !draft->Has(kStart) ||
      draft->String(kStart).empty()) {
    return;
  }
  draft->AddProblem(kStart,
                    fmt::format("{} has no adapters: merge it first (sftctl export JOB --merged) "
                                "and set job.model to the result, or set mode = \"lora\"",
                                draft->Quote(kMode)));
}

void CheckDora(Draft* draft) {
  constexpr std::string_view kDora = "lora.use_dora";
  if (draft->Faulty({kDora}) || !draft->Bool(kDora) || !IsFp8(*draft)) return;
  draft->AddProblem(kMatmul,
                    fmt::format("{} contradicts {}: the norms of W + s B A are of weights in bf16; "
                                "matmul = \"bf16\" would agree",
                                draft->Quote(kMatmul), draft->Quote(kDora)));
}

// An override of one of the keys that name the compute type removes the file's others.
void DragPrecisionAlong(Draft* draft) {
  const bool bf16 = draft->Overridden(kBf16), fp16 = draft->Overridden(kFp16) && draft->Bool(kFp16),
             dtype = draft->Overridden(kDtype) && draft->String(kDtype) != "auto";
  if (fp16 || dtype) draft->DropFromFile(kBf16);
  if (bf16 || dtype) draft->DropFromFile(kFp16);
  if (bf16 || fp16) draft->DropFromFile(kDtype);
}

// float16, which `key` asks for, leaves the type to the device: bf16 on a GPU, fp32 on a CPU.
// Beside it, bf16 = false means as in other tools that bf16 was not asked for, not fp32.
void TakeFp16(std::string_view key, Draft* draft) {
  if (draft->Bool(kBf16)) {
    draft->AddProblem(key, fmt::format("{} contradicts {}; leave one of them out",
                                       draft->Quote(key), draft->Quote(kBf16)));
    return;
  }
  const bool on_cpu = draft->String("compute.gpu_type") == "CPU";
  if (!draft->DropFromFile(kBf16)) draft->Derive(kBf16, !on_cpu, key);
  draft->AddWarning(key, fmt::format("{} is taken as {}", draft->Quote(key),
                                     on_cpu ? "fp32, in which CPU slots compute"
                                            : "bf16 = true: bfloat16 is as fast, has the range of "
                                              "fp32 and needs no loss scaling"));
}

}  // namespace

void ResolveMethod(Draft* draft) {
  DragMethodAlong(draft);
  if (draft->Has(kBits)) CheckBits(draft);
  if (draft->Faulty({kMode, kQlora, kKind, kBits, kIn4Bit, kIn8Bit})) return;
  TakeLoads(draft);
  const bool qlora_mode = draft->String(kMode) == "qlora";
  if (qlora_mode) {
    if (draft->Given(kQlora) && !draft->Bool(kQlora)) {
      draft->AddProblem(kQlora,
                        fmt::format("{} contradicts mode = \"qlora\"; leave one of them out",
                                    draft->Quote(kQlora)));
      return;
    }
    if (!draft->Has(kQlora)) draft->Derive(kQlora, true, "training.mode = qlora");
    draft->Derive(kMode, std::string("lora"), "qlora is lora over a quantised base");
  }
  if (!draft->Has(kMode)) {
    const bool full = draft->String(kKind) == "fft";
    draft->Derive(kMode, std::string(full ? "full_finetune" : "lora"),
                  full ? "hyperparameters.train_kind" : "the default");
  }
  const bool full = draft->String(kMode) == "full_finetune";
  if (!draft->Has(kQlora)) {
    draft->Derive(kQlora, draft->Int(kBits) != 0,
                  draft->Has(kBits) ? BitsKey(*draft) : "the default");
  }
  if (full && draft->Bool(kQlora)) {
    draft->AddProblem(
        draft->Given(kQlora) ? kQlora : BitsKey(*draft),
        fmt::format("{} trains every weight, so the base cannot be quantised; use_qlora = "
                    "false, or mode = \"lora\"",
                    draft->Quote(kMode)));
  }
  const std::string kind = full ? "fft" : "peft";
  if (!draft->Has(kKind)) draft->Derive(kKind, kind, kMode);
  if (draft->String(kKind) != kind) {
    draft->AddProblem(kKind, fmt::format("{} contradicts {}; train_kind = \"{}\" would agree",
                                         draft->Quote(kKind), draft->Quote(kMode), kind));
  }
  ResolveBits(draft);
  CheckProducts(full, draft);
  CheckDora(draft);
  CheckLoraPatterns(draft);
  CheckStart(full, draft);
}

void ResolvePrecision(Draft* draft) {
  DragPrecisionAlong(draft);
  if (draft->Faulty({kBf16, kFp16, kDtype})) return;
  const std::string dtype = draft->String(kDtype);
  if (draft->Bool(kFp16) && !dtype.empty() && dtype != "auto" && dtype != "float16") {
    draft->AddProblem(kDtype, fmt::format("{} contradicts {}; leave one of them out",
                                          draft->Quote(kDtype), draft->Quote(kFp16)));
    return;
  }
  if (draft->Bool(kFp16) || dtype == "float16") {
    TakeFp16(draft->Bool(kFp16) ? kFp16 : kDtype, draft);
  } else if (!dtype.empty() && dtype != "auto") {
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

std::string MetricOf(const Draft& draft) {
  return draft.Has(kMetric) ? draft.String(kMetric) : std::string(kLossMetric);
}

// Whether every validation has the metric, without answers; the least of it is the best.
bool FollowsFromLoss(std::string_view metric) {
  return metric == kLossMetric || metric == "val.perplexity" || metric == "val.bits_per_byte";
}

// Why a job's ranks have no rows answered (worker/rank/validation_answers.h); empty: they have.
std::string WhyNoAnswers(const Draft& draft) {
  constexpr std::string_view kOffload = "hyperparameters.parallelism.offload_param";
  const Sharding sharding = ShardingOf(draft);
  const bool several = draft.Has(kGpuCountKey) && draft.Int(kGpuCountKey) > 1;
  if (several && (sharding == Sharding::kFullShard || sharding == Sharding::kHybridShard)) {
    return "the weights are cut over the ranks";
  }
  if (draft.Bool(kOffload)) return "the weights stay in host memory";
  if (IsFp8(draft)) return "weights are multiplied in FP8";
  return "";
}

// Which metrics validation has, and the direction of the one that is compared.
void ResolveMetrics(Draft* draft) {
  if (draft->Faulty({kMetric, kGenerates})) return;
  const std::string metric = MetricOf(*draft);
  const bool is_loss = FollowsFromLoss(metric);
  if (!draft->Has(kGreater)) draft->Derive(kGreater, !is_loss, kMetric);
  const bool generates = draft->Bool(kGenerates);
  if (generates && draft->Bool(kEnabled)) CheckGraders(draft, {kGenerateMetrics, kGeneratePattern});
  if (generates && !draft->Bool(kEnabled)) {
    draft->AddProblem(kGenerates,
                      "answers validation rows, of which this job has none: name them "
                      "in data.val, or hold some out with data.val_split");
  }
  if (generates && draft->Has(kLossTokens) && draft->String(kLossTokens) == "all") {
    draft->AddProblem(kGenerates, fmt::format("needs {} = \"assistant\": where all tokens of a row "
                                              "carry loss, none are the question",
                                              kLossTokens));
  }
  const std::string why = generates ? WhyNoAnswers(*draft) : "";
  if (!why.empty() && is_loss) {
    draft->AddWarning(kGenerates, why + ": validation has its loss alone, no rows are answered");
  }
  constexpr std::string_view kLoss = "training.loss";
  const bool prefers = draft->Has(kLoss) && draft->String(kLoss) != "sft";
  if (is_loss && metric != kLossMetric && prefers) {
    return draft->AddProblem(kMetric,
                             fmt::format("{}: the loss of {} is none of a token; use val.loss",
                                         draft->Quote(kMetric), draft->Quote(kLoss)));
  }
  if (is_loss || draft->Faulty({kGenerateMetrics})) return;
  if (!why.empty()) {
    return draft->AddProblem(kMetric, fmt::format("{}: {}, so no rows are answered and only "
                                                  "val.loss is measured",
                                                  draft->Quote(kMetric), why));
  }
  if (!generates) {
    return draft->AddProblem(kMetric, fmt::format("{}: answers are graded only with {} = true",
                                                  draft->Quote(kMetric), kGenerates));
  }
  const std::string name = metric.substr(metric.find('.') + 1);
  const auto metrics = draft->Has(kGenerateMetrics)
                           ? ListOf(*draft, kGenerateMetrics)
                           : JobSpec().training.validation.generate_metrics;
  if (std::find(metrics.begin(), metrics.end(), name) == metrics.end()) {
    draft->AddProblem(kMetric, fmt::format("{}: add \"{}\" to {}", draft->Quote(kMetric), name,
                                           kGenerateMetrics));
  }
}

// Keys that compare validations need validations.
void CheckComparison(Draft* draft) {
  const bool compares =
      draft->Bool(kSaveBest) || (draft->Has(kPatience) && draft->Int(kPatience) > 0);
  if (!compares) return;
  if (!draft->Bool(kEnabled)) {
    draft->AddProblem(draft->Bool(kSaveBest) ? kSaveBest : kPatience,
                      "compares validations, of which this job has none: name rows in data.val, or "
                      "with --val, or hold some out with data.val_split");
    return;
  }
  const std::string metric = MetricOf(*draft);
  if (draft->Bool(kGreater) == FollowsFromLoss(metric)) {
    draft->AddWarning(kGreater, fmt::format("takes the {} {}, the worst one, for the best",
                                            draft->Bool(kGreater) ? "greatest" : "least", metric));
  }
}

void ResolveValidation(Draft* draft) {
  const bool file = !draft->String(kVal).empty();
  const absl::StatusOr<HoldOut> held = ParseHoldOut(draft->String(kValSplit));
  const bool split = held.ok() && held->on(), rows = file || split;
  if (file && split) {
    draft->AddProblem(kValSplit,
                      "data.val names the validation rows already; leave one of the two out");
    return;
  }
  if (draft->Overridden(kVal) && rows && !draft->Overridden(kEnabled)) {
    // Validation rows named at submit turn validation on.
    draft->DropFromFile(kEnabled);
  }
  if (draft->Faulty({kEnabled, kEvaluation, kVal})) return;
  if (!draft->Has(kEnabled)) {
    const bool scheduled = !draft->Has(kEvaluation) || draft->String(kEvaluation) != "no";
    draft->Derive(kEnabled, rows && scheduled, file ? kVal : split ? kValSplit : "no data.val");
  }
  if (draft->Bool(kEnabled) && !rows) {
    draft->AddProblem(kEnabled,
                      "validation needs rows: name them in data.val, or with --val, or hold a part "
                      "of job.data out with data.val_split");
    return;
  }
  ResolveMetrics(draft);
  CheckComparison(draft);
}

void ResolveSaving(Draft* draft) {
  const bool overridden = draft->Overridden(kSave);
  if (overridden || draft->Overridden(kSaveMinutes)) draft->DropFromFile(kSaveSteps);
  if (overridden || draft->Overridden(kSaveSteps)) draft->DropFromFile(kSaveMinutes);
  // An interval given outside the file is meant to be used, whatever the file says of saving.
  if (draft->Overridden(kSaveSteps) != draft->Overridden(kSaveMinutes)) draft->DropFromFile(kSave);
  if (draft->Faulty({kSave, kSaveSteps, kSaveMinutes})) return;
  const bool steps = draft->Given(kSaveSteps), minutes = draft->Given(kSaveMinutes);
  if (!draft->Has(kSave) && steps && minutes) {
    draft->AddProblem(kSaveSteps,
                      fmt::format("{} and {} are two intervals; keep one, or say with "
                                  "save_strategy = \"steps\" or \"time\" which is meant",
                                  draft->Quote(kSaveSteps), draft->Quote(kSaveMinutes)));
    return;
  }
  const std::string_view interval = steps ? kSaveSteps : minutes ? kSaveMinutes : "";
  const std::string strategy = steps ? "steps" : "time";
  if (!draft->Has(kSave)) {
    draft->Derive(kSave, strategy, interval.empty() ? "the default" : interval);
    return;
  }
  const std::string said = draft->String(kSave);
  const bool other =
      (said == "steps" && minutes && !steps) || (said == "time" && steps && !minutes);
  if (!other) return;
  draft->AddProblem(interval, fmt::format("{} contradicts {}; save_strategy = \"{}\" would agree",
                                          draft->Quote(interval), draft->Quote(kSave), strategy));
}

}  // namespace sft::spec
