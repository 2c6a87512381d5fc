#!/usr/bin/env python3
"""Holds nf4.py against bitsandbytes' CPU code wherever the two must agree bit for bit.

They must not agree on the 8-bit codes of the absmax values (the CPU code looks them up by 16 bits),
so those are taken from bitsandbytes where the rest of the chain is compared.
"""

import dataclasses
import unittest

import bitsandbytes.functional as bnb
import torch

import nf4


def random_weight(scale):
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(384, 640, generator=generator) * scale).to(torch.bfloat16)


class Nf4AgreesWithBitsandbytes(unittest.TestCase):
    def test_tables_are_equal(self):
        self.assertTrue(torch.equal(bnb.create_dynamic_map(), nf4.DYNAMIC_MAP))
        self.assertTrue(torch.equal(bnb.get_4bit_type("nf4", "cpu"), nf4.NF4_VALUES))

    def test_codes_and_absmax_are_equal(self):
        for scale in (3e-4, 0.02, 1.0):
            weight = random_weight(scale)
            packed, state = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4")
            ours = nf4.quantize(weight)
            self.assertTrue(torch.equal(packed.reshape(-1), ours.packed))
            self.assertTrue(torch.equal(state.absmax, ours.absmax))

    def test_double_quantisation_is_equal_but_for_neighbouring_codes(self):
        weight = random_weight(0.02)
        _, state = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4",
                                     compress_statistics=True)
        ours = nf4.quantize(weight)
        self.assertTrue(torch.equal(state.offset, ours.offset))
        self.assertTrue(torch.equal(state.state2.absmax, ours.absmax2))
        distance = (state.absmax.int() - ours.absmax_codes.int()).abs()
        self.assertLessEqual(distance.max().item(), 1)
        self.assertLess((distance != 0).float().mean().item(), 0.01)

    def test_dequantised_values_are_equal(self):
        weight = random_weight(0.02)
        packed, state = bnb.quantize_4bit(weight, blocksize=64, quant_type="nf4",
                                          compress_statistics=True)
        ours = dataclasses.replace(nf4.quantize(weight), absmax_codes=state.absmax)
        theirs = bnb.dequantize_4bit(packed, state)
        self.assertTrue(torch.equal(theirs, nf4.dequantize(ours).to(torch.bfloat16)))

    def test_exact_search_takes_the_nearest_entry(self):
        x = torch.linspace(-1, 1, 20001)
        code = nf4.dynamic_code(x).long()
        best = (x[:, None] - nf4.DYNAMIC_MAP[None, :]).abs().min(dim=1).values
        self.assertTrue(torch.allclose((x - nf4.DYNAMIC_MAP[code]).abs(), best, atol=1e-7, rtol=0))

    def test_a_zero_block_has_code_zero(self):
        ours = nf4.quantize(torch.zeros(2, 64))
        self.assertTrue((ours.packed == 0).all())


if __name__ == "__main__":
    unittest.main()
