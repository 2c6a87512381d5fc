"""INT8 golden: one of the weights of the NF4 goldens with what int8.py's definition makes of it."""

from safetensors.torch import load_file, save_file

import torch

import int8

NAME = "100x200"


def make(out, goldens):
    out.mkdir(parents=True)
    weight = load_file(goldens / "nf4" / f"{NAME}.safetensors")["weight"]
    codes, scale = int8.quantize(weight)
    save_file({"codes": codes, "scale": scale,
               "dequantized": int8.dequantize((codes, scale)).to(torch.bfloat16)},
              out / f"{NAME}.safetensors")
    print(f"int8/{NAME}")
