#!/usr/bin/env python3
"""Holds int8.py against bitsandbytes' vectorwise 8-bit quantisation on a CPU."""

import unittest

import bitsandbytes.functional as bnb
import torch

import int8


def random_weight(scale):
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(384, 640, generator=generator) * scale).to(torch.bfloat16)


class Int8AgreesWithBitsandbytes(unittest.TestCase):
    def test_codes_are_equal_but_for_ties(self):
        for scale in (3e-4, 0.02, 1.0):
            weight = random_weight(scale)
            theirs, absmax, _ = bnb.int8_vectorwise_quant(weight.float())
            codes, own = int8.quantize(weight)
            # They multiply by 127 * (1 / absmax), we by 127 / absmax.
            distance = (theirs.int() - codes.int()).abs()
            self.assertLessEqual(distance.max().item(), 1)
            self.assertLess((distance != 0).float().mean().item(), 1e-3)
            self.assertTrue(torch.equal(absmax * (1.0 / 127.0), own))

    def test_dequantised_values_are_equal_but_for_rounding(self):
        weight = random_weight(0.02)
        _, absmax, _ = bnb.int8_vectorwise_quant(weight.float())
        quantized = int8.quantize(weight)
        expected = bnb.int8_vectorwise_dequant(quantized[0], absmax)
        # They round code * absmax, we absmax * (1 / 127).
        torch.testing.assert_close(int8.dequantize(quantized), expected, rtol=3e-7, atol=0)

    def test_a_zero_row_has_code_zero(self):
        codes, scale = int8.quantize(torch.zeros(2, 64))
        self.assertTrue((codes == 0).all())
        self.assertTrue((scale == 0).all())


if __name__ == "__main__":
    unittest.main()
