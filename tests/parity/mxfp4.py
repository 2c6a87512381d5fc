"""MXFP4 as experts are published in, written from its definition (OCP's microscaling formats): 32 values along the inputs
share a power of two, whose exponent plus 127 is a byte, and each value is a code of 4 bits: sign, two bits of exponent,
one of mantissa. A byte has two codes, the first in its low half."""

import torch

BLOCK = 32


def value_of(code):
    exponent, mantissa = code >> 1 & 3, code & 1
    size = 2.0 ** (exponent - 1) * (1 + mantissa / 2) if exponent else mantissa / 2
    return -size if code & 8 else size


def random_planes(experts, outputs, inputs, exponents, generator):
    """Any codes, and powers of two from the first to the last of `exponents`."""
    shape = (experts, outputs, inputs // BLOCK)
    blocks = torch.randint(0, 256, (*shape, BLOCK // 2), generator=generator, dtype=torch.uint8)
    scales = torch.randint(exponents[0] + 127, exponents[1] + 128, shape, generator=generator, dtype=torch.uint8)
    return blocks, scales


def dequantize(blocks, scales):
    """The stack [experts, outputs, inputs], of which each value is exact in bfloat16, in float32."""
    values = torch.tensor([value_of(code) for code in range(16)])
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    powers = torch.exp2(scales.float() - 127)
    return (values[codes.int()] * powers[..., None]).flatten(-2)
