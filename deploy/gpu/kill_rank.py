#!/usr/bin/env python3
"""From a bundle alone: kills a rank of a training job on this machine's GPUs with SIGKILL, and measures what follows;
then measures what saving a full fine-tuning's checkpoint costs the training.

    python3 deploy/gpu/kill_rank.py BUNDLE LOG_DIR [--gpus 4] [--model qwen3-8b] [--full-model qwen3-8b] [--full-gpus 4]

BUNDLE is an unpacked bundle. The QLoRA job saves every 5 steps and loses its last rank after step 8: every process of
the gang has to be gone within 10 s and its GPU memory back, the next attempt has to go on with step 6, and the steps
run twice have to give the same losses bit for bit. The full fine-tuning saves after 5 of 9 steps, which may make the training
wait for 2 s at most. --cpu tries the script itself on CPU slots with a tiny model. Exit 0 when all of it holds.
"""

import argparse
import math
import re
import sys
import time

import service as local

SAVE_STEPS, KILL_AFTER, STEPS = 5, 8, 14
FULL_STEPS = 9  # one checkpoint: those of 8B take 98 GB each
GONE_S, STALL_S = 10.0, 2.0
MEMORY_SLACK_MB = 300


def watch_end(args, pids, idle):
    """After the kill: seconds until no rank of the gang is left, and until every GPU's memory is as before the job."""
    begin, gone, back = time.monotonic(), math.inf, math.inf
    while time.monotonic() - begin < 60 and math.isinf(gone + back):
        if math.isinf(gone) and not set(pids) & set(local.rank_pids()):
            gone = time.monotonic() - begin
        if math.isfinite(gone) and all(now <= before + MEMORY_SLACK_MB
                                    for now, before in zip(local.gpu_memory_mb(args.cpu), idle)):
            back = time.monotonic() - begin
        time.sleep(0.05)
    return gone, back


def check_kill(service, args, size, values, idle):
    job = service.submit("kill", model=service.work / "models" / size, rows=service.work / f"{size}.jsonl",
                         mode="qlora", sharding="", gpus=args.gpus, accumulation=8 // args.gpus, **values)
    local.wait_for_step(service, job, KILL_AFTER)
    pids = local.kill_last_rank(args.gpus)
    gone, back = watch_end(args, pids, idle)
    state = service.wait(job)
    service.keep_logs("kill", job)
    steps = [(metric["step"], metric["loss"]) for metric in service.steps(job)]
    first, second = local.split_attempts(steps)
    last = steps[-1][0]
    twice = sorted(set(first) & set(second))
    same = [step for step in twice if first[step] == second[step]]
    print(f"kill -9 of rank {args.gpus - 1} of {args.gpus} after step {max(first)}: gang gone after {gone:.1f} s, GPU memory "
          f"back after {back:.1f} s (used before the job: {idle} MB); went on with step {min(second, default=None)}, "
          f"{len(same)} of {len(twice)} steps run twice are equal bit for bit; job {state} at step {last}",
          flush=True)
    return (gone <= GONE_S and math.isfinite(back) and state == "SUCCEEDED"
            and min(second, default=0) == SAVE_STEPS + 1 and twice == same and last == STEPS)


def check_stall(service, args, size, values):
    sharding = 'fsdp = true' if args.full_gpus > 1 else ""
    job = service.submit("save", model=service.work / "models" / size, rows=service.work / f"{size}.jsonl",
                         mode="full_finetune", sharding=sharding, gpus=args.full_gpus,
                         accumulation=max(1, 8 // args.full_gpus), **{**values, "steps": FULL_STEPS})
    state = service.wait(job)
    service.keep_logs("save", job)
    log = (service.logs / "save.rank0.log").read_text()
    saved = re.findall(r"checkpoint of step (\d+) \(.*?\): (\d+) bytes in ([\d.]+) s, of which training waited ([\d.]+) s",
                       log)
    rates = {metric["step"]: round(metric["tokens_per_second"]) for metric in service.steps(job)}
    print(f"full fine-tuning of {size} on {args.full_gpus}: job {state}; tokens/s by step {rates}", flush=True)
    for step, size_bytes, seconds, stall in saved:
        print(f"  checkpoint of step {step}: {int(size_bytes) / 1e9:.1f} GB in {seconds} s, training waited {stall} s")
    return state == "SUCCEEDED" and saved and max(float(stall) for *_, stall in saved) <= STALL_S


def check(service, args, tokens, idle):
    values = {"tokens": tokens, "steps": STEPS, "save": SAVE_STEPS, "type": service.gpu_type()}
    held = check_kill(service, args, args.model, values, idle)
    return bool(check_stall(service, args, args.full_model, values)) and held


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    local.add_arguments(parser)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--model", default="qwen3-8b", help="a size of make_random_model.py")
    parser.add_argument("--full-gpus", type=int, default=1)
    parser.add_argument("--full-model", default="qwen3-8b")
    args = parser.parse_args()
    if args.cpu:
        args.model = args.full_model = "qwen3-tiny"
    idle, tokens = local.gpu_memory_mb(args.cpu), 256 if args.cpu else 2048
    return local.run("kill_rank", args, {args.model, args.full_model}, tokens,
                     lambda service: check(service, args, tokens, idle))


if __name__ == "__main__":
    sys.exit(main())
