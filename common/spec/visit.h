#pragma once

#include <array>
#include <string_view>
#include <utility>

#include "common/spec/job_spec.h"

// Maps the members of a JobSpec to the job file's keys, in one place: JSON, binding and tests use
// it.

namespace sft::spec {

template <typename E>
struct EnumNames;

#define SFT_SPEC_ENUM(Enum, ...)                                                 \
  template <>                                                                    \
  struct EnumNames<Enum> {                                                       \
    static constexpr std::pair<std::string_view, Enum> kNames[] = {__VA_ARGS__}; \
  }

SFT_SPEC_ENUM(Mode, {"lora", Mode::kLora}, {"full_finetune", Mode::kFullFinetune});
SFT_SPEC_ENUM(Matmul, {"bf16", Matmul::kBf16}, {"fp8", Matmul::kFp8},
              {"fp8_bf16_wgrad", Matmul::kFp8Bf16Wgrad});
SFT_SPEC_ENUM(Loss, {"sft", Loss::kSft}, {"dpo", Loss::kDpo}, {"orpo", Loss::kOrpo},
              {"simpo", Loss::kSimPo}, {"kto", Loss::kKto});
SFT_SPEC_ENUM(DpoLoss, {"sigmoid", DpoLoss::kSigmoid}, {"robust", DpoLoss::kRobust},
              {"hinge", DpoLoss::kHinge}, {"ipo", DpoLoss::kIpo},
              {"sigmoid_norm", DpoLoss::kSigmoidNorm});
SFT_SPEC_ENUM(Optimizer, {"adamw", Optimizer::kAdamW}, {"adamw_bf16", Optimizer::kAdamWBf16},
              {"adamw_8bit", Optimizer::kAdamW8bit}, {"auto", Optimizer::kAuto});
SFT_SPEC_ENUM(MasterWeights, {"auto", MasterWeights::kAuto}, {"fp32", MasterWeights::kFp32},
              {"bf16", MasterWeights::kBf16});
SFT_SPEC_ENUM(LrScheduler, {"constant", LrScheduler::kConstant}, {"linear", LrScheduler::kLinear},
              {"cosine", LrScheduler::kCosine},
              {"cosine_with_restarts", LrScheduler::kCosineWithRestarts},
              {"polynomial", LrScheduler::kPolynomial}, {"inverse_sqrt", LrScheduler::kInverseSqrt},
              {"cosine_with_min_lr", LrScheduler::kCosineWithMinLr},
              {"warmup_stable_decay", LrScheduler::kWarmupStableDecay});
SFT_SPEC_ENUM(LrDecay, {"cosine", LrDecay::kCosine}, {"linear", LrDecay::kLinear},
              {"1-sqrt", LrDecay::kOneMinusSqrt});
SFT_SPEC_ENUM(LossOn, {"assistant", LossOn::kAssistant}, {"all", LossOn::kAll});
SFT_SPEC_ENUM(Bias, {"none", Bias::kNone}, {"all", Bias::kAll}, {"lora_only", Bias::kLoraOnly});
SFT_SPEC_ENUM(LoraInit, {"true", LoraInit::kKaiming}, {"gaussian", LoraInit::kGaussian});
SFT_SPEC_ENUM(EvalStrategy, {"no", EvalStrategy::kNo}, {"steps", EvalStrategy::kSteps},
              {"epoch", EvalStrategy::kEpoch});
SFT_SPEC_ENUM(SaveStrategy, {"no", SaveStrategy::kNo}, {"steps", SaveStrategy::kSteps},
              {"epoch", SaveStrategy::kEpoch}, {"time", SaveStrategy::kTime});
SFT_SPEC_ENUM(Sharding, {"ddp", Sharding::kDdp}, {"zero1", Sharding::kZero1},
              {"zero2", Sharding::kZero2}, {"full_shard", Sharding::kFullShard},
              {"hybrid_shard", Sharding::kHybridShard});
SFT_SPEC_ENUM(ComputeType, {"auto", ComputeType::kAuto}, {"fp32", ComputeType::kFp32},
              {"bf16", ComputeType::kBf16});
SFT_SPEC_ENUM(OnUnreachable, {"replace", OnUnreachable::kReplace}, {"wait", OnUnreachable::kWait});
SFT_SPEC_ENUM(Priority, {"low", Priority::kLow}, {"normal", Priority::kNormal},
              {"high", Priority::kHigh}, {"urgent", Priority::kUrgent});
SFT_SPEC_ENUM(BadRows, {"error", BadRows::kError}, {"skip", BadRows::kSkip});
SFT_SPEC_ENUM(ExportForm, {"merged", ExportForm::kMerged}, {"gguf", ExportForm::kGguf},
              {"vllm", ExportForm::kVllm});
SFT_SPEC_ENUM(ExportType, {"bf16", ExportType::kBf16}, {"f32", ExportType::kF32},
              {"q8_0", ExportType::kQ8});
SFT_SPEC_ENUM(ExportBase, {"better", ExportBase::kBetter}, {"original", ExportBase::kOriginal},
              {"trained", ExportBase::kTrained});
SFT_SPEC_ENUM(TrainedOn, {"original", TrainedOn::kOriginal}, {"nf4", TrainedOn::kNf4},
              {"nf4_single", TrainedOn::kNf4Single}, {"int8", TrainedOn::kInt8});
SFT_SPEC_ENUM(EarlyStopping, {"false", EarlyStopping::kNo}, {"true", EarlyStopping::kYes},
              {"never", EarlyStopping::kNever});
SFT_SPEC_ENUM(Dedup, {"off", Dedup::kOff}, {"exact", Dedup::kExact}, {"prompt", Dedup::kPrompt});
SFT_SPEC_ENUM(AlpacaPrompt, {"template", AlpacaPrompt::kTemplate},
              {"stanford", AlpacaPrompt::kStanford});
SFT_SPEC_ENUM(TextDocuments, {"whole", TextDocuments::kWhole},
              {"blank_lines", TextDocuments::kBlankLines});
SFT_SPEC_ENUM(LongRows, {"error", LongRows::kError}, {"skip", LongRows::kSkip},
              {"truncate_right", LongRows::kTruncateRight},
              {"truncate_left", LongRows::kTruncateLeft},
              {"truncate_middle", LongRows::kTruncateMiddle}, {"split", LongRows::kSplit});
#undef SFT_SPEC_ENUM

template <typename E>
constexpr std::string_view EnumName(E value) {
  for (const auto& [name, entry] : EnumNames<E>::kNames) {
    if (entry == value) return name;
  }
  return "";
}

template <typename E>
constexpr bool ParseEnum(std::string_view text, E* value) {
  for (const auto& [name, entry] : EnumNames<E>::kNames) {
    if (name == text) return *value = entry, true;
  }
  return false;
}

template <typename Compute, typename Visit>
void VisitCompute(Compute& c, Visit&& visit) {
  visit("compute.gpu_type", c.gpu_type);
  visit("compute.gpu_count", c.gpu_count);
  visit("compute.nodes", c.nodes);
  visit("compute.gpus_per_node", c.gpus_per_node);
  visit("compute.variant", c.variant);
  visit("compute.memory_budget_gb", c.memory_budget_gb);
  visit("compute.hang_timeout", c.hang_timeout);
  visit("compute.nccl_debug", c.nccl_debug);
  visit("compute.network_interface", c.network_interface);
  visit("compute.preflight", c.preflight);
  visit("compute.cuda_launch_blocking", c.cuda_launch_blocking);
  visit("compute.max_restarts", c.max_restarts);
  visit("compute.max_unknown_restarts", c.max_unknown_restarts);
  visit("compute.on_unreachable", c.on_unreachable);
  visit("compute.unreachable_after", c.unreachable_after);
}

template <typename Scheduling, typename Visit>
void VisitScheduling(Scheduling& s, Visit&& visit) {
  visit("scheduling.priority", s.priority);
  visit("scheduling.after", s.after);
  visit("scheduling.hold", s.hold);
  visit("scheduling.time_limit", s.time_limit);
  visit("scheduling.warn_before", s.warn_before);
  visit("scheduling.deadline", s.deadline);
  visit("scheduling.exclusive", s.exclusive);
  visit("scheduling.preemptible", s.preemptible);
}

template <typename Data, typename Visit>
void VisitData(Data& d, Visit&& visit) {
  visit("data.mixture", d.mixture);
  visit("data.val", d.val);
  visit("data.val_split", d.val_split);
  visit("data.group_by", d.group_by);
  visit("data.dedup", d.dedup);
  visit("data.shuffle", d.shuffle);
  visit("data.packing", d.packing);
  visit("data.loss_on", d.loss_on);
  visit("data.chat_template", d.chat_template);
  visit("data.template_date", d.template_date);
  visit("data.template_arguments", d.template_arguments);
  visit("data.max_examples", d.max_examples);
  visit("data.on_bad_rows", d.on_bad_rows);
  visit("data.on_long_rows", d.on_long_rows);
  visit("data.split_overlap", d.split_overlap);
  visit("data.alpaca_prompt", d.alpaca_prompt);
  visit("data.text_documents", d.text_documents);
  visit("data.columns", d.columns);
  visit("data.roles", d.roles);
}

template <typename Generate, typename Visit>
void VisitGenerate(Generate& g, Visit&& visit) {
  visit("generate.max_new_tokens", g.max_new_tokens);
  visit("generate.num_samples", g.num_samples);
  visit("generate.temperature", g.temperature);
  visit("generate.top_k", g.top_k);
  visit("generate.top_p", g.top_p);
  visit("generate.min_p", g.min_p);
  visit("generate.repetition_penalty", g.repetition_penalty);
  visit("generate.frequency_penalty", g.frequency_penalty);
  visit("generate.presence_penalty", g.presence_penalty);
  visit("generate.no_repeat_ngram", g.no_repeat_ngram);
  visit("generate.min_new_tokens", g.min_new_tokens);
  visit("generate.num_beams", g.num_beams);
  visit("generate.length_penalty", g.length_penalty);
  visit("generate.early_stopping", g.early_stopping);
  visit("generate.stop", g.stop);
  visit("generate.seed", g.seed);
  visit("generate.batch", g.batch);
  visit("generate.nf4", g.nf4);
}

template <typename Export, typename Visit>
void VisitExport(Export& e, Visit&& visit) {
  visit("export.form", e.form);
  visit("export.type", e.type);
  visit("export.base", e.base);
  visit("export.trained_on", e.trained_on);
  visit("export.compare_tokens", e.compare_tokens);
}

template <typename Hyperparameters, typename Visit>
void VisitHyperparameters(Hyperparameters& h, Visit&& visit) {
  visit("hyperparameters.n_epochs", h.n_epochs);
  visit("hyperparameters.per_device_batch", h.per_device_batch);
  visit("hyperparameters.gradient_accumulation_steps", h.gradient_accumulation_steps);
  visit("hyperparameters.global_batch", h.global_batch);
  visit("hyperparameters.sequence_length", h.sequence_length);
  visit("hyperparameters.learning_rate", h.learning_rate);
  visit("hyperparameters.embedding_learning_rate", h.embedding_learning_rate);
  visit("hyperparameters.warmup_ratio", h.warmup_ratio);
  visit("hyperparameters.warmup_steps", h.lr_scheduler.warmup_steps);
  visit("hyperparameters.optimizer", h.optimizer);
  visit("hyperparameters.master_weights", h.master_weights);
  visit("hyperparameters.lr_scheduler", h.lr_scheduler.kind);
  visit("hyperparameters.lr_num_cycles", h.lr_scheduler.num_cycles);
  visit("hyperparameters.lr_power", h.lr_scheduler.power);
  visit("hyperparameters.lr_end", h.lr_scheduler.end);
  visit("hyperparameters.lr_min", h.lr_scheduler.min);
  visit("hyperparameters.lr_min_ratio", h.lr_scheduler.min_ratio);
  visit("hyperparameters.lr_decay_steps", h.lr_scheduler.decay_steps);
  visit("hyperparameters.lr_decay", h.lr_scheduler.decay);
  visit("hyperparameters.weight_decay", h.weight_decay);
  visit("hyperparameters.adam_beta1", h.adam_beta1);
  visit("hyperparameters.adam_beta2", h.adam_beta2);
  visit("hyperparameters.adam_epsilon", h.adam_epsilon);
  visit("hyperparameters.max_grad_norm", h.max_grad_norm);
  visit("hyperparameters.neftune_noise_alpha", h.neftune_noise_alpha);
  visit("hyperparameters.router_aux_loss_coef", h.router_aux_loss_coef);
  visit("hyperparameters.max_steps", h.max_steps);
  visit("hyperparameters.logging_steps", h.logging_steps);
  visit("hyperparameters.seed", h.seed);
}

// Calls visit(key, member) for each member in the order of the job file. `Spec` is JobSpec or const
// JobSpec. Two members are derived and have no key of their own in a job file:
// hyperparameters.parallelism.sharding and .compute_type.
template <typename Spec, typename Visit>
void VisitSpec(Spec& s, Visit&& visit) {
  visit("job.kind", s.job.kind);
  visit("job.name", s.job.name);
  visit("job.group", s.job.group);
  visit("job.model", s.job.model);
  visit("job.data", s.job.data);
  visit("job.adapter", s.job.adapter);
  visit("job.output_dir", s.job.output_dir);
  VisitCompute(s.compute, visit);
  VisitScheduling(s.scheduling, visit);
  visit("notify.mail", s.notify.mail);
  visit("notify.webhook", s.notify.webhook);
  visit("notify.events", s.notify.events);
  visit("training.mode", s.training.mode);
  visit("training.use_qlora", s.training.use_qlora);
  visit("training.matmul", s.training.matmul);
  visit("training.deterministic", s.training.deterministic);
  visit("training.loss", s.training.loss);
  auto& preference = s.training.preference;
  visit("training.preference.beta", preference.beta);
  visit("training.preference.dpo_loss", preference.dpo_loss);
  visit("training.preference.label_smoothing", preference.label_smoothing);
  visit("training.preference.sft_weight", preference.sft_weight);
  visit("training.preference.simpo_gamma", preference.simpo_gamma);
  visit("training.preference.kto_desirable_weight", preference.kto_desirable_weight);
  visit("training.preference.kto_undesirable_weight", preference.kto_undesirable_weight);
  auto& v = s.training.validation;
  visit("training.validation.enabled", v.enabled);
  visit("training.validation.evaluation_strategy", v.strategy);
  visit("training.validation.eval_steps", v.eval_steps);
  visit("training.validation.save_best_model_at_end", v.save_best_model_at_end);
  visit("training.validation.metric_for_best_model", v.metric_for_best_model);
  visit("training.validation.greater_is_better", v.greater_is_better);
  visit("training.validation.early_stopping_patience", v.early_stopping_patience);
  visit("training.validation.early_stopping_threshold", v.early_stopping_threshold);
  visit("training.validation.predict_with_generate", v.predict_with_generate);
  visit("training.validation.generate_metrics", v.generate_metrics);
  visit("training.validation.generate_pattern", v.generate_pattern);
  visit("training.validation.generate_every", v.generate_every);
  visit("training.validation.generate_rows", v.generate_rows);
  visit("training.validation.generate_max_new_tokens", v.generate_max_new_tokens);
  visit("training.validation.generate_num_beams", v.generate_num_beams);
  visit("training.validation.generate_seconds", v.generate_seconds);
  VisitHyperparameters(s.hyperparameters, visit);
  auto& p = s.parallelism;
  visit("hyperparameters.parallelism.sharding", p.sharding);
  visit("hyperparameters.parallelism.fsdp_use_orig_params", p.fsdp_use_orig_params);
  visit("hyperparameters.parallelism.tensor_parallel_size", p.tensor_parallel_size);
  visit("hyperparameters.parallelism.pipeline_parallel_size", p.pipeline_parallel_size);
  visit("hyperparameters.parallelism.context_parallel_size", p.context_parallel_size);
  visit("hyperparameters.parallelism.virtual_pipeline_parallel_size",
        p.virtual_pipeline_parallel_size);
  visit("hyperparameters.parallelism.device_map", p.device_map);
  visit("hyperparameters.parallelism.compute_type", p.compute_type);
  visit("hyperparameters.parallelism.activation_checkpointing", p.activation_checkpointing);
  visit("hyperparameters.parallelism.ddp_bucket_cap_mb", p.ddp_bucket_cap_mb);
  visit("hyperparameters.parallelism.offload_optimizer", p.offload_optimizer);
  visit("hyperparameters.parallelism.offload_param", p.offload_param);
  visit("lora.r", s.lora.r);
  visit("lora.alpha", s.lora.alpha);
  visit("lora.dropout", s.lora.dropout);
  visit("lora.target_modules", s.lora.target_modules);
  visit("lora.bias", s.lora.bias);
  visit("lora.use_rslora", s.lora.use_rslora);
  visit("lora.use_dora", s.lora.use_dora);
  visit("lora.init_lora_weights", s.lora.init);
  visit("lora.loraplus_lr_ratio", s.lora.loraplus_lr_ratio);
  visit("lora.rank_pattern", s.lora.rank_pattern);
  visit("lora.alpha_pattern", s.lora.alpha_pattern);
  visit("lora.modules_to_save", s.lora.modules_to_save);
  visit("lora.ensure_weight_tying", s.lora.ensure_weight_tying);
  visit("quantization.bits", s.quantization.bits);
  visit("quantization.type", s.quantization.type);
  visit("quantization.double_quant", s.quantization.double_quant);
  VisitData(s.data, visit);
  visit("checkpoint.save_strategy", s.checkpoint.save_strategy);
  visit("checkpoint.save_steps", s.checkpoint.save_steps);
  visit("checkpoint.save_minutes", s.checkpoint.save_minutes);
  visit("checkpoint.save_total_limit", s.checkpoint.save_total_limit);
  VisitGenerate(s.generate, visit);
  visit("evaluate.metrics", s.evaluate.metrics);
  visit("evaluate.pattern", s.evaluate.pattern);
  visit("evaluate.grader", s.evaluate.grader);
  VisitExport(s.exporting, visit);
}

}  // namespace sft::spec
