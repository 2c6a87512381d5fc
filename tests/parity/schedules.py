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
# (total steps, warm-up ratio, warm-up steps of the job); where a job gives no steps, they are
# ceil(ratio * total). The last warm-up is longer than its run.
RUNS = [(20, 0.0, 0), (20, 0.1, 0), (37, 0.03, 0), (100, 0.25, 0), (1, 0.0, 0), (3, 1.0, 0), (40, 0.5, 7),
        (5, 0.0, 8)]
# (schedule, transformers' arguments)
SCHEDULES = [("constant_with_warmup", {}), ("linear", {}), ("cosine", {}),
             ("cosine_with_restarts", {"num_cycles": 1}), ("cosine_with_restarts", {"num_cycles": 3}),
             ("polynomial", {"power": 1.0, "lr_end": 1e-7}), ("polynomial", {"power": 2.5, "lr_end": 1e-4}),
             ("polynomial", {"power": 0.5, "lr_end": 0.0}), ("inverse_sqrt", {}),
             ("cosine_with_min_lr", {"min_lr": 2e-4}), ("cosine_with_min_lr", {"min_lr_rate": 0.1}),
             ("warmup_stable_decay", {}), ("warmup_stable_decay", {"min_lr_ratio": 0.1, "decay_type": "linear"}),
             ("warmup_stable_decay", {"min_lr_ratio": 0.05, "decay_type": "1-sqrt"})]
# The steps of decay that a job of warmup_stable_decay names, by its total; transformers wants a number.
DECAY_STEPS = {20: 4, 37: 10, 100: 1, 40: 20}


def factors(kind, arguments, warmup, total):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    schedule = transformers.get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=total,
                                          scheduler_specific_kwargs=arguments)
    return schedule.lr_lambdas[0]


def make(out):
    runs = []
    for kind, arguments in SCHEDULES:
        for total, ratio, steps in RUNS:
            warmup = steps or math.ceil(ratio * total)
            if kind == "warmup_stable_decay":
                if total not in DECAY_STEPS:
                    continue
                arguments = arguments | {"num_decay_steps": DECAY_STEPS[total]}
            factor = factors(kind, arguments, warmup, total)
            rates = [PEAK * (factor(t) if t < warmup else 1.0 if t == warmup else factor(t - 1))
                     for t in range(1, total + 1)]
            runs.append({"kind": kind.removesuffix("_with_warmup"), "arguments": arguments, "peak": PEAK,
                         "total": total, "warmup_ratio": ratio, "job_warmup_steps": steps,
                         "warmup_steps": warmup, "rates": rates})
    out.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(run) for run in runs)
    (out / "schedules.json").write_text(f"[\n{lines}\n]\n")
    print("schedules")
