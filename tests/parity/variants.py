"""Variants of LoRA, and noise on embeddings: what transformers and peft compute with the tiny models of
families.py.

A case names one of those models; tests/parity/README.md lists its files.
"""


import peft
import torch
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file, save_file
from transformers.integrations.neftune import neftune_post_forward_hook

import families

# LoRA+: five steps from the bias adapter of the model, A, B and biases trained.
LORAPLUS = {"loraplus": "qwen2_sliding_untied"}
STEPS, RATE, RATIO, DECAY = 5, 1e-3, 8.0, 0.1
# NEFTune: one forward of each model that treats what its embedding gives in another way.
NEFTUNE = {"neftune_plain": "qwen3_tied", "neftune_scaled_before": "gemma3_tied",
           "neftune_scaled_after": "granite_tied", "neftune_positions": "gpt2_untied"}
ALPHA, JOB_SEED, NOISE_MODULE = 5.0, 42, 1 << 42
WORDS = (1 << 64) - 1


def mix_seed(a, b):
    """The engine's MixSeed."""
    z = (a * 0x9E3779B97F4A7C15 + b + 0x9E3779B97F4A7C15) & WORDS
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORDS
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORDS
    return z ^ (z >> 31)


def rows_of(folder, case):
    rows = load_file(folder / case / "rows.safetensors")
    return rows["input_ids"], rows["labels"]


def loraplus(case, folder, out):
    model, _ = families.build(case)
    wrapped = peft.PeftModel.from_pretrained(model, folder / case / "bias_adapter", is_trainable=True)
    input_ids, labels = rows_of(folder, case)
    optimizer = create_loraplus_optimizer(
        wrapped, torch.optim.AdamW, lr=RATE, loraplus_lr_ratio=RATIO, betas=(0.9, 0.999), eps=1e-8,
        loraplus_weight_decay=DECAY)
    losses = []
    for _ in range(STEPS):
        losses.append(families.forward_backward(wrapped, input_ids, labels)[1])
        optimizer.step()
    trained = {n.replace(".default.", ".").replace(".base_layer.", "."): p.detach()
               for n, p in wrapped.named_parameters() if p.requires_grad}
    save_file({"losses": torch.stack(losses), **trained}, out)


def neftune(case, folder, out):
    """With transformers' own hook; its generator is seeded as the engine seeds that of step 0."""
    model, _ = families.build(case)
    embedding = model.get_input_embeddings()
    embedding.neftune_noise_alpha = ALPHA
    embedding.register_forward_hook(neftune_post_forward_hook)
    torch.manual_seed(mix_seed(mix_seed(JOB_SEED, mix_seed(0, 0)), NOISE_MODULE))
    _, loss = families.forward_backward(model, *rows_of(folder, case))
    gradient = {f"grad.{n}": p.grad for n, p in model.named_parameters() if p is embedding.weight}
    save_file({"loss": loss, **gradient}, out)


def make(out, goldens):
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    for made, cases in ((loraplus, LORAPLUS), (neftune, NEFTUNE)):
        for name, case in cases.items():
            made(case, goldens / "families", out / f"{name}.safetensors")
            print(f"variants/{name}")
