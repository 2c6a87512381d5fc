"""Five optimizer steps of a tiny model: full fine-tuning, LoRA and QLoRA.

Each step takes the two rows of rows.safetensors again, in float32, with torch's AdamW at a constant
rate without decay or clipping. Adapters start as in the folder's adapter/; the base of QLoRA is what
NF4 with double quantisation stands for (nf4.py).
"""

import json
import math

import peft
import torch

import experts
import nf4
from losses import causal_loss

STEPS = 5
LEARNING_RATE = 1e-3


def quantise_linears(model, linears):
    """Replaces the weights of the linears called so by what their NF4 form stands for. Conv1D of GPT-2
    is stored as [inputs, outputs]; bitsandbytes has its codes in the order of a linear's."""
    with torch.no_grad():
        for name, module in model.named_modules():
            if name.rsplit(".", 1)[-1] not in linears or "vision" in name:
                continue
            transposed = type(module).__name__ == "Conv1D"
            weight = module.weight.t().contiguous() if transposed else module.weight
            value = nf4.dequantize(nf4.quantize(weight))
            module.weight.copy_(value.t() if transposed else value)


def quantise(model, linears):
    """The same, and stacks of experts."""
    quantise_linears(model, linears)
    with torch.no_grad():
        experts.quantise(model, lambda stack: nf4.dequantize(nf4.quantize(stack)))


def train(model, input_ids, labels):
    """(loss, norm of all gradients) of each step, both before its update."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.0)
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = causal_loss(model(input_ids=input_ids).logits, labels)
        loss.backward()
        squares = sum(p.grad.double().square().sum() for p in trained if p.grad is not None)
        losses.append(loss.item())
        norms.append(math.sqrt(squares.item()))
        optimizer.step()
    return {"loss": losses, "grad_norm": norms}


def make(build, linears, input_ids, labels, folder):
    """`build` makes the case's model anew; `linears`: names of the blocks' linear layers."""
    result = {"learning_rate": LEARNING_RATE, "fft": train(build(), input_ids, labels)}
    for kind in ("lora", "qlora"):
        model = build()
        if kind == "qlora":
            quantise(model, linears)
        adapted = peft.PeftModel.from_pretrained(model, folder / "adapter", is_trainable=True)
        result[kind] = train(adapted.train(), input_ids, labels)
    (folder / "steps.json").write_text(json.dumps(result, indent=2) + "\n")
