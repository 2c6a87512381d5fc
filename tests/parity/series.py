"""Twenty optimizer steps of SmolLM2-135M-Instruct with transformers, peft and torch's AdamW.

One step takes four rows of 64 tokens. What is fixed, so that the engine can do the same: the tokens and
labels (goldens/series/tokens.safetensors), the initial adapter (initial_a below), the learning rate
1e-3, AdamW with betas 0.9 and 0.999, epsilon 1e-8, no weight decay; float32 throughout. The loss of a
step is taken before its update. SERIES says what differs between the series; README.md says why full
fine-tuning has two.
"""

import json
import math
import shutil

import numpy
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import int8
import nf4
from losses import causal_loss

STEPS, ROWS, LENGTH = 20, 4, 64
LEARNING_RATE = 1e-3
# kind: learning rate of each step, and the norm that gradients are clipped to (0: never). Of "fft",
# the rate rises to LEARNING_RATE over ten steps and falls linearly to a tenth of it over ten.
CONSTANT = [LEARNING_RATE] * STEPS
RISE_AND_FALL = [LEARNING_RATE * min(t, STEPS + 1 - t) / 10 for t in range(1, STEPS + 1)]
SERIES = {"lora": (CONSTANT, 0.0), "qlora": (CONSTANT, 0.0), "lora_8bit": (CONSTANT, 0.0),
          "fft": (RISE_AND_FALL, 1.0), "fft_constant": (CONSTANT[:8], 0.0)}
# Forms of the frozen base, where it is not the plain weights.
QUANTISED = {"qlora": nf4, "lora_8bit": int8}
LORA_RANK, LORA_ALPHA = 8, 16
LORA_SEED = 0x5F7
# Labels masked at the start of the four rows: the number of targets differs between rows.
MASKED = [0, 16, 32, 0]
# In the order in which the initial adapter numbers its tensors.
LINEARS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


def make_tokens(model_folder, training_rows, path):
    """Cuts conversations, rendered by the model's template and joined, into rows. Done once: the file
    is an input of the series, not a result."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    rows = [json.loads(line) for line in training_rows.read_text().splitlines()]
    text = "".join(tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in rows)
    size = STEPS * ROWS * LENGTH
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][:size]
    input_ids = torch.tensor(ids).reshape(STEPS, ROWS, LENGTH)
    labels = input_ids.clone()
    for row, masked in enumerate(MASKED):
        labels[:, row, :masked] = -100
    save_file({"input_ids": input_ids, "labels": labels}, path)


def splitmix64(x):
    """The finalizer of SplitMix64, for an array of uint64."""
    with numpy.errstate(over="ignore"):
        x = x + numpy.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return x ^ (x >> numpy.uint64(31))


def initial_a(layer, linear, in_features):
    """The initial A [r, in] of one linear: uniform within 1 / sqrt(in), as kaiming_uniform(a=sqrt(5)).

    Value k of tensor t = layer * 7 + position in LINEARS:
    u = splitmix64(LORA_SEED + (t << 32) + k) >> 40, A = (2u / 2^24 - 1) * float32(1 / sqrt(in)).
    """
    tensor = layer * len(LINEARS) + LINEARS.index(linear)
    base = numpy.uint64(LORA_SEED + (tensor << 32))
    k = numpy.arange(LORA_RANK * in_features, dtype=numpy.uint64)
    u = (splitmix64(base + k) >> numpy.uint64(40)).astype(numpy.float32)
    bound = numpy.float32(1 / math.sqrt(in_features))
    values = (u * numpy.float32(2**-23) - numpy.float32(1)) * bound
    return torch.from_numpy(values.reshape(LORA_RANK, in_features))


def load_base(model_folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        model_folder, dtype=torch.float32, attn_implementation="eager").train()


def linears_of(model):
    """(layer, name in LINEARS, module) of each linear of the blocks."""
    for layer, block in enumerate(model.model.layers):
        for name in LINEARS:
            yield layer, name, block.get_submodule(name)


def quantize_base(model, form):
    """Replaces the blocks' linears by what their quantised form stands for."""
    with torch.no_grad():
        for _, _, linear in linears_of(model):
            linear.weight.copy_(form.dequantize(form.quantize(linear.weight)))


def add_lora(model):
    config = peft.LoraConfig(
        r=LORA_RANK, lora_alpha=LORA_ALPHA, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
        target_modules=[name.split(".")[1] for name in LINEARS])
    wrapped = peft.get_peft_model(model, config)
    with torch.no_grad():
        for layer, name, module in linears_of(model):
            module.lora_A["default"].weight.copy_(initial_a(layer, name, module.in_features))
            module.lora_B["default"].weight.zero_()
    return wrapped


def train(model, tokens, rates, max_grad_norm):
    """(loss, gradient norm before clipping) of each step."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, betas=(0.9, 0.999), eps=1e-8,
                                  weight_decay=0.0)
    losses, norms = [], []
    for rate, input_ids, labels in zip(rates, tokens["input_ids"], tokens["labels"]):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        loss = causal_loss(model(input_ids=input_ids).logits, labels)
        loss.backward()
        squares = sum(p.grad.double().square().sum() for p in trained if p.grad is not None)
        losses.append(loss.item())
        norms.append(math.sqrt(squares.item()))
        if max_grad_norm:
            torch.nn.utils.clip_grad_norm_(trained, max_grad_norm)
        optimizer.step()
    return losses, norms


def make_series(kind, model_folder, tokens, out):
    torch.manual_seed(0)
    model = load_base(model_folder)
    if kind in QUANTISED:
        quantize_base(model, QUANTISED[kind])
    if not kind.startswith("fft"):
        model = add_lora(model)
    if kind == "lora":
        # 5 MB: for people to look at; tests compute it with initial_a.
        model.save_pretrained(out / "initial_adapter")
    rates, max_grad_norm = SERIES[kind]
    losses, norms = train(model, tokens, rates, max_grad_norm)
    lora = {"r": LORA_RANK, "alpha": LORA_ALPHA} if not kind.startswith("fft") else None
    (out / f"{kind}.json").write_text(json.dumps({
        "kind": kind, "learning_rate": rates, "max_grad_norm": max_grad_norm, "lora": lora,
        "loss": losses, "grad_norm": norms}, indent=2) + "\n")
    print(f"series/{kind}: loss {losses[0]:.4f} -> {losses[-1]:.4f}", flush=True)


def make(out, goldens, model_folder, training_rows):
    out.mkdir(parents=True, exist_ok=True)
    kept = goldens / "series" / "tokens.safetensors"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        make_tokens(model_folder, training_rows, kept)
    shutil.copyfile(kept, out / kept.name)
    tokens = load_file(kept)
    for kind in SERIES:
        make_series(kind, model_folder, tokens, out)
