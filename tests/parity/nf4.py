"""NF4 with double quantisation, written from its definition.

This is what bitsandbytes' CUDA kernels compute for bf16 weights. Its CPU code differs in the double
quantisation (a lookup table in place of the exact midpoints), in ragged tails and in blocks of zeros,
so it cannot be the reference; tests/parity/nf4_test.py holds the two against each other where they
must agree.

Everything is float32 unless said otherwise. A weight is taken as one flat row-major array:

1. Blocks of 64 values; the last may be short. absmax = max |w| of the block.
2. code = number of THRESHOLDS that w * (1 / absmax) exceeds (strictly), with an IEEE reciprocal. In a
   block of zeros 0 * inf is NaN, which exceeds nothing: code 0.
3. Two codes a byte, the first in the high nibble; an odd last value is followed by code 7 (zero).
4. Double quantisation of the absmax values: offset = their mean over the whole tensor; the rest is
   quantised in blocks of 256 to 8 bits: absmax2 = max |absmax - offset| of the block, code8 = the
   nearest entry of DYNAMIC_MAP to x = (absmax - offset) * (1 / absmax2), found by dynamic_code.
5. De-quantised: absmax' = (DYNAMIC_MAP[code8] * absmax2) + offset, each operation rounded;
   weight' = NF4_VALUES[code] * absmax', rounded once more to bf16 where the result is bf16.
"""

import dataclasses

import torch

BLOCK = 64
ABSMAX_BLOCK = 256

NF4_VALUES = torch.tensor([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0])

# A value's code is the number of these it exceeds.
THRESHOLDS = torch.tensor([
    -0.8480964004993439, -0.6106329262256622, -0.4599952697753906, -0.33967943489551544,
    -0.23460740596055984, -0.13791173696517944, -0.045525018125772476, 0.03979014977812767,
    0.1202552504837513, 0.2035212516784668, 0.2920137718319893, 0.3893125355243683,
    0.5016634166240692, 0.6427869200706482, 0.8614784181118011])


def dynamic_map():
    """The 256 values of the signed 8-bit dynamic data type, ascending.

    7 decades; decade i (from the smallest) holds 2^i positive values, the means of 2^i + 1 points
    spaced evenly over [0.1, 1], times 10^(i - 6); their negatives, 0 and 1 complete the map.
    """
    values = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2**decade + 1, dtype=torch.float32)
        means = (edges[:-1] + edges[1:]) / 2.0
        scaled = (10.0 ** (decade - 6)) * means
        values += scaled.tolist() + (-scaled).tolist()
    return torch.tensor(sorted(values), dtype=torch.float32)


DYNAMIC_MAP = dynamic_map()


@dataclasses.dataclass
class Nf4:
    """A quantised weight; `packed` and `absmax_codes` are uint8, the rest float32."""

    shape: tuple
    packed: torch.Tensor  # [ceil(n / 2)]
    absmax: torch.Tensor  # [ceil(n / 64)], before double quantisation
    absmax_codes: torch.Tensor  # [ceil(n / 64)]
    absmax2: torch.Tensor  # [ceil(blocks / 256)]
    offset: torch.Tensor  # []


def pad_to_blocks(flat, block):
    return torch.nn.functional.pad(flat, (0, -flat.numel() % block)).reshape(-1, block)


def codes_of(weight):
    """(codes of every value, absmax of every block) of a weight of any shape."""
    flat = weight.detach().reshape(-1).to(torch.float32)
    blocks = pad_to_blocks(flat, BLOCK)
    absmax = blocks.abs().amax(dim=1)
    scaled = blocks * (1.0 / absmax)[:, None]
    codes = torch.zeros(blocks.shape, dtype=torch.uint8)
    for threshold in THRESHOLDS:
        codes += scaled > threshold
    return codes.reshape(-1)[: flat.numel()], absmax


def pack(codes):
    if codes.numel() % 2:
        codes = torch.cat([codes, torch.tensor([7], dtype=torch.uint8)])
    return (codes[0::2] << 4) | codes[1::2]


def dynamic_code(x):
    """The 8-bit code of each value of [-1, 1]: the search of the CUDA kernel, step by step.

    A binary search from entry 127; then the nearer of the entry reached and its neighbour on the side
    of x, the entry reached on an exact tie. NaN (a block of zeros: 0 * inf) fails every comparison and
    ends at entry 0.
    """
    pivot = torch.full(x.shape, 127, dtype=torch.int64)
    upper_pivot = torch.full_like(pivot, 255)
    lower_pivot = torch.zeros_like(pivot)
    for step in (64, 32, 16, 8, 4, 2, 1):
        above = x > DYNAMIC_MAP[pivot]
        lower_pivot = torch.where(above, pivot, lower_pivot)
        upper_pivot = torch.where(above, upper_pivot, pivot)
        pivot = torch.where(above, pivot + step, pivot - step)
    value = DYNAMIC_MAP[pivot]
    # Bounds never reached keep the values -1 and 1 of the search's start until here.
    upper, lower = DYNAMIC_MAP[upper_pivot], DYNAMIC_MAP[lower_pivot]
    take_upper = (x > value) & (x > (upper + value) * 0.5)
    take_lower = ~(x > value) & (x < (lower + value) * 0.5)
    code = torch.where(take_upper, upper_pivot, torch.where(take_lower, lower_pivot, pivot))
    return code.to(torch.uint8)


def quantize(weight):
    """Quantises a weight; the mean is torch's on a CPU, which may differ from a GPU's by an ulp."""
    codes, absmax = codes_of(weight)
    offset = absmax.mean()
    blocks = pad_to_blocks(absmax - offset, ABSMAX_BLOCK)
    absmax2 = blocks.abs().amax(dim=1)
    scaled = blocks * (1.0 / absmax2)[:, None]
    absmax_codes = dynamic_code(scaled.reshape(-1)[: absmax.numel()])
    return Nf4(tuple(weight.shape), pack(codes), absmax, absmax_codes, absmax2, offset)


def dequantize(quantized, double_quant=True):
    """The float32 weight that a frozen 4-bit base stands for (no rounding to bf16)."""
    absmax = quantized.absmax
    if double_quant:
        scale = quantized.absmax2.repeat_interleave(ABSMAX_BLOCK)[: absmax.numel()]
        absmax = DYNAMIC_MAP[quantized.absmax_codes.to(torch.int64)] * scale + quantized.offset
    codes = torch.stack([quantized.packed >> 4, quantized.packed & 15], dim=1).reshape(-1)
    size = torch.Size(quantized.shape).numel()
    values = NF4_VALUES[codes[:size].to(torch.int64)]
    return (values * absmax.repeat_interleave(BLOCK)[:size]).reshape(quantized.shape)
