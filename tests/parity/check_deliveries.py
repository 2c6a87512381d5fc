#!/usr/bin/env python3
"""Reads the adapters of many tiny models with peft and compares logits with the engine's.

    check_deliveries.py FOLDER CASE...

FOLDER holds models/CASE, adapters/CASE and CASE.logits (of `sft-rank logits`), as the test of the
families through the service leaves them. The exit status is 1 if one case does not agree.
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import load_file

import check_peft

TOLERANCE = 1e-4  # of the largest logit


def blocks_to_rows(scales, block, rows, columns):
    return scales.repeat_interleave(block, 0)[:rows].repeat_interleave(block, 1)[:, :columns]


def load_fp8(folder, config):
    """De-quantised by hand: transformers reads no blocks that end early."""
    block = config.pop("quantization_config")["weight_block_size"][0]
    stored = load_file(folder / "model.safetensors")
    weights = {name: tensor.float() for name, tensor in stored.items() if not name.endswith("_scale_inv")}
    for name in weights:
        if f"{name}_scale_inv" in stored:
            scales = stored[f"{name}_scale_inv"].float()
            weights[name] = weights[name] * blocks_to_rows(scales, block, *weights[name].shape)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(config.pop("model_type"), **config), dtype=torch.float32,
        attn_implementation="eager")
    missing = model.load_state_dict(weights, strict=False)
    if missing.unexpected_keys or set(missing.missing_keys) - {"lm_head.weight"}:
        raise ValueError(f"{folder}: {missing}")
    model.tie_weights()
    return model.eval()


def load_model(folder):
    config = json.loads((folder / "config.json").read_text())
    if config.get("quantization_config", {}).get("quant_method") == "fp8":
        return load_fp8(folder, config)
    # Experts in MXFP4 are bfloat16 once transformers has de-quantised them, whatever is asked for.
    kind = transformers.AutoModelForImageTextToText if "vision_config" in config else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                 experts_implementation="eager")
    if config.get("quantization_config", {}).get("quant_method") == "mxfp4":
        model = model.float()
    return model.eval()


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(2)
    folder, failed = pathlib.Path(sys.argv[1]), []
    for case in sys.argv[2:]:
        try:
            model = check_peft.load_adapter(load_model(folder / "models" / case), folder / "adapters" / case)
            computed = folder / f"{case}.logits"
            worst, size = check_peft.compare(model, check_peft.tensor(computed, "input_ids"),
                                             check_peft.tensor(computed, "logits"))
            print(f"{case}: largest difference of a logit {worst:.2e}, largest logit {size:.1f}")
            if not worst <= TOLERANCE * max(size, 1):
                failed.append(case)
        except (OSError, ValueError, RuntimeError) as error:
            print(f"{case}: {error}")
            failed.append(case)
    if failed:
        sys.exit(f"check_deliveries: not as the engine computes: {', '.join(failed)}")


if __name__ == "__main__":
    main()
