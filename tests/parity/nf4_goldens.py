"""NF4 goldens: bf16 weights of three shapes with what nf4.py's definition makes of them.

deploy/gpu/make_nf4_goldens.py makes the same files with bitsandbytes' CUDA kernels, from the weights
stored here; the weights are therefore inputs, drawn once and kept.
"""

import torch
from safetensors.torch import load_file, save_file

import nf4

# Names and shapes: whole blocks; more rows than columns with a partial second-level block; 20,000
# values, whose last block holds 32. All have a partial last block of absmax values.
SHAPES = {"192x320": (192, 320), "576x128": (576, 128), "100x200": (100, 200)}


def random_weight(shape, generator):
    """Rows of very different sizes, as outlier channels have, so that the absmax values spread."""
    scale = torch.exp(1.5 * torch.randn((shape[0], 1), generator=generator))
    return (0.02 * scale * torch.randn(shape, generator=generator)).to(torch.bfloat16)


def tensors_of(weight):
    quantized = nf4.quantize(weight)
    return {
        "weight": weight,
        "packed": quantized.packed,
        "absmax": quantized.absmax,
        "absmax_codes": quantized.absmax_codes,
        "absmax2": quantized.absmax2,
        "offset": quantized.offset.reshape(1),
        "dequantized": nf4.dequantize(quantized).to(torch.bfloat16),
    }


def weights(goldens):
    """The kept weights; drawn if there are none yet."""
    generator = torch.Generator().manual_seed(4)
    for name, shape in SHAPES.items():
        kept = goldens / "nf4" / f"{name}.safetensors"
        drawn = random_weight(shape, generator)
        yield name, load_file(kept)["weight"] if kept.exists() else drawn


def make(out, goldens):
    out.mkdir(parents=True)
    for name, weight in weights(goldens):
        save_file(tensors_of(weight), out / f"{name}.safetensors")
        print(f"nf4/{name}")
