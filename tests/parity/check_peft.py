#!/usr/bin/env python3
"""Checks that what a job delivers loads in transformers and peft and computes what the engine did.

    check_peft.py --model DIR [--adapter DIR] [--nf4] --tokens FILE --logits FILE [--tolerance 1e-3]

--tokens: safetensors with input_ids, int64 [rows, length]; --logits: safetensors with the engine's
logits, float32 [rows, length, vocab], for the same rows. They may be one file. With --adapter, peft
loads it over the model; without, the model itself is what was trained. --nf4 computes with the
de-quantised 4-bit form of the model's blocks, as a QLoRA job does. Every logit must agree within the
tolerance, absolutely; the exit status is 1 if one does not.

Needs deploy/requirements/parity.txt.
"""

import argparse
import os
import pathlib
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import load_file

import experts
import nf4

BLOCK_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def tensor(path, name):
    tensors = load_file(path)
    if name not in tensors:
        raise ValueError(f"{path} holds no tensor {name}; it has {sorted(tensors)}")
    return tensors[name]


def load_model(folder, use_nf4):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    if use_nf4:
        linears = tuple(f".{linear}.weight" for linear in BLOCK_LINEARS)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(linears) or experts.is_stack(name):
                    parameter.copy_(nf4.dequantize(nf4.quantize(parameter)))
    return model.eval()


def compute_in_float32(model):
    """Products of bitsandbytes' 4-bit weights, where a checkpoint has them, as of all other weights."""
    for module in model.modules():
        if type(module).__name__ == "Linear4bit":
            module.compute_dtype = torch.float32
            module.weight.quant_state.dtype = torch.float32  # of the weights that peft asks for (DoRA)
            module.train()  # else they are packed anew, for products in bfloat16, on some CPUs
    return model


def load_adapter(model, folder):
    """The adapter over the model; every file's tensor must have found its place."""
    import peft

    wrapped = peft.PeftModel.from_pretrained(model, folder)
    kept = load_file(pathlib.Path(folder) / "adapter_model.safetensors")
    loaded = peft.get_peft_model_state_dict(wrapped)
    if kept.keys() != loaded.keys():
        raise ValueError(f"peft uses other tensors than {folder} holds: "
                         f"{sorted(kept.keys() ^ loaded.keys())[:5]}")
    for name, value in kept.items():
        if not torch.equal(loaded[name].float(), value.float()):
            raise ValueError(f"peft has other values than {folder} for {name}")
    if not any(value.any() for name, value in kept.items() if "lora_B" in name):
        raise ValueError(f"{folder}: every B is zero: nothing was trained")
    return wrapped.eval()


def compare(model, input_ids, ours):
    compute_in_float32(model)
    with torch.no_grad():
        theirs = model(input_ids=input_ids).logits
    if theirs.shape != ours.shape:
        raise ValueError(f"the logits have the shape {list(ours.shape)}, expected "
                         f"{list(theirs.shape)}")
    return (theirs - ours.float()).abs().max().item(), theirs.abs().max().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter")
    parser.add_argument("--nf4", action="store_true")
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--logits", required=True)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    args = parser.parse_args()
    try:
        model = load_model(args.model, args.nf4)
        if args.adapter:
            model = load_adapter(model, args.adapter)
        worst, size = compare(model, tensor(args.tokens, "input_ids"), tensor(args.logits, "logits"))
    except (OSError, ValueError, RuntimeError) as error:
        sys.exit(f"check_peft: {error}")
    print(f"largest difference of a logit {worst:.2e} (tolerance {args.tolerance:.0e}; "
          f"largest logit {size:.1f})")
    if not worst <= args.tolerance:
        sys.exit("check_peft: the logits do not agree")


if __name__ == "__main__":
    main()
