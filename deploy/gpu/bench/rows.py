"""What the benchmark can run: one table of rows, the settings of each, and what each should reach."""

import dataclasses
import random
import re

# Keys of the resolved job for options that only some settings use.
KEY_MATMUL = "training.matmul"
KEY_DETERMINISTIC = "training.deterministic"
KEY_BUDGET = "compute.memory_budget_gb"
KEY_PACKING = "data.packing"
KEY_TARGETS = "lora.target_modules"
KEY_LENGTH = "hyperparameters.sequence_length"
KEY_ROWS = "hyperparameters.global_batch"
KEY_SHARDING = "hyperparameters.parallelism.sharding"
KEY_OFFLOAD = "hyperparameters.parallelism.offload_optimizer"
KEY_OPTIMIZER = "hyperparameters.optimizer"
KEY_MASTER = "hyperparameters.master_weights"

# The loss of step 1 against the plain path's, relative. bf16: another order of sums and another
# attention kernel. FP8: e4m3 keeps three bits of mantissa; over the thousands of terms of a product
# and the tokens of a step the rounding averages out to well below one part in a hundred.
TOLERANCE_BF16 = 1e-3
TOLERANCE_FP8 = 1e-2


@dataclasses.dataclass(frozen=True)
class Ours:
    """A setting of sft-rank. `job` holds keys of the resolved job as "table.key"."""
    name: str
    batch: int = 0  # rows of one rank in one micro-step; 0: the plan's choice
    checkpointing: bool = False
    job: dict = dataclasses.field(default_factory=dict)
    gpus: int = 0  # 0: the row's; fewer keep the tokens of one GPU
    tolerance: float = TOLERANCE_BF16


@dataclasses.dataclass(frozen=True)
class Peer:
    """A setting of a peer: peer_qlora.py, peer_moe.py, peer_fft.py or peer_hf.py with these values."""
    name: str
    program: str
    batch: int
    checkpointing: bool
    options: tuple = ()
    default: bool = False  # what its documentation would have a user run
    layout: str = "full"  # of a row with chat_lengths: packed, padded or grouped (chat_rows.py)


@dataclasses.dataclass(frozen=True)
class Goal:
    """kind: best_peer, default_peer (ratio to a peer of this row), setting (ratio to the setting
    `subject` of ours), each_peer_memory (ratio to each peer within its memory), tokens_per_second, mfu,
    memory_gb (at most), memory_below (GB below `subject`), first_step_s (at most), val_loss (within
    that share of `subject`), val_fall (share by which `setting` lowers validation loss).
    `setting` limits the goal to one setting of ours; "" takes the fastest that is correct."""
    kind: str
    target: float
    subject: str = ""
    setting: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    model: str  # a size of make_random_model.py, or "demo" for the demo's model
    mode: str   # qlora, lora or full
    seq: int
    tokens: int  # of an optimizer step over all GPUs
    gpus: int
    ours: tuple
    peers: tuple = ()
    goals: tuple = ()
    steps: int = 0  # 0: --steps
    learn_tokens: int = 0  # tokens a step with --learn; 0: tokens
    validation: bool = False  # the demo's rows, whole data set, validation loss before and after
    # Rows as long as those of a chat data set (chat_rows.py), which ours packs; speed is that of tokens that carry
    # loss. A step of a peer that pads has as many rows as fill `tokens` on average.
    chat_lengths: bool = False
    device: str = "cuda"


def unsloth(batch, checkpointing, default=False):
    how = "checkpointing" if checkpointing else "none recomputed"
    return Peer(f"Unsloth NF4, batch {batch}, {how}", "qlora", batch, checkpointing, (), default)


def unsloth_bf16(batch, checkpointing, default=False):
    how = "checkpointing" if checkpointing else "none recomputed"
    return Peer(f"Unsloth bf16, batch {batch}, {how}", "qlora", batch, checkpointing, ("--base", "bf16"), default)


def unsloth_chat(layout, batch, checkpointing, default=False):
    how = "checkpointing" if checkpointing else "none recomputed"
    words = {"packed": "packed", "padded": "padded", "grouped": "padded by like lengths"}[layout]
    return Peer(f"Unsloth NF4, {words}, batch {batch}, {how}", "qlora", batch, checkpointing, (), default, layout)


def fsdp2(batch, checkpointing, weights):
    how = "checkpointing" if checkpointing else "none recomputed"
    return Peer(f"FSDP2 + compile, batch {batch}, {how}", "fft", batch, checkpointing,
                ("--compile", "--weights", weights))


def moe_peer(engine, words, base, batch, checkpointing, adapters="experts", default=False):
    how = "checkpointing" if checkpointing else "none recomputed"
    return Peer(f"{words} {base}, batch {batch}, {how}", "moe", batch, checkpointing,
                ("--engine", engine, "--base", base, "--adapters", adapters), default)


def unsloth_moe(base, batch, checkpointing, adapters="experts", default=False):
    return moe_peer("unsloth", "Unsloth", base, batch, checkpointing, adapters, default)


def peft_moe(batch, checkpointing):
    return moe_peer("peft", "transformers + PEFT", "bf16", batch, checkpointing)


def compiled(method, batch, checkpointing):
    how = "checkpointing" if checkpointing else "none recomputed"
    return Peer(f"transformers + compile, batch {batch}, {how}", "hf", batch, checkpointing,
                ("--method", method))


FP8 = {KEY_MATMUL: "fp8"}
FP8_BF16_WGRAD = {KEY_MATMUL: "fp8_bf16_wgrad"}
ANY_ORDER = {KEY_DETERMINISTIC: False}
FIXED_AS_FAST = Goal("setting", 0.99, subject="bf16 any order", setting="bf16")
UNSLOTH_8B = (unsloth(2, True, default=True), unsloth(2, False), unsloth(4, False))
UNSLOTH_32B = (unsloth(1, True, default=True), unsloth(1, False), unsloth(2, False))
FSDP_FP32 = {**ANY_ORDER, KEY_SHARDING: "full_shard", KEY_OPTIMIZER: "adamw", KEY_MASTER: "fp32"}
FSDP_BF16 = {**ANY_ORDER, KEY_SHARDING: "full_shard", KEY_OPTIMIZER: "adamw_bf16", KEY_MASTER: "bf16"}


def budgets(seq):
    """Cards of 24 and 48 GB: ours within their memory beside what the peer's documentation would have a user run."""
    ours = tuple(Ours(f"within {gb} GB", job={KEY_BUDGET: gb}) for gb in (24, 48))
    goals = tuple(Goal("default_peer", 1.1, setting=each.name) for each in ours)
    return Row(f"qlora-8b-budgets-seq{seq}", "qwen3-8b", "qlora", seq, 16384, 1, ours,
               (unsloth(2 if seq < 16384 else 1, True, default=True),), goals)


# States in bf16: those in fp32 leave an 8B no room on one GPU.
FULL_BF16 = {KEY_OPTIMIZER: "adamw_bf16", KEY_MASTER: "bf16"}
FULL_FP8 = (Ours("bf16", job=FULL_BF16),
            Ours("fp8, bf16 weight gradients", job={**FULL_BF16, **FP8_BF16_WGRAD}, tolerance=TOLERANCE_FP8),
            Ours("fp8", job={**FULL_BF16, **FP8}, tolerance=TOLERANCE_FP8))
FULL_FP8_GOALS = (Goal("setting", 1.35, subject="bf16", setting="fp8"),
                  Goal("setting", 1.2, subject="bf16", setting="fp8, bf16 weight gradients"))

# Adapters of mixtures of experts: attention's alone, and experts' too.
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ON_ATTENTION = {KEY_TARGETS: ATTENTION}
ON_EXPERTS = {KEY_TARGETS: [*ATTENTION, "mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
EXPERTS = (Ours("bf16", job=ON_EXPERTS),)
EXPERTS_FP8 = (*EXPERTS, Ours("fp8", job={**ON_EXPERTS, **FP8}, tolerance=TOLERANCE_FP8))
FP8_OF_EXPERTS = Goal("setting", 1.2, subject="bf16", setting="fp8")

# Adapters on every linear of a model with gated DeltaNets, as peer_qlora.py has them.
HYBRID = {KEY_TARGETS: [*ATTENTION, "gate_proj", "up_proj", "down_proj", "in_proj_qkv", "in_proj_z", "in_proj_b",
                        "in_proj_a", "out_proj"]}

# One row whose tokens are cut over GPUs; beside qlora-8b-seq131072, which is on one.
def shared(name, model, seq, gpus):
    return Row(name, model, "qlora", seq, seq, gpus,
               (Ours(f"context {gpus}", job={"hyperparameters.parallelism.context_parallel_size": gpus}),), (), ())


def divided(name, model, seq, tokens, gpus):
    """Every layout of the same step: what the plan's order of them is held against."""
    axes = {f"{axis} {gpus}": {f"hyperparameters.parallelism.{axis}_parallel_size": gpus}
            for axis in ("tensor", "context", "pipeline")}
    layouts = {"whole models": {}, "full_shard": {KEY_SHARDING: "full_shard"}, **axes}
    return Row(name, model, "qlora", seq, tokens, gpus, tuple(Ours(words, job=job) for words, job in layouts.items()))


# The same rows over stages, and with a whole model on each GPU.
def staged(name, model, seq, tokens, gpus):
    stages = {"hyperparameters.parallelism.pipeline_parallel_size": gpus}
    return Row(name, model, "qlora", seq, tokens, gpus,
               (Ours("whole models"), Ours(f"{gpus} stages", job=stages),
                Ours(f"{gpus} stages in two pieces each",
                     job={**stages, "hyperparameters.parallelism.virtual_pipeline_parallel_size": 2})), (), ())


SCALING = (Ours("one GPU", gpus=1), Ours("two GPUs", gpus=2), Ours("four GPUs"))
SCALING_GOALS = (Goal("setting", 1.95, subject="one GPU", setting="two GPUs"),
                 Goal("setting", 3.9, subject="one GPU", setting="four GPUs"))

ROWS = (
    Row("qlora-8b-seq2048", "qwen3-8b", "qlora", 2048, 16384, 1,
        (Ours("bf16"), Ours("bf16 any order", job=ANY_ORDER)), UNSLOTH_8B,
        (Goal("best_peer", 1.15), Goal("each_peer_memory", 1.1), FIXED_AS_FAST)),
    Row("qlora-0.6b-seq2048", "qwen3-0.6b", "qlora", 2048, 16384, 1,
        (Ours("bf16"),),
        (unsloth(2, True, default=True), unsloth(4, False), unsloth(8, False)),
        (Goal("default_peer", 3.0), Goal("best_peer", 1.0))),
    # Steps that the host's launches may hold back.
    Row("qlora-0.6b-four-short-rows", "qwen3-0.6b", "qlora", 512, 2048, 1,
        (Ours("bf16"),), (unsloth(2, True, default=True), unsloth(4, False)), (Goal("best_peer", 1.0),)),
    Row("qlora-0.6b-one-short-row", "qwen3-0.6b", "qlora", 512, 512, 1,
        (Ours("bf16"),), (unsloth(1, False),), (Goal("best_peer", 1.0),)),
    Row("qlora-32b-seq4096", "qwen3-32b", "qlora", 4096, 16384, 1,
        (Ours("bf16"), Ours("bf16 any order", job=ANY_ORDER)), UNSLOTH_32B,
        (Goal("best_peer", 1.15), Goal("first_step_s", 25), FIXED_AS_FAST)),
    *(budgets(seq) for seq in (2048, 4096, 8192, 16384)),
    # Rows as people have them: many short ones, a few long.
    Row("qlora-0.6b-chat-lengths", "qwen3-0.6b", "qlora", 4096, 32768, 1, (Ours("packed"),),
        (unsloth_chat("padded", 8, True, default=True), unsloth_chat("padded", 8, False),
         unsloth_chat("grouped", 8, True), unsloth_chat("packed", 1, False), unsloth_chat("packed", 4, False)),
        (Goal("default_peer", 3.0), Goal("best_peer", 1.15)), chat_lengths=True),
    Row("qlora-8b-chat-lengths", "qwen3-8b", "qlora", 4096, 32768, 1, (Ours("packed"),),
        (unsloth_chat("padded", 8, True, default=True), unsloth_chat("grouped", 8, True),
         unsloth_chat("padded", 2, False), unsloth_chat("packed", 1, False), unsloth_chat("packed", 2, False)),
        (Goal("default_peer", 1.5), Goal("best_peer", 1.15)), chat_lengths=True),
    Row("qlora-32b-chat-lengths", "qwen3-32b", "qlora", 4096, 16384, 1, (Ours("packed"),),
        (unsloth_chat("padded", 4, True, default=True), unsloth_chat("grouped", 4, True),
         unsloth_chat("packed", 1, False), unsloth_chat("packed", 2, False)),
        (Goal("default_peer", 1.5), Goal("best_peer", 1.15)), chat_lengths=True),
    # Rows of one long document.
    Row("qlora-8b-seq32768", "qwen3-8b", "qlora", 32768, 32768, 1,
        (Ours("bf16"), Ours("bf16 any order", job=ANY_ORDER)), (unsloth(1, True, default=True),),
        (Goal("best_peer", 1.35), Goal("each_peer_memory", 1.05))),
    Row("qlora-8b-seq65536", "qwen3-8b", "qlora", 65536, 65536, 1,
        (Ours("bf16"), Ours("bf16 any order", job=ANY_ORDER)), (unsloth(1, True, default=True),),
        (Goal("best_peer", 1.3), Goal("each_peer_memory", 1.05))),
    Row("qlora-8b-seq131072", "qwen3-8b", "qlora", 131072, 131072, 1,
        (Ours("bf16"),), (unsloth(1, True, default=True),),
        (Goal("best_peer", 1.3), Goal("tokens_per_second", 3200))),
    # Buffers of more than 2^31 elements, against the same documents one by one.
    Row("qlora-8b-packed-524288", "qwen3-8b", "qlora", 16384, 524288, 1,
        (Ours("one by one"), Ours("packed", job={KEY_PACKING: True, KEY_LENGTH: 524288, KEY_ROWS: 1})), (),
        (Goal("tokens_per_second", 1, setting="packed"),), steps=1),
    Row("qlora-32b-seq131072", "qwen3-32b", "qlora", 131072, 131072, 1,
        (Ours("bf16"),), (), (Goal("tokens_per_second", 700),), steps=1),
    Row("qlora-14b-seq8192", "qwen3-14b", "qlora", 8192, 16384, 1,
        (Ours("bf16"), Ours("bf16 any order", job=ANY_ORDER)),
        (unsloth(1, False), unsloth(2, False)), (Goal("best_peer", 1.07),)),
    Row("qlora-32b-seq4096-four-gpus", "qwen3-32b", "qlora", 4096, 65536, 4,
        (Ours("one GPU", gpus=1, job=ANY_ORDER), Ours("four GPUs", job=ANY_ORDER)), (),
        (Goal("setting", 3.9, subject="one GPU", setting="four GPUs"),)),
    # Data parallel, the same work a GPU on one, two and four.
    Row("qlora-8b-seq2048-four-gpus", "qwen3-8b", "qlora", 2048, 65536, 4, SCALING, (), SCALING_GOALS),
    Row("qlora-1b-seq2048-four-gpus", "llama-1b", "qlora", 2048, 65536, 4, SCALING, (), SCALING_GOALS),
    staged("qlora-0.6b-seq2048-two-stages", "qwen3-0.6b", 2048, 32768, 2),
    staged("qlora-8b-seq2048-two-stages", "qwen3-8b", 2048, 65536, 2),
    staged("qlora-70b-seq4096-four-stages", "llama-70b", 4096, 262144, 4),
    shared("qlora-8b-seq131072-two-gpus", "qwen3-8b", 131072, 2),
    shared("qlora-8b-seq131072-four-gpus", "qwen3-8b", 131072, 4),
    shared("qlora-8b-seq524288-four-gpus", "qwen3-8b", 524288, 4),
    shared("qlora-32b-seq131072-four-gpus", "qwen3-32b", 131072, 4),
    divided("qlora-32b-small-steps-two-gpus", "qwen3-32b", 1024, 2048, 2),
    divided("qlora-32b-small-steps-four-gpus", "qwen3-32b", 512, 2048, 4),
    Row("qlora-8b-seq500000-within-80gb", "qwen3-8b", "qlora", 500000, 500000, 1,
        (Ours("within 80 GB", job={KEY_BUDGET: 80}),)),
    Row("qlora-32b-seq4096-fp8", "qwen3-32b", "qlora", 4096, 16384, 1,
        (Ours("fp8", job=FP8, tolerance=TOLERANCE_FP8),
         Ours("fp8 any order", job={**FP8, **ANY_ORDER}, tolerance=TOLERANCE_FP8)), UNSLOTH_32B,
        (Goal("best_peer", 1.5),)),
    Row("qlora-8b-seq2048-fp8", "qwen3-8b", "qlora", 2048, 16384, 1,
        (Ours("fp8", job=FP8, tolerance=TOLERANCE_FP8),), UNSLOTH_8B,
        (Goal("best_peer", 1.4),)),
    Row("full-8b-seq4096-four-gpus", "qwen3-8b", "full", 4096, 65536, 4,
        (Ours("fp32 master", job=FSDP_FP32),),
        (fsdp2(2, False, "fp32"), fsdp2(4, True, "fp32")),
        (Goal("best_peer", 1.1), Goal("mfu", 0.55))),
    Row("full-32b-seq4096-four-gpus", "qwen3-32b", "full", 4096, 32768, 4,
        (Ours("bf16 master", job=FSDP_BF16),), (fsdp2(2, True, "bf16"),),
        (Goal("best_peer", 1.25), Goal("mfu", 0.55))),
    # The 8B takes an H200, the 4B fits an H100.
    Row("full-8b-seq4096-fp8", "qwen3-8b", "full", 4096, 65536, 1, FULL_FP8, (), FULL_FP8_GOALS),
    Row("full-4b-seq4096-fp8", "qwen3-4b", "full", 4096, 65536, 1, FULL_FP8, (), FULL_FP8_GOALS),
    Row("full-8b-seq4096-four-gpus-fp8", "qwen3-8b", "full", 4096, 65536, 4,
        (Ours("bf16", job=FSDP_FP32), Ours("fp8", job={**FSDP_FP32, **FP8}, tolerance=TOLERANCE_FP8)), (),
        (Goal("setting", 1.2, subject="bf16", setting="fp8"),)),
    Row("qlora-70b-seq4096-four-gpus", "llama-70b", "qlora", 4096, 524288, 4,
        (Ours("bf16", job={**ANY_ORDER, KEY_BUDGET: 119}),), (),
        (Goal("tokens_per_second", 5500), Goal("memory_gb", 120)), steps=2, learn_tokens=65536),
    Row("full-8b-seq4096-host-optimizer", "qwen3-8b", "full", 4096, 131072, 1,
        (Ours("states on the GPU", job=FULL_BF16),
         Ours("states on the host", job={KEY_OPTIMIZER: "adamw", KEY_MASTER: "fp32",
                                            KEY_OFFLOAD: True, KEY_BUDGET: 100})), (),
        (Goal("setting", 0.8, subject="states on the GPU", setting="states on the host"),
         Goal("memory_below", 20, subject="states on the GPU", setting="states on the host")),
        steps=5),
    Row("fp8-error-demo-model", "demo", "qlora", 128, 512, 1,
        (Ours("bf16"), Ours("fp8", job=FP8, tolerance=TOLERANCE_FP8)), (),
        (Goal("val_fall", 0.10, setting="bf16"),
         Goal("val_loss", 0.005, subject="bf16", setting="fp8")), steps=300, validation=True),
    Row("fp8-error-full-demo-model", "demo", "full", 128, 512, 1,
        (Ours("bf16"), Ours("fp8", job=FP8, tolerance=TOLERANCE_FP8),
         Ours("fp8, bf16 weight gradients", job=FP8_BF16_WGRAD, tolerance=TOLERANCE_FP8)), (),
        (Goal("val_fall", 0.10, setting="bf16"), Goal("val_loss", 0.01, subject="bf16", setting="fp8"),
         Goal("val_loss", 0.01, subject="bf16", setting="fp8, bf16 weight gradients")),
        steps=300, validation=True),
    Row("qlora-gemma3-27b-seq4096", "gemma3-27b", "qlora", 4096, 16384, 1,
        (Ours("bf16"), Ours("bf16 any order", job=ANY_ORDER)),
        (unsloth(1, True, default=True), unsloth(1, False), unsloth(2, False)),
        (Goal("best_peer", 1.15),)),
    Row("lora-gemma3-4b-seq2048", "gemma3-4b", "lora", 2048, 16384, 1,
        (Ours("bf16"),), (compiled("lora", 4, True), compiled("lora", 2, False), compiled("lora", 4, False)),
        (Goal("best_peer", 1.5),)),
    # Three of four layers are gated DeltaNets; the second has one row of 512 tokens a step, which the host's launches hold
    # back.
    Row("lora-qwen3.5-9b-seq4096", "qwen3.5-9b", "lora", 4096, 16384, 1, (Ours("bf16", job=HYBRID),),
        (unsloth_bf16(2, True, default=True), unsloth_bf16(1, False), unsloth_bf16(2, False)),
        (Goal("best_peer", 1.2),)),
    Row("lora-qwen3.5-9b-one-short-row", "qwen3.5-9b", "lora", 512, 512, 1, (Ours("bf16", job=HYBRID),),
        (unsloth_bf16(1, True, default=True), unsloth_bf16(1, False)), (Goal("best_peer", 3.0),)),
    Row("smoke-cpu-qwen3.5", "qwen3.5-tiny", "lora", 256, 2048, 1, (Ours("bf16", job=HYBRID),), (),
        (Goal("tokens_per_second", 1),), device="cpu"),
    Row("full-gpt2-medium-seq1024", "gpt2-medium", "full", 1024, 16384, 1,
        (Ours("bf16"),), (compiled("full", 8, False), compiled("full", 16, False)),
        (Goal("best_peer", 1.5),)),
    # Mixtures of experts. Under LoRA experts in MXFP4 are de-quantised to bf16, under QLoRA they stay as they are.
    Row("lora-experts-gpt-oss-20b", "gpt-oss-20b", "lora", 4096, 16384, 1, EXPERTS_FP8,
        (unsloth_moe("bf16", 2, True, default=True), unsloth_moe("bf16", 1, False), unsloth_moe("bf16", 2, False),
         unsloth_moe("bf16", 4, True), peft_moe(1, False), peft_moe(2, True)),
        (Goal("best_peer", 2.0, setting="bf16"), Goal("tokens_per_second", 18000, setting="bf16"),
         FP8_OF_EXPERTS)),
    Row("lora-experts-qwen3-30b-a3b", "qwen3-30b-a3b", "lora", 4096, 16384, 1, EXPERTS_FP8,
        (unsloth_moe("bf16", 2, True, default=True), unsloth_moe("bf16", 1, False), unsloth_moe("bf16", 4, True),
         peft_moe(1, True)),
        (Goal("best_peer", 2.0, setting="bf16"), Goal("tokens_per_second", 15000, setting="bf16"),
         FP8_OF_EXPERTS)),
    Row("qlora-experts-gpt-oss-20b", "gpt-oss-20b", "qlora", 4096, 16384, 1, EXPERTS,
        (unsloth_moe("packed", 2, True, default=True), unsloth_moe("packed", 2, False), unsloth_moe("packed", 4, True)),
        (Goal("best_peer", 2.0), Goal("tokens_per_second", 9000))),
    Row("qlora-experts-gpt-oss-120b", "gpt-oss-120b", "qlora", 4096, 16384, 1, EXPERTS,
        (unsloth_moe("packed", 1, True, default=True), unsloth_moe("packed", 4, True)),
        (Goal("tokens_per_second", 9000),)),
    Row("lora-gpt-oss-20b", "gpt-oss-20b", "lora", 4096, 16384, 1, (Ours("bf16", job=ON_ATTENTION),),
        (unsloth_moe("bf16", 2, True, "attention", default=True), unsloth_moe("bf16", 2, False, "attention")),
        (Goal("best_peer", 2.0),)),
    Row("lora-experts-gpt-oss-20b-four-gpus", "gpt-oss-20b", "lora", 4096, 65536, 4,
        (Ours("one GPU", gpus=1, job=ON_EXPERTS), Ours("four GPUs", job=ON_EXPERTS)), (),
        (Goal("setting", 3.9, subject="one GPU", setting="four GPUs"),)),
    Row("full-gpt-oss-20b-four-gpus", "gpt-oss-20b", "full", 4096, 65536, 4,
        (Ours("bf16 master", job=FSDP_BF16),), (), (Goal("mfu", 0.35),)),
    # All engines on models that load at once: do the peers' programs run on this machine?
    Row("smoke-experts-gpt-oss", "gpt-oss-tiny", "qlora", 1024, 4096, 1, EXPERTS,
        (unsloth_moe("packed", 2, False), unsloth_moe("bf16", 2, True), peft_moe(2, False)), ()),
    Row("smoke-experts-qwen3", "qwen3-moe-tiny", "lora", 1024, 4096, 1, EXPERTS,
        (unsloth_moe("bf16", 2, False), peft_moe(2, True)), ()),
    # Runs anywhere in seconds: shows that sft-rank accepts the jobs written here.
    *(Row(f"smoke-cpu-{model}", f"{model}-tiny", mode, 256, 2048, 1, EXPERTS, (), (Goal("tokens_per_second", 1),),
          device="cpu") for model, mode in (("gpt-oss", "qlora"), ("qwen3-moe", "lora"), ("glm4-moe", "qlora"))),
    Row("smoke-cpu-context", "qwen3-tiny", "qlora", 256, 256, 2,
        (Ours("context 2", job={"hyperparameters.parallelism.context_parallel_size": 2}),), (),
        (Goal("tokens_per_second", 1),), device="cpu"),
    Row("smoke-cpu", "qwen3-tiny", "qlora", 256, 2048, 1,
        (Ours("batch 4", 4),), (), (Goal("tokens_per_second", 1),), device="cpu"),
    Row("smoke-cpu-chat-lengths", "qwen3-tiny", "qlora", 1024, 4096, 1,
        (Ours("packed", 2),), (), (Goal("tokens_per_second", 1),), device="cpu", chat_lengths=True),
)


# What draw() chooses from. A full model's weights, gradients and states in bf16 fit one GPU up to 8B.
SIZES = {"qlora": ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "llama-8b", "qwen3-14b"),
         "lora": ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "llama-8b", "qwen3-14b"),
         "full": ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b")}
LONG, SHORT = (8192, 12288, 16384), (512, 1024, 1536, 2048, 3072, 4096, 6144)


def draw(seed):
    """Three rows of one GPU, drawn: does the plan hold for work that its constants were not taken from? The
    first is of long sequences."""
    source, drawn = random.Random(seed), []
    for index in range(3):
        mode = source.choice(sorted(SIZES))
        model = source.choice(SIZES[mode])
        seq = source.choice(SHORT if index else LONG)
        job = FULL_BF16 if mode == "full" else {"lora.r": source.choice((8, 16, 32, 64))}
        tokens = seq * max(1, source.choice((16384, 32768, 65536)) // seq)
        ours = Ours("the plan's choice", job=job)
        drawn.append(Row(f"drawn-{seed}-{index + 1}", model, mode, seq, tokens, 1, (ours,)))
    return drawn


def find_rows(names):
    """The rows of a comma-separated list, in its order; drawn-SEED is all three of draw(SEED), drawn-SEED-1 the
    first. Exits naming those that do not exist."""
    table = {row.name: row for row in ROWS}
    wanted = []
    for name in filter(None, names.split(",")):
        drawn = re.fullmatch(r"drawn-(\d+)(-\d)?", name)
        rows = draw(int(drawn[1])) if drawn else []
        table |= {row.name: row for row in rows}
        wanted += [row.name for row in rows] if drawn and not drawn[2] else [name]
    unknown = [name for name in wanted if name not in table]
    if unknown or not wanted:
        raise SystemExit(f"bench: no row {', '.join(unknown) or 'given'}; there are: {', '.join(table)}")
    return [table[name] for name in wanted]
