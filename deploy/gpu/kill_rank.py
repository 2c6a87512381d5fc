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
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ADDRESS = "127.0.0.1:7172"
SAVE_STEPS, KILL_AFTER, STEPS = 5, 8, 14
FULL_STEPS = 9  # one checkpoint: those of 8B take 98 GB each
GONE_S, STALL_S, LIMIT_S = 10.0, 2.0, 280.0
MEMORY_SLACK_MB = 300

JOB = """
[job]
model = "{model}"
data = "{rows}"
[compute]
gpu_type = "{type}"
gpu_count = {gpus}
[training]
mode = "{mode}"
[data]
loss_on = "all"
[hyperparameters]
sequence_length = {tokens}
per_device_batch = 1
gradient_accumulation_steps = {accumulation}
max_steps = {steps}
n_epochs = 10
learning_rate = 1e-5
[hyperparameters.parallelism]
activation_checkpointing = true
{sharding}
[checkpoint]
save_strategy = "steps"
save_steps = {save}
"""


class Failure(Exception):
    pass


def gpu_memory_mb(cpu):
    """Used memory of each GPU."""
    if cpu:
        return []
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                         check=True, capture_output=True, text=True).stdout
    return [int(line) for line in out.split()]


def rank_pids():
    """Training ranks of this machine, in rank order."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if words[0].endswith(b"sft-rank") and b"train" in words and b"--rank" in words and state != "Z":
            found.append((int(words[words.index(b"--rank") + 1]), int(entry.name)))
    return [pid for _, pid in sorted(found)]


class Service:
    """A dev server with its worker, and sftctl against it."""

    def __init__(self, args, work, logs):
        self.args, self.work, self.logs = args, work, logs
        self.bin = args.bundle.resolve() / "bin"
        (work / "shared").mkdir()
        # NVLink multicast stays off unless the caller asks for it: on shared hosts it can leave GPUs unusable.
        environment = {**os.environ, "NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0")}
        self.log = open(logs / "server.log", "wb")
        self.process = subprocess.Popen(
            [self.bin / "sft-server", "--dev", "--listen", ADDRESS, "--data-dir", work / "data", "--models",
             work / "models", "--shared", work / "shared"], stdout=self.log, stderr=self.log, env=environment)

    def ctl(self, *words, check=True):
        done = subprocess.run([self.bin / "sftctl", "--server", ADDRESS, *map(str, words)],
                              capture_output=True, text=True, timeout=60)
        if check and done.returncode:
            raise Failure(f"sftctl {words[0]}: exit {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def gpu_type(self):
        """What the worker registered."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            nodes = self.ctl("nodes", "--json", check=False)
            types = {slot["gpu_type"] for node in json.loads(nodes or "[]") for slot in node["slots"]}
            wanted = types & {"CPU"} if self.args.cpu else types - {"CPU"}
            if wanted:
                return wanted.pop()
            time.sleep(0.5)
        raise Failure(f"no GPU was registered: {self.logs / 'server.log'}")

    def submit(self, name, **values):
        path = self.logs / f"{name}.toml"
        path.write_text(JOB.format(**values))
        return json.loads(self.ctl("submit", path, "--json"))["job"]

    def status(self, job):
        return json.loads(self.ctl("status", job, "--json"))

    def steps(self, job):
        """Training steps of all attempts, in the order they were run."""
        lines = self.ctl("metrics", job, "--all-attempts", "--json", check=False).splitlines()
        return [metric for metric in map(json.loads, lines) if metric.get("loss") is not None]

    def wait(self, job):
        """Its state at the end."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            state = self.status(job)["state"]
            if state in ("SUCCEEDED", "FAILED", "CANCELLED"):
                return state
            time.sleep(0.5)
        raise Failure(f"{job} did not end in {LIMIT_S:.0f} s")

    def keep_logs(self, name, job):
        (self.logs / f"{name}.events.txt").write_text(self.ctl("events", job))
        (self.logs / f"{name}.metrics.jsonl").write_text(self.ctl("metrics", job, "--all-attempts", "--json"))
        (self.logs / f"{name}.rank0.log").write_text(self.ctl("logs", job, "--rank", 0))

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


def make_model(args, work, size, tokens):
    command = [sys.executable, HERE / "make_random_model.py", size, work / "models" / size, "--rows",
               work / f"{size}.jsonl", "--count", "64", "--tokens", str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"no model: {done.stderr[-500:]}")
    print("  " + done.stdout.strip().splitlines()[-1], flush=True)


def wait_for_step(service, job, step):
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        done = service.steps(job)
        if done and done[-1]["step"] >= step:
            return
        if service.status(job)["state"] == "FAILED":
            raise Failure(f"{job}: {service.status(job)['reason']}")
        time.sleep(0.1)
    raise Failure(f"{job} did not reach step {step}")


def wait_for_checkpoint(service, job):
    """Until the server has one: small steps are faster than a checkpoint is written."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        lines = map(json.loads, service.ctl("events", job, "--json").splitlines())
        if any(event["type"] == "checkpoint" and "committed" in event["message"] for event in lines):
            return
        time.sleep(0.05)
    raise Failure(f"{job} has no checkpoint")


def watch_end(args, pids, idle):
    """After the kill: seconds until no rank of the gang is left, and until every GPU's memory is as before the job."""
    begin, gone, back = time.monotonic(), math.inf, math.inf
    while time.monotonic() - begin < 60 and math.isinf(gone + back):
        if math.isinf(gone) and not set(pids) & set(rank_pids()):
            gone = time.monotonic() - begin
        if math.isfinite(gone) and all(now <= before + MEMORY_SLACK_MB
                                    for now, before in zip(gpu_memory_mb(args.cpu), idle)):
            back = time.monotonic() - begin
        time.sleep(0.05)
    return gone, back


def split_attempts(steps):
    """Losses by step of the first attempt and of the second, from (step, loss) in the order they were run."""
    turn = next((i for i in range(1, len(steps)) if steps[i][0] <= steps[i - 1][0]), len(steps))
    return dict(steps[:turn]), dict(steps[turn:])


def check_kill(service, args, size, values, idle):
    job = service.submit("kill", model=service.work / "models" / size, rows=service.work / f"{size}.jsonl",
                         mode="qlora", sharding="", gpus=args.gpus, accumulation=8 // args.gpus, **values)
    wait_for_step(service, job, KILL_AFTER)
    pids = rank_pids()
    if len(pids) != args.gpus:
        raise Failure(f"{len(pids)} ranks run, not {args.gpus}")
    os.kill(pids[-1], signal.SIGKILL)
    gone, back = watch_end(args, pids, idle)
    state = service.wait(job)
    service.keep_logs("kill", job)
    steps = [(metric["step"], metric["loss"]) for metric in service.steps(job)]
    first, second = split_attempts(steps)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=pathlib.Path)
    parser.add_argument("logs", type=pathlib.Path)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--model", default="qwen3-8b", help="a size of make_random_model.py")
    parser.add_argument("--full-gpus", type=int, default=1)
    parser.add_argument("--full-model", default="qwen3-8b")
    parser.add_argument("--work", type=pathlib.Path, help="room for models and checkpoints (default: a new folder)")
    parser.add_argument("--cpu", action="store_true", help="CPU slots and a tiny model")
    args = parser.parse_args()
    if args.cpu:
        args.model = args.full_model = "qwen3-tiny"
    args.logs.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(dir=args.work))
    idle = gpu_memory_mb(args.cpu)
    service = None
    try:
        values = {"tokens": 256 if args.cpu else 2048, "steps": STEPS, "save": SAVE_STEPS}
        for size in {args.model, args.full_model}:
            make_model(args, work, size, values["tokens"])
        service = Service(args, work, args.logs)
        values["type"] = service.gpu_type()
        held = check_kill(service, args, args.model, values, idle)
        held = bool(check_stall(service, args, args.full_model, values)) and held
        print("all of it holds" if held else "NOT all of it holds", flush=True)
        return 0 if held else 1
    except Failure as failure:
        print(f"kill_rank: {failure}", file=sys.stderr)
        return 1
    finally:
        if service:
            service.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
