"""INT8 with a scale a row, written from its definition; tests/parity/int8_test.py holds it against
bitsandbytes' vectorwise 8-bit weights (without columns of outliers).

Everything is float32 unless said otherwise. For each row of a weight [rows, columns]:

1. absmax = max |w|; scale = absmax * (1 / 127).
2. code = w * (127 / absmax), rounded to the nearest integer, ties to even; 0 throughout where absmax is
   below 2^-100.
3. De-quantised: code * scale, rounded once more to bf16 where the result is bf16.
"""

import torch

SMALLEST = 2.0**-100


def quantize(weight):
    """(codes int8 of the weight's shape, scale [rows])."""
    values = weight.detach().to(torch.float32)
    absmax = values.abs().amax(dim=1)
    # Of two tensors: torch turns a number divided by a tensor into a product with the reciprocal.
    inverse = torch.where(absmax >= SMALLEST, torch.tensor(127.0) / absmax, 0.0)
    codes = torch.round(values * inverse[:, None]).to(torch.int8)
    return codes, absmax * (1.0 / 127.0)


def dequantize(quantized):
    """The float32 weight that a frozen 8-bit base stands for (no rounding to bf16)."""
    codes, scale = quantized
    return codes.to(torch.float32) * scale[:, None]
