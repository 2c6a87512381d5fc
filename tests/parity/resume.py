#!/usr/bin/env python3
"""A training that loses a rank and goes on from a checkpoint, against one that was never interrupted:
the processes of sft-rank, killed with SIGKILL.

    resume.py --bin FOLDER [--model build/demo/model | --tiny] [--only lora qlora fft] [--steps 40]

For each method two ranks train all steps (a); two ranks train and save half way, rank 1 is killed after
that (b); and from what was saved two ranks (c), four ranks (d) and two ranks of ZeRO-3 (e) train on. Losses
and gradient norms of b and c must equal those of a bit for bit, losses of d and e within 1e-5. Then a gang is told
to save and stop, and what it saved is refused where it is damaged or the job is another one.
"""

import argparse
import json
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOLERANCE = 1e-5
LIMIT_S = 1800
GLOBAL_BATCH = 4
MODES = {"lora": {"mode": "lora"}, "qlora": {"mode": "lora", "use_qlora": True}, "fft": {"mode": "full_finetune"}}


class Failure(Exception):
    pass


def job(kind, world, sharding, steps, save):
    rows = GLOBAL_BATCH // world
    return {
        "job": {"model": "model", "data": "train.jsonl"},
        "compute": {"gpu_type": "CPU", "variant": f"CPU-{world}x", "gpu_count": world, "gpus_per_node": world},
        "training": MODES[kind],
        "hyperparameters": {
            "per_device_batch": rows, "global_batch": GLOBAL_BATCH, "sequence_length": 64, "max_steps": steps,
            "learning_rate": 1e-5 if kind == "fft" else 2e-4,
            "parallelism": {"compute_type": "fp32", "sharding": sharding}},
        "quantization": {"bits": 4 if kind == "qlora" else 0},
        "data": {"loss_on": "all", "packing": True},
        "checkpoint": {"save_strategy": "steps" if save else "no", "save_steps": save or 1},
    }


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def events(folder, rank):
    path = folder / f"rank-{rank}.events"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def series(folder):
    steps = [event for event in events(folder, 0) if event["event"] == "step"]
    return {event["step"]: (event["loss"], event["grad_norm"]) for event in steps}


class Run:
    """One gang on this machine."""

    def __init__(self, args, folder, spec, resume=None):
        folder.mkdir(parents=True)
        self.program, self.folder, self.world = args.program, folder, spec["compute"]["gpu_count"]
        self.launch = folder / "launch.json"
        self.launch.write_text(json.dumps({
            "attempt_uid": folder.name, "epoch": 1, "job_id": "resume", "job_json": json.dumps(spec),
            "world_size": self.world, "first_rank": 0, "local_ranks": self.world, "device": "cpu",
            "threads_per_rank": 1, "rendezvous": f"127.0.0.1:{free_port()}", "model_dir": str(args.model),
            "model_name": "model", "train_file": str(ROOT / "deploy/demo/train.jsonl"), "val_file": "",
            "cache_dir": str(folder.parent / "cache"), "attempt_dir": str(folder),
            "output_dir": str(folder / "output"), "checkpoint_dir": str(folder.parent / "checkpoints"),
            "resume_dir": str(resume or ""), "resume_changed": False}))
        self.ranks = []

    def start(self, stdin=subprocess.DEVNULL):
        subprocess.run([self.program, "prepare", "--launch", self.launch], check=True, stdout=subprocess.DEVNULL)
        for rank in range(self.world):
            with open(self.folder / f"rank-{rank}.log", "wb") as log:
                self.ranks.append(subprocess.Popen(
                    [self.program, "train", "--launch", self.launch, "--rank", str(rank)],
                    stdin=stdin, stdout=log, stderr=log))

    def wait_for(self, condition, what):
        end = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > end or any(rank.poll() not in (None, 0) for rank in self.ranks):
                self.fail(what)
            time.sleep(0.05)

    def fail(self, what):
        self.kill()
        raise Failure(f"{self.folder.name}: {what}:\n" + (self.folder / "rank-0.log").read_text()[-2000:])

    def kill(self):
        for rank in self.ranks:
            rank.kill()
        return [rank.wait() for rank in self.ranks]

    def finish(self):
        self.start()
        self.wait_for(lambda: all(rank.poll() == 0 for rank in self.ranks), "did not end")
        return series(self.folder)


def kill_a_rank(run, half):
    """Until the checkpoint is complete and a step more is made; then one rank is killed, and the others, which
    wait for it, end by themselves."""
    run.start()
    run.wait_for(lambda: any(event["event"] == "checkpoint" for event in events(run.folder, 0))
                 and max(series(run.folder)) > half, "made no checkpoint")
    run.ranks[1].send_signal(signal.SIGKILL)
    codes = [rank.wait(timeout=LIMIT_S) for rank in run.ranks]
    if codes[1] != -signal.SIGKILL or codes[0] != 65:
        raise Failure(f"the ranks ended with {codes}, not by the loss of rank 1")
    return series(run.folder)


def expect_end(run, code, fatal=None):
    """All ranks end with the exit code, and with a fatal event of that code."""
    codes = [rank.wait(timeout=LIMIT_S) for rank in run.ranks]
    found = [events(run.folder, rank)[-1].get("code") for rank in range(run.world)] if fatal else []
    if codes != [code] * run.world or any(name != fatal for name in found):
        run.fail(f"ended with {codes} {found}, not with {code} {fatal}")


def check_commands(kind, args, folder, steps):
    """Over standard input, as the shim does."""
    run = Run(args, folder / "f", job(kind, 2, "zero2", steps, 0))
    run.start(stdin=subprocess.PIPE)
    run.wait_for(lambda: series(run.folder), "made no step")
    for rank in run.ranks:
        rank.stdin.write(b'{"command":"checkpoint"}\n{"command":"stop","reason":"test"}\n')
        rank.stdin.flush()
    expect_end(run, 67)
    saved = [event for event in events(run.folder, 0) if event["event"] == "checkpoint"][-1]
    if saved["reason"] != "stopping" or saved["step"] != max(series(run.folder)):
        run.fail(f"reported {saved}")
    path = pathlib.Path(saved["path"])
    other = job(kind, 2, "zero2", steps, 0) | {"lora": {"r": 8}}
    run = Run(args, folder / "g", other, path)
    run.start()
    expect_end(run, 64, "checkpoint_mismatch")
    shard = path / "rank-1-of-2.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    run = Run(args, folder / "h", job(kind, 2, "zero2", steps, 0), path)
    run.start()
    expect_end(run, 65, "checkpoint_damaged")
    print(f"resume: {kind}: told to save and stop, two ranks end with 67 and a checkpoint of step {saved['step']} "
          f"({saved['seconds']:.2f} s, training waited {saved['stall_seconds']:.3f} s); with another r it is refused "
          "(64, checkpoint_mismatch), cut short too (65, checkpoint_damaged)", flush=True)


def largest_difference(losses, expected):
    return max(abs(losses[step][0] - expected[step][0]) / expected[step][0] for step in losses)


def check(kind, args, folder):
    steps, half = args.steps, args.steps // 2
    straight = Run(args, folder / "a", job(kind, 2, "ddp", steps, 0)).finish()
    killed = kill_a_rank(Run(args, folder / "b", job(kind, 2, "ddp", steps, half)), half)
    saved = folder / "checkpoints" / f"step-{half}"
    # Four copies of a model and its states may be more than a laptop has.
    wide = "zero2" if kind == "fft" else "ddp"
    same = Run(args, folder / "c", job(kind, 2, "ddp", steps, 0), saved).finish()
    more = Run(args, folder / "d", job(kind, 4, wide, steps, 0), saved).finish()
    sharded = Run(args, folder / "e", job(kind, 2, "full_shard", steps, 0), saved).finish()
    for name, found in (("killed", killed), ("resumed", same)):
        if any(found[step] != straight[step] for step in found):
            raise Failure(f"{kind}: the {name} run differs from the straight one: {found} {straight}")
    for name, found in (("2 to 4 ranks", more), ("DDP to ZeRO-3", sharded), ("resumed", same)):
        if sorted(found) != list(range(half + 1, steps + 1)):
            raise Failure(f"{kind}: {name}: steps {sorted(found)}")
    wide_by, sharded_by = largest_difference(more, straight), largest_difference(sharded, straight)
    print(f"resume: {kind}: {len(killed)} steps before and {len(same)} after the loss of a rank equal the straight "
          f"run's bit for bit (loss {straight[1][0]:.6f} to {straight[steps][0]:.6f}); 2 to 4 ranks differ by "
          f"{wide_by:.1e}, DDP to ZeRO-3 by {sharded_by:.1e}", flush=True)
    if max(wide_by, sharded_by) > TOLERANCE:
        raise Failure(f"{kind}: more than {TOLERANCE}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder with sft-rank")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/demo/model")
    parser.add_argument("--tiny", action="store_true", help="a random model of two layers instead")
    parser.add_argument("--only", choices=sorted(MODES), nargs="+", default=list(MODES))
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    args.program = args.bin.resolve() / "sft-rank"
    args.model = args.model.resolve()
    if not (args.model / "tokenizer.json").exists():
        print(f"resume: {args.model} is missing: run deploy/demo/make_model.sh")
        return 77
    with tempfile.TemporaryDirectory(prefix="sft-resume-") as name:
        folder = pathlib.Path(name)
        if args.tiny:
            sys.path.insert(0, str(ROOT / "tests/e2e"))
            import tiny_model
            args.model = folder / "model"
            tiny_model.write_tiny_model(args.model)
        try:
            for kind in args.only:
                check(kind, args, folder / kind)
            if set(args.only) & {"lora", "qlora"}:
                kind = min(set(args.only) & {"lora", "qlora"})
                check_commands(kind, args, folder / kind, args.steps)
        except Failure as failure:
            print(f"resume: {failure}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
