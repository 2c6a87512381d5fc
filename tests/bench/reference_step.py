#!/usr/bin/env python3
"""Times the arithmetic of a training step of the demo's model in plain PyTorch: the yardstick of
cpu_bench.py. Prints tokens/s of the best repetition.

    python reference_step.py --model DIR --tokens 128 --documents 2 --threads 2

One decoder block of the model's shape, forward and backward by autograd in fp32 with LoRA of rank 16
on all linears over a frozen base, times the number of blocks; the head with its loss once. What a step
has besides (NF4, the optimizer, the clip, the data) belongs to what is judged.
"""

import argparse
import json
import pathlib
import time
import warnings

warnings.filterwarnings("ignore", message=".*NumPy.*")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402


def linear(x, base, pair):
    return x @ base.t() + (x @ pair[0].t()) @ pair[1].t()


def normed(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


class Block:
    def __init__(self, config):
        self.heads, self.keys = config["num_attention_heads"], config["num_key_value_heads"]
        self.size = config["head_dim"]
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        query, key = self.heads * self.size, self.keys * self.size
        shapes = {"q": (query, hidden), "k": (key, hidden), "v": (key, hidden), "o": (hidden, query),
                  "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        self.base = {name: torch.randn(shape) * 0.02 for name, shape in shapes.items()}
        self.lora = {name: (torch.randn(16, shape[1], requires_grad=True),
                            torch.zeros(shape[0], 16, requires_grad=True)) for name, shape in shapes.items()}
        self.norm = torch.ones(hidden)

    def project(self, name, x):
        return linear(x, self.base[name], self.lora[name])

    def split(self, x, heads, documents):
        return x.view(documents, -1, heads, self.size).transpose(1, 2)

    def rotate(self, x, cos, sin):
        low, high = x.chunk(2, -1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

    def forward(self, x, cos, sin, documents):
        h = normed(x, self.norm)
        q = self.rotate(self.split(self.project("q", h), self.heads, documents), cos, sin)
        k = self.rotate(self.split(self.project("k", h), self.keys, documents), cos, sin)
        v = self.split(self.project("v", h), self.keys, documents)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.project("o", mixed.transpose(1, 2).reshape(x.shape[0], -1))
        h = normed(x, self.norm)
        return x + self.project("down", F.silu(self.project("gate", h)) * self.project("up", h))


class Step:
    def __init__(self, config, tokens, documents):
        torch.manual_seed(1)
        self.blocks, self.documents = config["num_hidden_layers"], documents
        self.block = Block(config)
        self.head = torch.randn(config["vocab_size"], config["hidden_size"]) * 0.02
        self.x = torch.randn(tokens, config["hidden_size"], requires_grad=True)
        self.dy = torch.randn(tokens, config["hidden_size"])
        self.targets = torch.randint(config["vocab_size"], (tokens,))
        half = config["head_dim"] // 2
        angles = torch.outer(torch.arange(tokens // documents).float(),
                             1e5 ** (-torch.arange(half).float() / half))
        self.cos, self.sin = angles.cos(), angles.sin()

    def run(self):
        for _ in range(self.blocks):
            self.block.forward(self.x, self.cos, self.sin, self.documents).backward(self.dy)
        F.cross_entropy(self.x @ self.head.t(), self.targets).backward()


def best_seconds(step, repetitions):
    """Of whole steps: as long as those of sft-rank, so that other load disturbs both alike."""
    step.run()
    best = float("inf")
    for _ in range(repetitions):
        begin = time.perf_counter()
        step.run()
        best = min(best, time.perf_counter() - begin)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--documents", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--repetitions", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = json.loads((options.model / "config.json").read_text())
    step = Step(config, options.tokens, options.documents)
    print(json.dumps({"tokens_per_second": options.tokens / best_seconds(step, options.repetitions)}))


if __name__ == "__main__":
    main()
