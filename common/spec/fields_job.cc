#include "common/spec/fields.h"

// [job] [compute] [scheduling] [notify] [data.topology] [data] [checkpoint]

namespace sft::spec {
namespace {

constexpr Field kJobTable[] = {
    {.key = "job.kind",
     .type = Type::kChoice,
     .def = "sft",
     .doc = "What the job does: sft trains, generate answers a file of prompts, serve answers "
            "whoever asks while it runs (docs/generate.md), evaluate answers held-out rows and "
            "grades base and adapter (docs/evaluate.md), export makes another form of what a "
            "job has trained (docs/results.md).",
     .choices = "sft|generate|serve|evaluate|export",
     .aliases = "job.type",
     .newer_choices = "generate|serve|evaluate|export",
     .newer_since = 2},
    {.key = "job.name",
     .derived = "the job file's name without its ending",
     .doc = "A label for lists, at most 128 bytes on one line; need not be unique.",
     .aliases = "name run_name train.run_name"},
    {.key = "job.group",
     .def = "",
     .doc = "A label that runs which belong together share (\"v2-lr\"), at most 128 bytes on one "
            "line: `sftctl list`, `compare` and `cancel` take all of them with --group.",
     .aliases = "run_group train.run_group",
     .since = 2,
     .server_only = true},
    {.key = "job.model",
     .derived = "required",
     .doc =
         "The base model: a directory on the nodes, or an id that is looked up below the workers' "
         "model folders and then in their Hugging Face cache. Where workers have --model-cache, "
         "an id of the hub (org/name, org/name@revision) is downloaded by the node that needs it. "
         "The id of a job stands for the full model that it delivered.",
     .aliases = "model.name model_name model.model_name base_model model.base_model "
                "model_name_or_path model.model_name_or_path"},
    {.key = "job.data",
     .derived = "required",
     .doc = "Training rows (docs/data.md), or prompts: a file of the submitter's, relative to the "
            "job file, which is uploaded; or \"node:/path\", a file that every node sees. Left out "
            "with kind = \"export\": the rows of the job that trained the adapter.",
     .aliases = "data.train train_file train_dataset train.train_file"},
    {.key = "job.adapter",
     .def = "",
     .doc =
         "What a job that has succeeded delivered (its id), or a directory on the nodes (an "
         "absolute path): with kind = \"sft\" the adapter from which training starts, whose r is "
         "at most lora.r, with \"generate\", \"serve\" or \"evaluate\" the one that answers, with "
         "\"export\" the one that is merged. A job that answers also takes JOB@STEP, JOB@best or "
         "JOB@latest: what JOB had trained at that checkpoint. Empty: fresh adapters, or the base "
         "model alone.",
     .since = 2},
    {.key = "job.output_dir",
     .def = "",
     .doc = "Stored with the job but not used: `sftctl download` writes into -o, or a folder named "
            "after the job.",
     .aliases = "output_dir train.output_dir finetune_output_dir"},

    {.key = "compute.gpu_type",
     .derived = "the type in compute.variant",
     .doc =
         "Type of GPU, as `sftctl variants` lists them; \"CPU\" for CPU slots. SYNTH_GPU_TYPE may "
         "hold a type (\"H100\") or a variant (\"H100-4x\")."},
    {.key = "compute.gpu_count",
     .type = Type::kInt,
     .derived = "nodes * gpus_per_node",
     .doc = "Total number of GPUs; each has one rank process.",
     .min = 1,
     .max = 65536,
     .aliases = "num_gpus compute.num_gpus num_processes",
     .env = "NUM_GPUS"},
    {.key = "compute.nodes",
     .type = Type::kInt,
     .derived = "gpu_count / gpus_per_node where both are given, else 1",
     .doc = "Nodes that the job spans.",
     .min = 1,
     .max = 8192,
     .aliases = "num_machines nnodes"},
    {.key = "compute.gpus_per_node",
     .type = Type::kInt,
     .derived = "the count in compute.variant, or gpu_count / nodes",
     .doc = "GPUs taken on each node; nodes * gpus_per_node = gpu_count.",
     .min = 1,
     .max = 1024,
     .aliases = "nproc_per_node"},
    {.key = "compute.variant",
     .derived = "<gpu_type>-<gpus_per_node>x",
     .doc = "The allocation on each node by its name in the inventory, TYPE-Nx."},
    {.key = "compute.memory_budget_gb",
     .type = Type::kFloat,
     .def = "0",
     .doc = "The most memory that a job may hold on each GPU, in 10^9 bytes; 0: all that is free. "
            "The plan stays within it, and it limits the rank's allocator.",
     .min = 0,
     .max = 1e6,
     .aliases = "memory_budget_gb"},
    {.key = "compute.max_restarts",
     .type = Type::kInt,
     .def = "10",
     .doc = "How often the job is placed again from its last checkpoint after a fault of the "
            "machines (a killed rank, a lost node, a device). Three restarts in a row without a "
            "new step end it earlier.",
     .min = 0,
     .max = 10000,
     .since = 2,
     .server_only = true},
    {.key = "compute.max_unknown_restarts",
     .type = Type::kInt,
     .def = "3",
     .doc = "As max_restarts, for unexplained failures (a crash, an unknown exit code). "
            "A fault of the job itself (its data, its values, too little memory) is never retried.",
     .min = 0,
     .max = 10000,
     .since = 2,
     .server_only = true},
    {.key = "compute.on_unreachable",
     .type = Type::kChoice,
     .def = "replace",
     .doc = "When a node of the job is silent for longer than unreachable_after: place the job "
            "elsewhere (the node ends its ranks by itself at that time), or wait for the node.",
     .choices = "replace|wait",
     .since = 2,
     .server_only = true},
    {.key = "compute.unreachable_after",
     .type = Type::kDuration,
     .def = "15m",
     .doc = "How long a node may be silent before on_unreachable = \"replace\" acts. Time in which "
            "the server itself was down or stopped does not count.",
     .min = 10,
     .max = 1e8,
     .since = 2,
     .server_only = true},

    {.key = "compute.hang_timeout",
     .type = Type::kInt,
     .def = "600",
     .doc = "Seconds without progress of any rank, or within one collective, after which the job "
            "is ended as hanging. While it loads, validates or delivers, the limit is at least 30 "
            "minutes.",
     .min = 1,
     .max = 7 * 86400,
     .aliases = "hang_timeout nccl_timeout ddp_timeout train.ddp_timeout",
     .env = "NCCL_TIMEOUT",
     .since = 2},
    {.key = "compute.nccl_debug",
     .type = Type::kChoice,
     .def = "off",
     .doc = "Level of NCCL's own messages in the logs of the ranks.",
     .choices = "off|VERSION|WARN|INFO|TRACE",
     .synonyms = "version=VERSION|warn=WARN|info=INFO|trace=TRACE",
     .aliases = "nccl_debug",
     .env = "NCCL_DEBUG",
     .since = 2},
    {.key = "compute.network_interface",
     .def = "",
     .doc = "The network interface on every node that NCCL uses (\"eth0\"), by its whole name, or "
            "several separated by commas, of which a node has to have one; \"^docker0\": any but "
            "those that begin so; empty: what the node's operator says, else the one with the "
            "worker's address.",
     .aliases = "network_interface",
     .env = "NCCL_SOCKET_IFNAME",
     .since = 2},
    {.key = "compute.preflight",
     .type = Type::kBool,
     .def = "true",
     .doc = "Measures GPUs and the network between them when the ranks have met, before the model "
            "is loaded (less than 2 s): what is slow is said, and what is broken ends the attempt, "
            "which is placed elsewhere.",
     .aliases = "preflight",
     .since = 2},
    {.key = "compute.cuda_launch_blocking",
     .type = Type::kBool,
     .def = "false",
     .doc = "Waits for each GPU operation, so that a failing one is named; slow.",
     .aliases = "cuda_launch_blocking",
     .env = "CUDA_LAUNCH_BLOCKING",
     .since = 2},

    {.key = "scheduling.priority",
     .type = Type::kChoice,
     .def = "normal",
     .doc =
         "The priority class: jobs of a higher class are placed first, and may preempt preemptible "
         "jobs of a lower one. An operator sets the highest class that a project may use.",
     .choices = "low|normal|high|urgent",
     .aliases = "priority",
     .since = 2,
     .server_only = true},
    {.key = "scheduling.after",
     .type = Type::kList,
     .def = "",
     .doc = "Ids of jobs that must succeed first, at most 100. If one of them fails or is "
            "cancelled, this job ends too.",
     .max = 100,
     .may_be_empty = true,
     .aliases = "after",
     .since = 2,
     .server_only = true},
    {.key = "scheduling.hold",
     .type = Type::kBool,
     .def = "false",
     .doc = "The job is not placed until `sftctl release JOB`.",
     .since = 2,
     .server_only = true},
    {.key = "scheduling.time_limit",
     .type = Type::kDuration,
     .def = "0s",
     .doc =
         "The longest the job may hold its GPUs, all attempts together (\"8h\"): then it writes a "
         "checkpoint and ends with the verdict time_limit. 0s: no limit. A job with a limit may "
         "start earlier, because it can run before jobs that wait for more GPUs.",
     .min = 0,
     .max = 1e8,
     .aliases = "time_limit",
     .since = 2,
     .server_only = true},
    {.key = "scheduling.warn_before",
     .type = Type::kDuration,
     .def = "5m",
     .doc = "How long before time_limit the job is warned: an event is written, and the job writes "
            "a checkpoint. If not given, at most half of time_limit.",
     .min = 0,
     .max = 1e8,
     .since = 2,
     .server_only = true},
    {.key = "scheduling.deadline",
     .def = "",
     .doc = "When the result is needed, in UTC (\"2026-12-01T08:00:00Z\"): there is a warning as "
            "soon as the job is expected to end later. Empty: no deadline.",
     .aliases = "deadline",
     .since = 2,
     .server_only = true},
    {.key = "scheduling.exclusive",
     .type = Type::kBool,
     .def = "false",
     .doc = "Takes whole nodes: no other job runs on them.",
     .aliases = "exclusive",
     .since = 2,
     .server_only = true},
    {.key = "scheduling.preemptible",
     .type = Type::kBool,
     .def = "true",
     .doc = "A job of a higher class may preempt this one: it writes a checkpoint, goes back to "
            "the queue and later continues from there. That uses up no restart.",
     .since = 2,
     .server_only = true},

    {.key = "notify.mail",
     .type = Type::kList,
     .def = "",
     .doc = "Addresses that get a mail when something of notify.events happens to the job, at most "
            "5; for servers that send mail (docs/webhooks.md).",
     .max = 5,
     .may_be_empty = true,
     .since = 2,
     .server_only = true},
    {.key = "notify.webhook",
     .def = "",
     .doc =
         "An address that gets a POST when something of notify.events happens to the job, such as "
         "\"https://example.com/hooks/sft\". The submit that names it first says the secret by "
         "which the receiver knows the server (docs/webhooks.md). Empty: none.",
     .since = 2,
     .server_only = true},
    {.key = "notify.events",
     .type = Type::kList,
     .def = "job.succeeded,job.failed,job.cancelled",
     .doc = "What they are told of: events of jobs in docs/webhooks.md. Empty: all of them.",
     .max = 11,
     .may_be_empty = true,
     .since = 2,
     .server_only = true},

    {.key = "data.topology.container_count",
     .type = Type::kInt,
     .derived = "compute.gpu_count",
     .doc = "One container is one rank process: equals compute.gpu_count.",
     .min = 1,
     .max = 65536},
    {.key = "data.topology.gpus_per_node",
     .type = Type::kInt,
     .derived = "compute.gpus_per_node",
     .doc = "Second copy of compute.gpus_per_node; must agree with it.",
     .min = 1,
     .max = 1024},
    {.key = "data.topology.total_gpus",
     .type = Type::kInt,
     .derived = "compute.gpu_count",
     .doc = "Second copy of compute.gpu_count; must agree with it.",
     .min = 1,
     .max = 65536},
    {.key = "data.topology.nodes",
     .type = Type::kInt,
     .derived = "compute.nodes",
     .doc = "Second copy of compute.nodes; must agree with it.",
     .min = 1,
     .max = 8192},
    {.key = "data.topology.variant",
     .derived = "compute.variant",
     .doc = "Second copy of compute.variant; must agree with it."},

    {.key = "data.mixture",
     .type = Type::kList,
     .def = "",
     .doc = "Several files with training rows in place of job.data. Written as data.train, a list "
            "of paths and of tables {path, weight, max_examples}: each row is seen `weight` times "
            "an epoch (1 where it is left out; of a fraction, another part of the rows in each "
            "epoch), and the first `max_examples` rows are taken. With --set: \"a.jsonl "
            "weight=0.5,b.jsonl\".",
     .max = 100,
     .may_be_empty = true,
     .aliases = "data.mix",
     .since = 2},
    {.key = "data.val",
     .def = "",
     .doc =
         "Validation rows, written like job.data. Without an explicit training.validation.enabled "
         "it turns validation on; `--val` does so even against the file.",
     .aliases =
         "val_file eval_dataset validation_file data.validation data.val_file train.val_file"},
    {.key = "data.val_split",
     .def = "",
     .doc = "A part of job.data that is held out for validation, in place of data.val: a share "
            "(0.05) or a number of rows (\"500 rows\"). Which rows follows from "
            "hyperparameters.seed and the text of a row's first question (or data.group_by), so "
            "that rows with the same one are on one side, and rows that are added or moved change "
            "no other's side.",
     .takes_number = true,
     .aliases = "val_split val_set_size val_size data.val_set_size data.val_size "
                "train.val_set_size train.val_size",
     .since = 2},
    {.key = "data.group_by",
     .def = "",
     .doc = "Column of job.data: rows in which it is equal stay on one side of data.val_split.",
     .since = 2},
    {.key = "data.dedup",
     .type = Type::kChoice,
     .def = "off",
     .doc = "Leaves out rows that repeat an earlier one: in all that is learnt from (exact), or in "
            "what stands before the first answer (prompt). Case and blanks count.",
     .choices = "off|exact|prompt",
     .aliases = "dedup",
     .since = 2},
    {.key = "data.shuffle",
     .type = Type::kBool,
     .def = "true",
     .doc = "Draws a new order of the rows for each epoch, from hyperparameters.seed; false: the "
            "order of the file, for rows that get harder.",
     .aliases = "shuffle",
     .since = 2},
    {.key = "data.packing",
     .type = Type::kBool,
     .def = "false",
     .doc = "Puts several short rows into one sequence; they do not attend to each other. The "
            "default is true where job.data is raw documents: .txt and .md files, or a folder of "
            "them that sftctl sends.",
     .aliases = "packing train.packing sample_packing train.sample_packing"},
    {.key = "data.loss_on",
     .type = Type::kChoice,
     .def = "assistant",
     .doc = "Which tokens carry loss: the assistant's turns with their end token, or all. With "
            "training.loss = \"orpo\" the default is all: the cross entropy that it adds is of "
            "prompt and answer.",
     .choices = "assistant|all"},
    {.key = "data.chat_template",
     .def = "",
     .doc = "A Jinja chat template (its text) in place of the model's own, or the name of one of "
            "the model's named templates.",
     .is_text = true,
     .aliases = "chat_template"},
    {.key = "data.template_date",
     .derived = "the day of the submission (UTC); of kind = \"serve\", that of each question",
     .doc = "The day that a template prints which asks for today's (strftime_now), as in "
            "\"2026-11-26\". A job keeps it, so that its rows are the same tokens on whatever day "
            "it goes on.",
     .takes_date = true,
     .aliases = "template_date",
     .since = 2},
    {.key = "data.template_arguments",
     .type = Type::kList,
     .def = "",
     .doc =
         "What else the template is given, by the names that it has for it: a table, "
         "[data.template_arguments] with reasoning_effort = \"high\" or enable_thinking = false, "
         "or a list of \"reasoning_effort=high\" (what is JSON after the = is that, else text). "
         "chat_template_kwargs of a row go before it. A job that answers with what another has "
         "trained has that one's.",
     .max = 100,
     .may_be_empty = true,
     .takes_table = true,
     .aliases = "template_arguments data.chat_template_kwargs chat_template_kwargs",
     .since = 2},
    {.key = "data.max_examples",
     .type = Type::kInt,
     .def = "0",
     .doc = "Trains on the first N rows only; 0: on all of them. `submit --examples N` sets it.",
     .min = 0,
     .max = 1e15,
     .aliases = "examples data.examples"},
    {.key = "data.on_bad_rows",
     .type = Type::kChoice,
     .def = "error",
     .doc =
         "A row that cannot be used (no answer, unknown form): end the job, or skip and count it.",
     .choices = "error|skip"},
    {.key = "data.on_long_rows",
     .type = Type::kChoice,
     .def = "error",
     .doc = "A row longer than sequence_length: end the job; skip it; keep its first or its last "
            "tokens (truncate_right, truncate_left); leave out turns of a conversation, or tokens "
            "of a text, between its start and its end (truncate_middle); or train on all of it in "
            "pieces (split: whole turns of a conversation, windows of a text). All is counted. A "
            "row that would lose every token with loss is one of on_bad_rows.",
     .choices = "error|skip|truncate_right|truncate_left|truncate_middle|split",
     .newer_choices = "truncate_right|truncate_left|truncate_middle|split",
     .newer_since = 2},
    {.key = "data.split_overlap",
     .type = Type::kInt,
     .def = "64",
     .doc = "With on_long_rows = \"split\": the tokens before a piece of a text that it begins "
            "with, as context without loss; at most half of sequence_length.",
     .min = 1,
     .max = 65536,
     .since = 2},
    {.key = "data.alpaca_prompt",
     .type = Type::kChoice,
     .def = "template",
     .doc = "How rows of instruction, input and output are asked: through the chat template, or "
            "as the text of Stanford's Alpaca, \"### Instruction:\" and \"### Response:\", "
            "without one: for a base model, or one that was trained so.",
     .choices = "template|stanford",
     .since = 2},
    {.key = "data.text_documents",
     .type = Type::kChoice,
     .def = "whole",
     .doc = "What is a document, with a start and an end of its own, of rows of text and of .txt "
            "and .md files: all of it, or each part between blank lines.",
     .choices = "whole|blank_lines",
     .since = 2},
    {.key = "data.columns",
     .type = Type::kList,
     .def = "",
     .doc = "Columns of the data that stand for those of a form: \"prompt=ask\" takes the column "
            "ask for the prompt. Forms are made of messages, conversations, prompt, completion, "
            "instruction, input, output, system, history, question, answer, tools and text.",
     .may_be_empty = true,
     .since = 2},
    {.key = "data.roles",
     .type = Type::kList,
     .def = "",
     .doc = "Roles of the data that stand for known ones: \"user=customer\". Roles are system, "
            "developer, user, assistant and tool; human, gpt and the like are known.",
     .may_be_empty = true,
     .since = 2},

    {.key = "checkpoint.save_strategy",
     .type = Type::kChoice,
     .derived = "steps where only save_steps is given, else time",
     .doc = "When the training state is saved, so that the job continues exactly from there after "
            "a failure: every save_minutes, every save_steps, at the end of each epoch, or only on "
            "request. The result is always delivered at the end.",
     .choices = "no|steps|epoch|time",
     .synonyms = "none=no",
     .since = 2,
     .before = "no"},
    {.key = "checkpoint.save_steps",
     .type = Type::kInt,
     .def = "500",
     .doc = "Optimizer steps between two checkpoints with save_strategy = \"steps\".",
     .min = 1,
     .max = 1e9},
    {.key = "checkpoint.save_minutes",
     .type = Type::kFloat,
     .def = "15",
     .doc = "Minutes between two checkpoints with save_strategy = \"time\".",
     .min = 0,
     .max = 1e6,
     .above_min = true,
     .since = 2},
    {.key = "checkpoint.save_total_limit",
     .type = Type::kInt,
     .def = "3",
     .doc = "Number of checkpoints kept, oldest removed first; 0: all. The best one is kept as "
            "well with save_best_model_at_end.",
     .min = 0,
     .max = 1e6},
};

}  // namespace

std::span<const Field> JobFields() { return kJobTable; }

}  // namespace sft::spec
