#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// A resolved job: every key has its value, cross-checks have passed and the batch arithmetic is
// done. Made by Resolve (common/spec/resolve.h) on the server, stored as JSON, carried to the
// ranks. Members are named after the job file's keys; docs/config.md is generated from the table in
// fields.cc.

namespace sft::spec {

enum class Mode { kLora, kFullFinetune };
// Products of blocks' linears; kFp8Bf16Wgrad has those of weight gradients in bf16.
enum class Matmul { kBf16, kFp8, kFp8Bf16Wgrad };
// What is minimised: cross entropy, or one of the losses over preferred and rejected answers.
enum class Loss { kSft, kDpo, kOrpo, kSimPo, kKto };
// How DPO turns a pair's margin into its loss.
enum class DpoLoss { kSigmoid, kRobust, kHinge, kIpo, kSigmoidNorm };
// kAuto is replaced when a job is submitted; a rank that still sees it uses kAdamW.
enum class Optimizer { kAdamW, kAdamWBf16, kAdamW8bit, kAuto };
enum class MasterWeights { kAuto, kFp32, kBf16 };
enum class LrScheduler {
  kConstant,
  kLinear,
  kCosine,
  kCosineWithRestarts,
  kPolynomial,
  kInverseSqrt,
  kCosineWithMinLr,
  kWarmupStableDecay
};
// How the rate falls at the end of kWarmupStableDecay.
enum class LrDecay { kCosine, kLinear, kOneMinusSqrt };
enum class LossOn { kAssistant, kAll };
enum class Bias { kNone, kAll, kLoraOnly };
// First values of an adapter's A: PEFT's default, uniform by Kaiming, or normal. B is 0.
enum class LoraInit { kKaiming, kGaussian };
enum class EvalStrategy { kNo, kSteps, kEpoch };
enum class SaveStrategy { kNo, kSteps, kEpoch, kTime };
// Values of job.kind.
inline constexpr char kTrainingKind[] = "sft", kGenerateKind[] = "generate", kServeKind[] = "serve",
                      kEvaluateKind[] = "evaluate", kExportKind[] = "export";
// What the data-parallel ranks replicate and shard; derived from [hyperparameters.parallelism].
// kZero1 shards the optimizer state, kZero2 the gradients too, kFullShard the weights too.
// kHybridShard is kFullShard within a node and kDdp over nodes.
enum class Sharding { kDdp, kZero1, kZero2, kFullShard, kHybridShard };
// The compute type of a rank; derived from bf16 and fp16 or, if neither is set, from the device.
enum class ComputeType { kAuto, kFp32, kBf16 };
// Treatment of rows that do not fit sequence_length or cannot be used.
enum class BadRows { kError, kSkip };
// What an export makes, the type of its weights, the base that an adapter is merged into, and the
// one that it was trained on.
enum class ExportForm { kMerged, kGguf, kVllm };
enum class ExportType { kBf16, kF32, kQ8 };
enum class ExportBase { kBetter, kOriginal, kTrained };
enum class TrainedOn { kOriginal, kNf4, kNf4Single, kInt8 };
// When a search with several beams ends: kNo by how good the beams can still become, as a rule of
// thumb; kYes once there are as many answers as beams; kNever when none can become better.
enum class EarlyStopping { kNo, kYes, kNever };
enum class Dedup { kOff, kExact, kPrompt };
enum class AlpacaPrompt { kTemplate, kStanford };
// How a row of text is cut into documents: not at all, or at blank lines.
enum class TextDocuments { kWhole, kBlankLines };
enum class LongRows { kError, kSkip, kTruncateRight, kTruncateLeft, kTruncateMiddle, kSplit };
// What happens to a job when one of its nodes is silent for longer than unreachable_after.
enum class OnUnreachable { kReplace, kWait };
// Priority classes, from the lowest; stored by number.
enum class Priority { kLow, kNormal, kHigh, kUrgent };

// The learning rate over a run (worker/engine/optim/lr_schedule.h): the decay after the warm-up and
// the numbers that only some of the decays read.
struct LrSettings {
  LrScheduler kind = LrScheduler::kCosine;
  int64_t warmup_steps = 0;  // 0: Hyperparameters::warmup_ratio counts
  int num_cycles = 1;        // kCosineWithRestarts
  double power = 1;          // kPolynomial
  double end = 1e-7;         // kPolynomial: the rate just after the last step
  // kCosineWithMinLr and kWarmupStableDecay: the rate just after the last step, and the same as a
  // share of the peak; one of them is 0.
  double min = 0;
  double min_ratio = 0;
  // kWarmupStableDecay: the steps in which the rate falls, the last ones; below 1 a share of all.
  double decay_steps = 0.1;
  LrDecay decay = LrDecay::kCosine;
};

// All settings of one job, with the defaults of docs/config.md. A plain value.
struct JobSpec {
  struct Job {
    std::string kind = kTrainingKind;
    std::string name;     // label; empty: the job file's name without its ending
    std::string group;    // label that runs which belong together share; empty: none
    std::string model;    // directory on the nodes, or an id looked up in their model folders
    std::string data;     // training rows or prompts: a file of the client, or "node:/path"
    std::string adapter;  // that answers or is exported: a job's id or a directory on the nodes
    std::string output_dir;
  } job;

  struct Compute {
    std::string gpu_type;  // "H100"; "CPU" for CPU slots
    int gpu_count = 1;     // total number of ranks
    int nodes = 1;
    int gpus_per_node = 1;
    std::string variant;  // "H100-4x": gpu_type and gpus_per_node
    // The most that a rank's allocator may hold of its GPU, in 10^9 bytes; 0: all that is free.
    double memory_budget_gb = 0;
    int hang_timeout = 600;  // seconds without progress after which the job ends
    std::string nccl_debug = "off";
    std::string network_interface;  // for NCCL's connections; empty: chosen by the worker's address
    bool preflight = true;          // measure GPUs and network before the model is loaded
    bool cuda_launch_blocking = false;
    // How often the job is placed again after a fault of the machines, or one without explanation.
    int max_restarts = 10;
    int max_unknown_restarts = 3;
    OnUnreachable on_unreachable = OnUnreachable::kReplace;
    std::string unreachable_after = "15m";  // parsed by common/base/duration.h
  } compute;

  // Scheduling settings; only the server acts on them.
  struct Scheduling {
    Priority priority = Priority::kNormal;
    std::vector<std::string> after;  // ids of jobs that must succeed first
    bool hold = false;               // the job waits until it is released
    std::string time_limit = "0s";   // all attempts together; 0: none
    std::string warn_before = "5m";  // time of the warning before time_limit
    std::string deadline;            // "2026-12-01T08:00:00Z"; empty: none
    bool exclusive = false;          // whole nodes
    bool preemptible = true;         // may be preempted by a job of a higher class
  } scheduling;

  // Who is told of the job; only the server acts on it.
  struct Notify {
    std::vector<std::string> mail;  // addresses
    std::string webhook;            // an address by HTTP
    std::vector<std::string> events = {"job.succeeded", "job.failed", "job.cancelled"};
  } notify;

  struct Training {
    Mode mode = Mode::kLora;
    bool use_qlora = false;
    // kFp8 has no 8-bit weights, kFp8Bf16Wgrad requires full fine-tuning.
    Matmul matmul = Matmul::kBf16;
    bool deterministic = true;
    Loss loss = Loss::kSft;
    // Settings of losses over preferences; docs/preferences.md has the formulas.
    struct Preference {
      double beta = 0.1;
      DpoLoss dpo_loss = DpoLoss::kSigmoid;
      double label_smoothing = 0.0;  // kRobust
      double sft_weight = 0.0;       // adds this times the cross entropy of the chosen answers
      double simpo_gamma = 0.5;
      double kto_desirable_weight = 1.0, kto_undesirable_weight = 1.0;
    } preference;
    struct Validation {
      bool enabled = false;
      EvalStrategy strategy = EvalStrategy::kSteps;
      int eval_steps = 100;
      bool save_best_model_at_end = false;
      std::string metric_for_best_model = "val.loss";
      bool greater_is_better = false;
      int early_stopping_patience = 0;  // 0: off
      double early_stopping_threshold = 0.0;
      // Answers to validation rows that are graded beside the loss.
      bool predict_with_generate = false;
      std::vector<std::string> generate_metrics = {"exact_match", "rouge_1", "rouge_2", "rouge_l",
                                                   "rouge_lsum"};
      std::string generate_pattern;      // of the metric "regex"
      int generate_every = 1;            // validations
      int generate_rows = 200;           // the first of the validation rows; 0: all
      int generate_max_new_tokens = 64;  // of an answer
      int generate_num_beams = 1;        // of the search for an answer; 1: the likeliest token
      int generate_seconds = 300;        // of one validation; 0: as long as it takes
    } validation;
  } training;

  struct Hyperparameters {
    double n_epochs = 3;
    // Both are 0 ("auto") until the plan (common/plan/plan.h) sets them.
    int per_device_batch = 4;
    int gradient_accumulation_steps = 1;
    int global_batch = 4;  // per_device_batch * gpu_count * gradient_accumulation_steps
    int sequence_length = 2048;
    double learning_rate = 2e-5;
    double embedding_learning_rate = 0.0;  // 0: learning_rate
    double warmup_ratio = 0.03;
    Optimizer optimizer = Optimizer::kAdamW;
    MasterWeights master_weights = MasterWeights::kAuto;
    LrSettings lr_scheduler;
    double weight_decay = 0.0;
    double adam_beta1 = 0.9;
    double adam_beta2 = 0.999;
    double adam_epsilon = 1e-8;
    double max_grad_norm = 1.0;        // 0: no clipping
    double neftune_noise_alpha = 0.0;  // 0: no noise
    double router_aux_loss_coef = 0.0;
    int64_t max_steps = 0;  // 0: n_epochs counts
    int logging_steps = 1;
    uint64_t seed = 42;
  } hyperparameters;

  struct Parallelism {
    Sharding sharding = Sharding::kDdp;
    bool fsdp_use_orig_params = true;
    int tensor_parallel_size = 1;
    int pipeline_parallel_size = 1;  // stages; 1: every rank has all layers
    int context_parallel_size = 1;   // ranks that share the tokens of a row; 1: each has whole rows
    // Pieces of the model that each stage holds, in turn with the other stages; 1: in one piece.
    int virtual_pipeline_parallel_size = 1;
    // How layers are divided over stages: one of the words auto, balanced and sequential, or
    // "MODULE=STAGE" for every module (common/plan/stages.h).
    std::vector<std::string> device_map = {"auto"};
    ComputeType compute_type = ComputeType::kAuto;
    bool activation_checkpointing = false;
    double ddp_bucket_cap_mb = 25;
    // Master weights and optimizer states live in host memory and are updated there.
    bool offload_optimizer = false;
    // Blocks' weights live in host memory and are streamed.
    bool offload_param = false;
  } parallelism;

  struct Lora {
    int r = 16;
    double alpha = 32;
    double dropout = 0.0;
    // Suffixes of module names, as in PEFT: "q_proj", "self_attn.q_proj"; "all-linear".
    std::vector<std::string> target_modules = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                               "gate_proj", "up_proj", "down_proj"};
    Bias bias = Bias::kNone;
    bool use_rslora = false;
    bool use_dora = false;
    LoraInit init = LoraInit::kKaiming;
    double loraplus_lr_ratio = 1.0;
    std::vector<std::string> modules_to_save;  // ends of module names
    // "PATTERN=NUMBER": other ranks and alphas of some linears (common/spec/module_patterns.h).
    std::vector<std::string> rank_pattern, alpha_pattern;
    bool ensure_weight_tying = false;
  } lora;

  struct Quantization {
    int bits = 4;              // 4 or 8 with use_qlora; 0: the base is not quantised
    std::string type = "nf4";  // the 4-bit type, as double_quant
    bool double_quant = true;
  } quantization;

  struct Data {
    std::vector<std::string> mixture;  // several files in place of one (common/spec/mixture.h)
    std::string val;                   // validation rows; same forms as job.data
    std::string val_split;      // a part of job.data in place of them (common/spec/hold_out.h)
    std::string group_by;       // column whose equal rows stay together; empty: the first question
    Dedup dedup = Dedup::kOff;  // which rows are left out as repeats of an earlier one
    bool shuffle = true;        // false: every epoch in the order of the file
    bool packing = false;
    LossOn loss_on = LossOn::kAssistant;
    std::string chat_template;  // Jinja template replacing the model's own; empty: the model's
    // The day that the template prints, "2026-11-26". Empty: of who serves that of each question;
    // of other jobs, that of earlier versions (common/spec/template_settings.h).
    std::string template_date;
    std::vector<std::string> template_arguments;  // "reasoning_effort=high": further variables
    int64_t max_examples = 0;                     // 0: all; else the first N training rows
    BadRows on_bad_rows = BadRows::kError;        // rows that have no answer or cannot be used
    LongRows on_long_rows = LongRows::kError;     // rows longer than sequence_length
    int split_overlap = 64;  // tokens that pieces of a split row share, without loss
    AlpacaPrompt alpaca_prompt = AlpacaPrompt::kTemplate;
    TextDocuments text_documents = TextDocuments::kWhole;
    std::vector<std::string> columns;  // "prompt=ask": the file's column ask is the form's prompt
    std::vector<std::string> roles;    // "user=customer": the file's role customer is user
  } data;

  struct Checkpoint {
    SaveStrategy save_strategy = SaveStrategy::kTime;
    int save_steps = 500;
    double save_minutes = 15;
    int save_total_limit = 3;  // 0: keep all
  } checkpoint;

  // How prompts are answered; worker/engine/generate/sampling.h has what the numbers do.
  struct Generate {
    int64_t max_new_tokens = 256;
    int num_samples = 1;
    double temperature = 0;
    int64_t top_k = 0;
    double top_p = 1;
    double min_p = 0;
    double repetition_penalty = 1;
    double frequency_penalty = 0;
    double presence_penalty = 0;
    int64_t no_repeat_ngram = 0;
    int64_t min_new_tokens = 0;
    int num_beams = 1;  // above 1: beam search, of which the first num_samples are the answers
    double length_penalty = 1;
    EarlyStopping early_stopping = EarlyStopping::kNo;
    std::vector<std::string> stop;
    uint64_t seed = 0;
    int batch = 32;
    bool nf4 = false;  // the base's linear layers are held in NF4
  } generate;

  // How answers are graded (common/grade/metric.h).
  struct Evaluate {
    std::vector<std::string> metrics = {"exact_match", "f1", "rouge_l"};
    std::string pattern;  // of the metric "regex"
    // Programs that grade answers, each as JSON (common/spec/grader.h).
    std::vector<std::string> grader;
  } evaluate;

  struct Export {
    ExportForm form = ExportForm::kMerged;
    ExportType type = ExportType::kBf16;
    ExportBase base = ExportBase::kBetter;
    TrainedOn trained_on = TrainedOn::kOriginal;
    int64_t compare_tokens = 2048;
  } exporting;

  // Answers instead of training: a file of prompts, held-out rows, or whoever asks while it runs.
  bool generates() const { return job.kind == kGenerateKind || serves() || evaluates(); }
  bool evaluates() const { return job.kind == kEvaluateKind; }
  bool serves() const { return job.kind == kServeKind; }
  // Makes another form of what a job has trained.
  bool exports() const { return job.kind == kExportKind; }
  bool trains() const { return !generates() && !exports(); }
  // Ranks that compute with other tokens: the stages of a pipeline, and the ranks that share each
  // matrix, count as one. And those of them that take different rows.
  int token_ranks() const {
    return compute.gpu_count /
           (parallelism.pipeline_parallel_size * parallelism.tensor_parallel_size);
  }
  int data_ranks() const { return token_ranks() / parallelism.context_parallel_size; }
  // How many of the ranks that share rows are in one node, and how many nodes they are in.
  int context_in_node() const {
    return std::min(parallelism.context_parallel_size, compute.gpus_per_node);
  }
  int context_nodes() const { return parallelism.context_parallel_size / context_in_node(); }
  bool qlora() const { return training.mode == Mode::kLora && training.use_qlora; }
  // Trains on preferred and rejected answers; of these, in pairs, and against a reference.
  bool prefers() const { return training.loss != Loss::kSft; }
  bool pairs() const { return prefers() && training.loss != Loss::kKto; }
  bool has_reference() const { return training.loss == Loss::kDpo || training.loss == Loss::kKto; }
  bool full_finetune() const { return training.mode == Mode::kFullFinetune; }
  // Products with the weights of blocks' linears are in FP8; those of full fine-tuning then have
  // copies in FP8; and so are the products of their gradients. Frozen ones that are not quantised
  // are held in FP8 alone.
  bool fp8() const { return training.matmul != Matmul::kBf16; }
  bool fp8_copies() const { return fp8() && full_finetune(); }
  bool fp8_frozen() const { return fp8() && !full_finetune() && !qlora(); }
  bool fp8_weight_gradients() const { return fp8_copies() && training.matmul == Matmul::kFp8; }
};

}  // namespace sft::spec
