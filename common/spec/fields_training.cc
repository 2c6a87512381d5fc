#include "common/spec/fields.h"

// [training] [training.validation] [hyperparameters] [hyperparameters.parallelism]

namespace sft::spec {
namespace {

constexpr Field kTrainingTable[] = {
    {.key = "training.mode",
     .type = Type::kChoice,
     .derived = "what hyperparameters.train_kind and training.use_qlora ask for, else lora",
     .doc = "lora trains adapters on a frozen base, full_finetune trains every weight. \"qlora\" "
            "stands for lora with use_qlora = true, \"fft\" for full_finetune.",
     .choices = "lora|full_finetune|qlora",
     .synonyms = "fft=full_finetune|full=full_finetune",
     .aliases = "tuning.mode adapter finetuning_type"},
    {.key = "training.use_qlora",
     .type = Type::kBool,
     .derived = "true with mode = \"qlora\" or where quantization.bits is not 0, else false",
     .doc = "Quantises the frozen base to 4 bits (NF4), or to quantization.bits."},
    {.key = "training.matmul",
     .type = Type::kChoice,
     .def = "bf16",
     .doc = "Number type of products with the linears of blocks. \"fp8\" uses 8-bit floating point "
            "with a scale per row: faster on GPUs that support it (Hopper), and not exact; with "
            "frozen weights in 4 or 16 bits, and in full fine-tuning of models without experts. "
            "\"fp8_bf16_wgrad\", of full fine-tuning alone, keeps the products of weight gradients "
            "in bf16: slower, nearer to bf16.",
     .choices = "bf16|fp8|fp8_bf16_wgrad",
     .newer_choices = "fp8_bf16_wgrad",
     .newer_since = 2},
    {.key = "training.deterministic",
     .type = Type::kBool,
     .def = "true",
     .doc = "Every run of the job on the same kind and number of GPUs gives the same bits. false: "
            "attention's backward on a GPU sums in any order, which is a little faster.",
     .since = 2},
    {.key = "training.loss",
     .type = Type::kChoice,
     .def = "sft",
     .doc =
         "What is minimised. sft: cross entropy of the answers. On rows of a chosen and a rejected "
         "answer: dpo, which compares with the model before training; orpo and simpo, which need "
         "no reference. On answers marked good or bad: kto, with a reference. docs/preferences.md "
         "has the formulas.",
     .choices = "sft|dpo|orpo|simpo|kto",
     .aliases = "rl",
     .since = 2},
    {.key = "training.validation.enabled",
     .type = Type::kBool,
     .derived = "true when data.val is given and evaluation_strategy is not \"no\"",
     .doc = "Measures val.loss, val.perplexity and val.bits_per_byte on the rows of data.val, on "
            "the schedule below and at the end.",
     .aliases = "do_eval train.do_eval"},
    {.key = "training.validation.evaluation_strategy",
     .type = Type::kChoice,
     .def = "steps",
     .doc = "When validation runs: every eval_steps, after each epoch, or (no) at the end only.",
     .choices = "no|steps|epoch",
     .aliases = "eval_strategy train.eval_strategy training.validation.eval_strategy"},
    {.key = "training.validation.eval_steps",
     .type = Type::kInt,
     .def = "100",
     .doc = "Optimizer steps between two validations.",
     .min = 1,
     .max = 1e9},
    {.key = "training.validation.save_best_model_at_end",
     .type = Type::kBool,
     .def = "false",
     .doc = "Delivers the weights with the best metric instead of the last ones, and saves a "
            "checkpoint whenever the metric is the best so far (unless save_strategy is \"no\").",
     .aliases = "load_best_model_at_end train.load_best_model_at_end",
     .since = 2},
    {.key = "training.validation.metric_for_best_model",
     .type = Type::kChoice,
     .def = "val.loss",
     .doc = "The metric that save_best_model_at_end and early_stopping_patience compare: val.loss, "
            "val.perplexity (its exponential), val.bits_per_byte (the loss by the bytes of what is "
            "learnt, comparable over tokenizers), or one of generate_metrics.",
     .choices = "val.loss|val.perplexity|val.bits_per_byte|val.exact_match|val.normalized_match"
                "|val.contains|val.number"
                "|val.regex|val.json_valid|val.json|val.f1|val.rouge_1|val.rouge_2"
                "|val.rouge_l|val.rouge_lsum|val.bleu|val.chrf",
     .synonyms = "eval_loss=val.loss|loss=val.loss|perplexity=val.perplexity"
                 "|eval_perplexity=val.perplexity|bits_per_byte=val.bits_per_byte"
                 "|exact_match=val.exact_match"
                 "|normalized_match=val.normalized_match|contains=val.contains"
                 "|number=val.number|regex=val.regex|json_valid=val.json_valid"
                 "|json=val.json|f1=val.f1|rouge_1=val.rouge_1|rouge_2=val.rouge_2"
                 "|rouge_l=val.rouge_l|rouge_lsum=val.rouge_lsum|bleu=val.bleu"
                 "|chrf=val.chrf|rouge1=val.rouge_1|rouge2=val.rouge_2"
                 "|rougeL=val.rouge_l|rougeLsum=val.rouge_lsum|eval_rouge1=val.rouge_1"
                 "|eval_rouge2=val.rouge_2|eval_rougeL=val.rouge_l"
                 "|eval_rougeLsum=val.rouge_lsum",
     .newer_choices = "val.perplexity|val.bits_per_byte|val.exact_match|val.normalized_match"
                      "|val.contains|val.number|val.regex"
                      "|val.json_valid|val.json|val.f1|val.rouge_1|val.rouge_2|val.rouge_l"
                      "|val.rouge_lsum|val.bleu|val.chrf",
     .newer_since = 2},
    {.key = "training.validation.greater_is_better",
     .type = Type::kBool,
     .derived = "false for val.loss, val.perplexity and val.bits_per_byte, true for the others",
     .doc = "Direction of that metric: false takes the least as the best.",
     .since = 2},
    {.key = "training.validation.early_stopping_patience",
     .type = Type::kInt,
     .def = "0",
     .doc = "Ends the training after this many validations in a row without a better "
            "metric_for_best_model; 0: never.",
     .min = 0,
     .max = 1e6,
     .since = 2},
    {.key = "training.validation.early_stopping_threshold",
     .type = Type::kFloat,
     .def = "0",
     .doc = "The least improvement of the metric over the best so far that counts for "
            "early_stopping_patience.",
     .min = 0,
     .max = 1e6,
     .since = 2},
    {.key = "training.validation.predict_with_generate",
     .type = Type::kBool,
     .def = "false",
     .doc = "Validation also answers rows with the weights in training and grades the answers: "
            "val.rouge_l, val.exact_match, ... (docs/evaluate.md). Where weights are cut over the "
            "ranks or stay in host memory only the loss is measured.",
     .since = 2},
    {.key = "training.validation.generate_metrics",
     .type = Type::kList,
     .def = "exact_match,rouge_1,rouge_2,rouge_l,rouge_lsum",
     .doc = "What those answers are graded by; the names are those of evaluate.metrics.",
     .max = 32,
     .since = 2},
    {.key = "training.validation.generate_pattern",
     .def = "",
     .doc = "Regular expression (RE2) of the metric regex, as evaluate.pattern.",
     .is_text = true,
     .since = 2},
    {.key = "training.validation.generate_every",
     .type = Type::kInt,
     .def = "1",
     .doc = "Rows are answered in every Nth validation, and in the last one.",
     .min = 1,
     .max = 1e6,
     .since = 2},
    {.key = "training.validation.generate_rows",
     .type = Type::kInt,
     .def = "200",
     .doc = "How many validation rows are answered, from the first; 0: all.",
     .min = 0,
     .max = 1e9,
     .since = 2},
    {.key = "training.validation.generate_max_new_tokens",
     .type = Type::kInt,
     .def = "64",
     .doc = "The longest of those answers, in tokens.",
     .min = 1,
     .max = 1 << 20,
     .aliases = "train.generation_max_new_tokens generation_max_new_tokens",
     .since = 2},
    {.key = "training.validation.generate_num_beams",
     .type = Type::kInt,
     .def = "1",
     .doc = "Beams of the search for those answers (generate.num_beams); 1: always the likeliest "
            "token. Each takes memory for its keys and values beside the training.",
     .min = 1,
     .max = 64,
     .aliases = "train.generation_num_beams generation_num_beams",
     .since = 2},
    {.key = "training.validation.generate_seconds",
     .type = Type::kInt,
     .def = "300",
     .doc = "The longest time that a rank answers rows in one validation. If it takes longer these "
            "answers do not count, and from then on the rank answers as many rows as it had time "
            "for. 0: no limit.",
     .min = 0,
     .max = 1e6,
     .since = 2},

    {.key = "hyperparameters.n_epochs",
     .type = Type::kFloat,
     .def = "3",
     .doc = "Passes over the training rows; a fraction trains part of one.",
     .min = 0,
     .max = 1e6,
     .above_min = true,
     .aliases =
         "num_epochs epochs num_train_epochs train.num_train_epochs train.num_epochs train.epochs"},
    {.key = "hyperparameters.train_kind",
     .type = Type::kChoice,
     .derived = "peft with mode = \"lora\", fft with mode = \"full_finetune\"",
     .doc = "Must agree with training.mode.",
     .choices = "peft|fft"},
    {.key = "hyperparameters.per_device_batch",
     .type = Type::kInt,
     .derived = "4, or what global_batch leaves when that is less",
     .doc = "Sequences of one rank in one micro-step. If they do not fit into a GPU's memory, or "
            "smaller ones are faster, a micro-step is split, with the same result. \"auto\": the "
            "fastest size for the GPU's memory, while global_batch stays (16 * gpu_count if it is "
            "not given).",
     .min = 1,
     .max = 65536,
     .plans_auto = true,
     .aliases = "train.batch_size batch_size per_device_train_batch_size "
                "train.per_device_train_batch_size micro_batch_size train.micro_batch_size"},
    {.key = "hyperparameters.gradient_accumulation_steps",
     .type = Type::kInt,
     .derived = "global_batch / (per_device_batch * gpu_count), else 1",
     .doc = "Micro-steps of one optimizer step. \"auto\" is the same as leaving it out.",
     .min = 1,
     .max = 1e6,
     .auto_derives = true,
     .plans_auto = true,
     .aliases = "train.grad_accum grad_accum"},
    {.key = "hyperparameters.sequence_length",
     .type = Type::kInt,
     .def = "2048",
     .doc = "The most tokens in a sequence.",
     .min = 8,
     .max = 1 << 20,
     .aliases =
         "model.max_seq_len max_seq_len train.max_seq_len model.max_seq_length max_seq_length "
         "train.max_seq_length max_length train.max_length sequence_len train.sequence_len "
         "cutoff_len train.cutoff_len"},
    {.key = "hyperparameters.learning_rate",
     .type = Type::kFloat,
     .def = "2e-5",
     .doc = "Peak learning rate. With a training.loss over preferences the default is 5e-6, with "
            "full_finetune 1e-6.",
     .min = 0,
     .max = 10,
     .above_min = true},
    {.key = "hyperparameters.embedding_learning_rate",
     .type = Type::kFloat,
     .def = "0",
     .doc = "Peak learning rate of a trained embedding and head; 0: learning_rate, which in a job "
            "of adapters often is too much for them.",
     .min = 0,
     .max = 10,
     .since = 2},
    {.key = "hyperparameters.warmup_ratio",
     .type = Type::kFloat,
     .def = "0.03",
     .doc = "Fraction of the optimizer steps over which the rate rises to its peak: step t from 1 "
            "uses peak * min(1, t / ceil(warmup_ratio * steps)).",
     .min = 0,
     .max = 1},
    {.key = "hyperparameters.warmup_steps",
     .type = Type::kFloat,
     .def = "0",
     .doc = "Optimizer steps over which the rate rises to its peak, in place of warmup_ratio; a "
            "number below 1 is a share, as warmup_ratio. 0: warmup_ratio counts; without one, "
            "there is no warm-up.",
     .min = 0,
     .max = 1e12,
     .aliases = "num_warmup_steps train.num_warmup_steps lr_warmup_steps train.lr_warmup_steps",
     .since = 2},
    {.key = "hyperparameters.global_batch",
     .type = Type::kInt,
     .derived = "per_device_batch * gpu_count * gradient_accumulation_steps",
     .doc =
         "Sequences of one optimizer step over all ranks. Where a file contradicts itself this "
         "value stands, gradient_accumulation_steps follows, and a warning gives both numbers; an "
         "explicit override of another factor wins over the file. \"auto\" is the same as leaving "
         "it out.",
     .min = 1,
     .max = 1e9,
     .auto_derives = true,
     .aliases = "train_batch_size effective_batch_size"},
    {.key = "hyperparameters.optimizer",
     .type = Type::kChoice,
     .def = "adamw",
     .doc = "AdamW with moments in fp32, in bf16, or in 8 bits; auto: the first of these, together "
            "with master_weights, with which the job fits into its GPUs, chosen at submit.",
     .choices = "adamw|adamw_bf16|adamw_8bit|auto",
     .synonyms = "adamw_torch=adamw|adamw_torch_fused=adamw|adamw_hf=adamw|adamw_apex_fused=adamw|"
                 "paged_adamw=adamw|paged_adamw_32bit=adamw|adamw_bnb_8bit=adamw_8bit|"
                 "paged_adamw_8bit=adamw_8bit",
     .noted_words = "paged_adamw|paged_adamw_32bit|paged_adamw_8bit",
     .note = "a paged optimizer is taken as the same one with its states on the GPU; "
             "offload_optimizer = true keeps them in host memory",
     .aliases = "optim train.optim"},
    {.key = "hyperparameters.master_weights",
     .type = Type::kChoice,
     .def = "auto",
     .doc = "Type of the weights that the optimizer updates; auto is fp32, or bf16 if the job fits "
            "into its GPUs only then, chosen at submit.",
     .choices = "auto|fp32|bf16"},
    {.key = "hyperparameters.lr_scheduler",
     .type = Type::kChoice,
     .def = "cosine",
     .doc = "The rate after warm-up, by transformers' formulas: constant; linear and cosine, which "
            "fall to 0 just after the last step; cosine_with_restarts: lr_num_cycles such cosines; "
            "polynomial: to lr_end, by the power lr_power; inverse_sqrt: peak * sqrt(W / t) with W "
            "steps of warm-up (10000 if there is none); cosine_with_min_lr: to lr_min or "
            "lr_min_ratio; warmup_stable_decay: the peak, and in the last lr_decay_steps down to "
            "lr_min_ratio by lr_decay.",
     .choices = "constant|linear|cosine|cosine_with_restarts|polynomial|inverse_sqrt|"
                "cosine_with_min_lr|warmup_stable_decay",
     .synonyms = "constant_with_warmup=constant|cosine_with_hard_restarts=cosine_with_restarts|"
                 "cosine_with_hard_restarts_with_warmup=cosine_with_restarts|"
                 "wsd=warmup_stable_decay",
     .aliases = "lr_scheduler_type train.lr_scheduler_type",
     .newer_choices = "cosine_with_restarts|polynomial|inverse_sqrt|cosine_with_min_lr|"
                      "warmup_stable_decay",
     .newer_since = 2},
    {.key = "hyperparameters.lr_num_cycles",
     .type = Type::kInt,
     .def = "1",
     .doc = "Cosines of cosine_with_restarts; the rate jumps back to its peak between them.",
     .min = 1,
     .max = 1e6,
     .aliases = "lr_scheduler_kwargs.num_cycles train.lr_scheduler_kwargs.num_cycles "
                "hyperparameters.lr_scheduler_kwargs.num_cycles",
     .since = 2},
    {.key = "hyperparameters.lr_power",
     .type = Type::kFloat,
     .def = "1",
     .doc = "The power of polynomial; 1 is a straight line.",
     .min = 0,
     .max = 1000,
     .above_min = true,
     .aliases = "lr_scheduler_kwargs.power train.lr_scheduler_kwargs.power "
                "hyperparameters.lr_scheduler_kwargs.power",
     .since = 2},
    {.key = "hyperparameters.lr_end",
     .type = Type::kFloat,
     .def = "1e-07",
     .doc = "The rate to which polynomial falls just after the last step; below learning_rate.",
     .min = 0,
     .max = 10,
     .aliases = "lr_scheduler_kwargs.lr_end train.lr_scheduler_kwargs.lr_end "
                "hyperparameters.lr_scheduler_kwargs.lr_end",
     .since = 2},
    {.key = "hyperparameters.lr_min",
     .type = Type::kFloat,
     .def = "0",
     .doc = "The rate to which cosine_with_min_lr and warmup_stable_decay fall just after the last "
            "step; below learning_rate.",
     .min = 0,
     .max = 10,
     .aliases = "lr_scheduler_kwargs.min_lr train.lr_scheduler_kwargs.min_lr "
                "hyperparameters.lr_scheduler_kwargs.min_lr",
     .since = 2},
    {.key = "hyperparameters.lr_min_ratio",
     .type = Type::kFloat,
     .def = "0",
     .doc = "The same as a share of learning_rate.",
     .min = 0,
     .max = 1,
     .aliases = "lr_scheduler_kwargs.min_lr_rate train.lr_scheduler_kwargs.min_lr_rate "
                "hyperparameters.lr_scheduler_kwargs.min_lr_rate "
                "lr_scheduler_kwargs.min_lr_ratio train.lr_scheduler_kwargs.min_lr_ratio "
                "hyperparameters.lr_scheduler_kwargs.min_lr_ratio cosine_min_lr_ratio",
     .since = 2},
    {.key = "hyperparameters.lr_decay_steps",
     .type = Type::kFloat,
     .def = "0.1",
     .doc = "Steps in which the rate of warmup_stable_decay falls, the last ones: a whole number, "
            "or below 1 a share of all steps; at most those after the warm-up.",
     .min = 0,
     .max = 1e9,
     .aliases = "lr_scheduler_kwargs.num_decay_steps train.lr_scheduler_kwargs.num_decay_steps "
                "hyperparameters.lr_scheduler_kwargs.num_decay_steps",
     .since = 2},
    {.key = "hyperparameters.lr_decay",
     .type = Type::kChoice,
     .def = "cosine",
     .doc = "How it falls: half a cosine, a line, or 1 - sqrt(p) with the share p that is done.",
     .choices = "cosine|linear|1-sqrt",
     .aliases = "lr_scheduler_kwargs.decay_type train.lr_scheduler_kwargs.decay_type "
                "hyperparameters.lr_scheduler_kwargs.decay_type",
     .since = 2},
    {.key = "hyperparameters.weight_decay",
     .type = Type::kFloat,
     .def = "0",
     .doc = "AdamW's decoupled weight decay.",
     .min = 0,
     .max = 10},
    {.key = "hyperparameters.adam_beta1",
     .type = Type::kFloat,
     .def = "0.9",
     .doc = "Decay of the first moment.",
     .min = 0,
     .max = 0.9999999},
    {.key = "hyperparameters.adam_beta2",
     .type = Type::kFloat,
     .def = "0.999",
     .doc = "Decay of the second moment.",
     .min = 0,
     .max = 0.9999999},
    {.key = "hyperparameters.adam_epsilon",
     .type = Type::kFloat,
     .def = "1e-8",
     .doc = "Added to the root of the second moment.",
     .min = 0,
     .max = 1,
     .above_min = true},
    {.key = "hyperparameters.max_grad_norm",
     .type = Type::kFloat,
     .def = "1",
     .doc = "Gradients are scaled down to this norm over all trained weights; 0: never.",
     .min = 0,
     .max = 1e9,
     .aliases = "gradient_clipping train.gradient_clipping"},
    {.key = "hyperparameters.neftune_noise_alpha",
     .type = Type::kFloat,
     .def = "0",
     .doc = "NEFTune: while training, adds noise to what the embedding gives, uniform in +-alpha / "
            "sqrt(L * H) with L tokens in the longest row of the micro-batch and hidden size H. "
            "Usual are 5 to 15; 0: none.",
     .min = 0,
     .max = 1e6,
     .aliases = "noisy_embedding_alpha train.noisy_embedding_alpha",
     .since = 2},
    {.key = "hyperparameters.router_aux_loss_coef",
     .type = Type::kFloat,
     .def = "0",
     .doc =
         "Of a mixture of experts: adds this times the load-balancing loss of the routers to the "
         "loss, as transformers does with output_router_logits. The loss that steps report has it "
         "in it, that of validation has not. Usual are 0.001 to 0.01; 0: none, whatever the "
         "model's config.json says.",
     .min = 0,
     .max = 1e3,
     .since = 2},
    {.key = "hyperparameters.max_steps",
     .type = Type::kInt,
     .def = "0",
     .doc = "Optimizer steps of the run; 0, or as other tools write it -1: as many as n_epochs "
            "needs.",
     .min = -1,
     .max = 1e12,
     .aliases =
         "max_train_steps train.max_train_steps num_training_steps train.num_training_steps"},
    {.key = "hyperparameters.logging_steps",
     .type = Type::kInt,
     .def = "1",
     .doc = "Metrics are reported every so many optimizer steps.",
     .min = 1,
     .max = 1e9},
    {.key = "hyperparameters.seed",
     .type = Type::kInt,
     .def = "42",
     .doc = "Seed of everything random; two runs with one seed give equal losses bit for bit, "
            "unless training.deterministic is false.",
     .min = 0,
     .max = 9.2e18,
     .aliases = "random_state train.random_state lora.random_state tuning.lora.random_state"},

    {.key = "hyperparameters.parallelism.fsdp",
     .type = Type::kBool,
     .def = "false",
     .doc = "Shards over the ranks as fsdp_sharding_strategy says. Not with use_deepspeed, nor "
            "with one GPU."},
    {.key = "hyperparameters.parallelism.fsdp_sharding_strategy",
     .type = Type::kChoice,
     .def = "full_shard",
     .doc =
         "What fsdp = true shards; an override of it sets that too. full_shard: weights, gradients "
         "and optimizer state. shard_grad_op: gradients and optimizer state. hybrid_shard: as "
         "full_shard over the GPUs of each node, replicated over nodes. no_shard: nothing.",
     .choices = "full_shard|no_shard|shard_grad_op|hybrid_shard"},
    {.key = "hyperparameters.parallelism.fsdp_auto_wrap_policy",
     .type = Type::kChoice,
     .def = "transformer_block",
     .doc = "Unit of sharding: one transformer block.",
     .choices = "transformer_block"},
    {.key = "hyperparameters.parallelism.fsdp_use_orig_params",
     .type = Type::kBool,
     .def = "true",
     .doc = "Weights keep their own names and shapes under sharding.",
     .supported = "true",
     .refusal = "weights always keep their own names and shapes here; leave it out or set true"},
    {.key = "hyperparameters.parallelism.tensor_parallel_size",
     .type = Type::kInt,
     .def = "1",
     .doc =
         "GPUs of a node that share each matrix of the blocks: each has some of the heads and of "
         "the feed-forward layer, and between these a part of the tokens. It divides the "
         "model's heads and intermediate size. per_device_batch rows go to so many GPUs "
         "together.",
     .min = 1,
     .max = 64,
     .since = 2},
    {.key = "hyperparameters.parallelism.pipeline_parallel_size",
     .type = Type::kInt,
     .derived = "the GPUs that device_map names, else 1",
     .doc =
         "Stages of a pipeline: each holds some consecutive layers, and the micro-batches of a "
         "step pass through all of them. gpu_count is a multiple; each stage has as many GPUs, "
         "which take different rows. With the same micro-batches the result has the bits of a run "
         "without a pipeline.",
     .min = 1,
     .max = 1024,
     .since = 2},
    {.key = "hyperparameters.parallelism.virtual_pipeline_parallel_size",
     .type = Type::kInt,
     .def = "1",
     .doc = "Pieces of the model that each stage of a pipeline holds, in turn with the others: "
            "several leave the GPUs less idle, hold more activations and send more messages.",
     .min = 1,
     .max = 64,
     .since = 2},
    {.key = "hyperparameters.parallelism.device_map",
     .type = Type::kList,
     .def = "auto",
     .doc =
         "How layers are divided over GPUs. auto: as pipeline_parallel_size and fsdp say, stages "
         "equally fast, or as the plan chooses. balanced: over the GPUs of a node, as equally full "
         "as can be. sequential: "
         "the first GPU is filled before the next. Or a table of modules and GPUs "
         "([model.device_map] with \"model.layers.0\" = 1), in which the longest name counts.",
     .max = 1000,
     .takes_table = true,
     .aliases = "model.device_map",
     .since = 2},
    {.key = "hyperparameters.parallelism.context_parallel_size",
     .type = Type::kInt,
     .def = "1",
     .doc = "GPUs that share each row, for rows too long for one: a divisor of gpus_per_node, or "
            "all GPUs of several nodes. Each has a part of the row's tokens. In attention the "
            "GPUs of a node divide the heads, so their number must divide the model's; nodes "
            "gather each other's keys and values. per_device_batch rows go to so many GPUs "
            "together.",
     .min = 1,
     .max = 64,
     .since = 2},
    {.key = "hyperparameters.parallelism.bf16",
     .type = Type::kBool,
     .derived = "true on GPUs, false (fp32) on CPUs",
     .doc = "Computes in bfloat16; false computes in fp32.",
     .aliases = "bf16.enabled"},
    {.key = "hyperparameters.parallelism.fp16",
     .type = Type::kBool,
     .def = "false",
     .doc = "true: computes in bfloat16, which every GPU that runs jobs has, as fast as float16 "
            "and without loss scaling (on CPUs in fp32); a warning says so.",
     .aliases = "fp16.enabled"},
    {.key = "hyperparameters.parallelism.use_deepspeed",
     .type = Type::kBool,
     .derived = "true when only deepspeed_stage is given, else false",
     .doc = "Shards over the ranks as deepspeed_stage says (ZeRO). Not with fsdp, nor with one "
            "GPU."},
    {.key = "hyperparameters.parallelism.deepspeed_stage",
     .type = Type::kInt,
     .def = "2",
     .doc = "ZeRO stage; ignored with use_deepspeed = false; an override of the stage sets that to "
            "true. 1: optimizer state. 2: gradients too, like fsdp's shard_grad_op. 3: weights "
            "too, like full_shard. 0: nothing.",
     .min = 0,
     .max = 3,
     .aliases = "zero_optimization.stage"},
    {.key = "hyperparameters.parallelism.activation_checkpointing",
     .type = Type::kBool,
     .def = "false",
     .doc = "Recomputes each block's activations in the backward pass: about a third slower, much "
            "less memory, the same loss bit for bit. false: on a GPU only as much is recomputed, "
            "block by block, as its memory requires.",
     .synonyms = "unsloth=false",
     .noted_words = "unsloth",
     .note = "\"unsloth\" is taken as false: the plan decides block by block what is recomputed, "
             "only as much as a GPU's memory requires",
     .aliases = "gradient_checkpointing train.gradient_checkpointing use_gradient_checkpointing "
                "train.use_gradient_checkpointing lora.use_gradient_checkpointing "
                "tuning.lora.use_gradient_checkpointing model.use_gradient_checkpointing"},
    {.key = "hyperparameters.parallelism.ddp_bucket_cap_mb",
     .type = Type::kFloat,
     .def = "25",
     .doc = "Where nothing is sharded, gradients are reduced over the ranks in buckets of this "
            "size, in 2^20 bytes.",
     .min = 0,
     .max = 1e6,
     .above_min = true},
    {.key = "hyperparameters.parallelism.offload_optimizer",
     .type = Type::kBool,
     .def = "false",
     .doc = "Keeps master weights and optimizer states in host memory and updates them there, each "
            "rank its own part. A GPU then holds only the weights in the compute type and their "
            "gradients. Full fine-tuning sends gradients in bf16. On CPUs nothing "
            "changes.",
     .synonyms = "cpu=true|none=false",
     .aliases = "zero_optimization.cpu_offload zero_optimization.offload_optimizer.device"},
    {.key = "hyperparameters.parallelism.offload_param",
     .type = Type::kBool,
     .def = "false",
     .doc = "Keeps the blocks' weights in host memory (quantised ones as they are), each rank "
            "those it would keep on its GPU. They are sent to the GPU block by block, during the "
            "computation of the block before. Full fine-tuning also needs offload_optimizer, and "
            "cannot use deepspeed_stage 1 or 2 (shard_grad_op). On CPUs nothing changes.",
     .synonyms = "cpu=true|none=false",
     .aliases = "zero_optimization.offload_param.device",
     .since = 2},
};

}  // namespace

std::span<const Field> TrainingFields() { return kTrainingTable; }

}  // namespace sft::spec
