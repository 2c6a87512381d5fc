#!/usr/bin/env python3
"""Times a checkpoint of a full fine-tuning beside its training, a resume from it, and the delivery of the model.

    . deploy/gpu/torch_env.sh                      (where torch's libraries are)
    python3 deploy/gpu/resume_speed.py BIN WORK [--size qwen3-4b] [--disk DIR] [--device cuda]

BIN: the folder with sft-rank. WORK: for the model of random weights, rows and logs; what is there serves again. DIR, by
default WORK/disk, is made for the checkpoint and the result, and removed. Six steps with a checkpoint after the
fourth, then a second process from that, to the end: prints what each took, and fails where the losses of steps 5 and
6 differ in any bit.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time
import types

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "bench"))
import ours  # noqa: E402
import rows  # noqa: E402

STEPS, SAVED, LIMIT_S = 6, 4, 300
SHAPES = {"cuda": (2048, 16384), "cpu": (256, 2048)}  # sequence length, tokens a step
SHOWN = ("checkpoint of", "loaded the model", "ready after", "goes on", "wrote the")


def rows_of(args):
    return args.work / f"rows-{SHAPES[args.device][0]}.jsonl"


def write_launch(args, folder, resume):
    sequence, tokens = SHAPES[args.device]
    row = rows.Row("resume", args.size, "full", sequence, tokens, 1, (), device=args.device)
    setting = rows.Ours("bf16", job={rows.KEY_OPTIMIZER: "adamw_bf16", rows.KEY_MASTER: "bf16"})
    job = ours.make_job(row, setting, "h200", {"gpus": 1, "tokens": tokens, "steps": STEPS},
                        {"checkpoint.save_strategy": "steps", "checkpoint.save_steps": SAVED})
    context = types.SimpleNamespace(model_dir=lambda size: args.work / size, cores=os.cpu_count())
    return ours.write_launch(row, job, {"gpus": 1, "rows": rows_of(args)}, context, folder,
                             cache_dir=str(args.work / "cache"), output_dir=str(args.disk / "output"),
                             checkpoint_dir=str(args.disk), resume_dir=str(resume or ""), resume_changed=False)


def losses_of(events):
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


def run(args, name, resume):
    """Until the checkpoint is complete, or resumed until the model is; returns the losses by step."""
    folder = args.work / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    launch = write_launch(args, folder, resume)
    program = args.bin / "sft-rank"
    subprocess.run([program, "prepare", "--launch", launch], check=True, stdout=subprocess.DEVNULL)
    log, begin, first = folder / "rank-0.log", time.monotonic(), None
    with open(log, "w") as out:
        rank = subprocess.Popen([program, "train", "--launch", launch, "--rank", "0"], stdout=out, stderr=out)
    losses = {}
    try:
        while rank.poll() is None and time.monotonic() < begin + LIMIT_S:
            time.sleep(0.05)
            events = ours.read_events(folder / "rank-0.events")
            losses = losses_of(events)
            if losses and first is None:
                first = time.monotonic() - begin
            last = "artifact" if resume else "checkpoint"
            if STEPS in losses and any(event["event"] == last for event in events):
                break
    finally:
        rank.kill()
        rank.wait()
    losses = losses_of(ours.read_events(folder / "rank-0.events"))
    if STEPS not in losses:
        raise SystemExit(f"{name}: made no step {STEPS}: {log}")
    print(f"{name}: first step after {first:.1f} s")
    print("\n".join("  " + line[:200] for line in log.read_text().split("\n") if any(word in line for word in SHOWN)),
          flush=True)
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--size", default="qwen3-4b", help="of make_random_model.py")
    parser.add_argument("--disk", type=pathlib.Path, help="folder to be made on the disk to be measured")
    parser.add_argument("--device", choices=SHAPES, default="cuda")
    args = parser.parse_args()
    args.disk = args.disk or args.work / "disk"
    if args.disk.exists():
        raise SystemExit(f"resume_speed: {args.disk} is there already: give a folder that is not")
    sequence, tokens = SHAPES[args.device]
    if not (args.work / args.size / "config.json").exists() or not rows_of(args).exists():
        subprocess.run([sys.executable, HERE / "make_random_model.py", args.size, args.work / args.size,
                        "--rows", rows_of(args), "--count", str(STEPS * tokens // sequence),
                        "--tokens", str(sequence)], check=True)
    try:
        straight = run(args, "straight", None)
        resumed = run(args, "resumed", args.disk / f"step-{SAVED}")
    finally:
        shutil.rmtree(args.disk, ignore_errors=True)
    after = {step: loss for step, loss in straight.items() if step > SAVED}
    if resumed != after:
        raise SystemExit(f"resume_speed: losses differ: {after} straight, {resumed} resumed")
    print(f"losses after step {SAVED} are equal: {after}")


if __name__ == "__main__":
    main()
