"""Learning rates of transformers' schedules.

For step t, counted from 1, transformers uses its factor at t - 1, so the first step of a warm-up has
rate 0. The engine's first step has peak / warmup instead: step t <= warmup takes peak * t / warmup;
after the warm-up both are the same. The goldens hold the engine's rule, made from transformers' factors:
those of t for the warm-up, those of t - 1 after it.
"""

import json
import math

import torch
import transformers

PEAK = 1e-3
# (total steps, warm-up ratio); warm-up steps = ceil(ratio * total).
RUNS = [(20, 0.0), (20, 0.1), (37, 0.03), (100, 0.25), (1, 0.0), (3, 1.0)]


def factors(kind, warmup, total):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = transformers.get_scheduler(kind, optimizer, num_warmup_steps=warmup,
                                          num_training_steps=total)
    return schedule.lr_lambdas[0]


def make(out):
    runs = []
    for kind in ("constant_with_warmup", "linear", "cosine"):
        for total, ratio in RUNS:
            warmup = math.ceil(ratio * total)
            factor = factors(kind, warmup, total)
            rates = [PEAK * (factor(t) if t < warmup else 1.0 if t == warmup else factor(t - 1))
                     for t in range(1, total + 1)]
            runs.append({"kind": kind.removesuffix("_with_warmup"), "peak": PEAK, "total": total,
                         "warmup_ratio": ratio, "warmup_steps": warmup, "rates": rates})
    out.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(run) for run in runs)
    (out / "schedules.json").write_text(f"[\n{lines}\n]\n")
    print("schedules")
