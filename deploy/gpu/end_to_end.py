#!/usr/bin/env python3
"""From a bundle alone: fine-tunes a model of a real size (random weights) through server, worker and sftctl on this
machine's GPUs, kills a rank, and reads the result back.

    python3 deploy/gpu/end_to_end.py BUNDLE LOG_DIR [--model gemma3-27b] [--gpus 1] [--tokens 4096] [--work DIR]

BUNDLE is an unpacked bundle or a tarball of one. The QLoRA job saves every 5 steps and loses its last rank after step 8,
once a checkpoint is stored: it has to go on with the step after a checkpoint, with the same losses bit for bit in the steps
that are run twice. Steps of less than a second need more of them: --steps 40. The adapter is downloaded, loaded beside the base by `sft-rank logits` and has to change its logits. Prints a table of what was predicted and
what was measured; logs and plan are left in LOG_DIR. The 27B takes 54 GB in DIR (default: /dev/shm, else the folder for
temporary files, whichever has the room), and about seven minutes on one H100. --cpu tries the script itself on CPU slots, with a
tiny model. Exit 0 when all of it holds.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

import torch

import kill_rank
import make_random_model
import service as local

MEMORY_WITHIN, SPEED_WITHIN = 0.05, 0.10  # of what was measured
ROOM = 6 << 30  # beside the model: bundle, checkpoints, adapter
PROBE_TOKENS = 64

JOB = """
[job]
model = "{model}"
data = "{rows}"
[compute]
gpu_type = "{type}"
gpu_count = {gpus}
[training]
mode = "qlora"
[data]
loss_on = "all"
[lora]
r = 16
alpha = 32
[hyperparameters]
sequence_length = {tokens}
per_device_batch = {batch}
gradient_accumulation_steps = {accumulation}
max_steps = {steps}
n_epochs = 10
learning_rate = 1e-4
[checkpoint]
save_strategy = "steps"
save_steps = {save}
"""


def bytes_of(size):
    shape = make_random_model.SHAPES[size]
    return sum(make_random_model.size_of(name, dimensions)
               for name, dimensions in make_random_model.tensor_shapes(shape))


def work_folder(args):
    """A new folder with room for the model."""
    needed = bytes_of(args.model) + ROOM
    places = [args.work] if args.work else [pathlib.Path("/dev/shm"), pathlib.Path(tempfile.gettempdir())]
    for place in places:
        if place.is_dir() and shutil.disk_usage(place).free >= needed:
            return pathlib.Path(tempfile.mkdtemp(dir=place))
    raise local.Failure(f"{' and '.join(map(str, places))}: no room for {needed / 1e9:.0f} GB; give --work DIR")


def unpack(bundle, work):
    if bundle.is_dir():
        return bundle
    with tarfile.open(bundle) as tar:
        tar.extractall(work / "bundle", filter="data")
    return next((work / "bundle").glob("*/bin")).parent


def events_of(service, job, kind):
    """What the ranks told in events of a kind, oldest first."""
    lines = map(json.loads, service.ctl("events", job, "--json").splitlines())
    return [json.loads(event["message"]) for event in lines if event["type"] == kind]


def train(service, args, steps):
    values = {"model": service.work / "models" / args.model, "rows": service.work / f"{args.model}.jsonl",
              "type": service.gpu_type(), "gpus": args.gpus, "tokens": args.tokens, "batch": args.batch,
              "accumulation": args.accumulation, "steps": steps, "save": kill_rank.SAVE_STEPS}
    path = service.logs / "job.toml"
    path.write_text(JOB.format(**values))
    (service.logs / "plan.txt").write_text(service.ctl("submit", path, "--dry-run"))
    job = json.loads(service.ctl("submit", path, "--json"))["job"]
    begin = time.monotonic()
    local.wait_for_step(service, job, kill_rank.KILL_AFTER)
    local.wait_for_checkpoint(service, job)
    local.kill_last_rank(args.gpus)
    state = service.wait(job)
    service.keep_logs("job", job)
    if state != "SUCCEEDED":
        raise local.Failure(f"the job is {state}: {service.status(job)['reason']}; see {service.logs}")
    return job, time.monotonic() - begin


def rank_environment():
    """In which a bundle's sft-rank finds the libraries of this python's torch."""
    root = pathlib.Path(torch.__file__).parent
    folders = [root / "lib", *sorted((root.parent / "nvidia").glob("*/lib"))]
    old = os.environ.get("LD_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": ":".join([*map(str, folders), *([old] if old else [])])}


def write_safetensors(path, name, values):
    header = json.dumps({name: {"dtype": "I64", "shape": [1, len(values)], "data_offsets": [0, 8 * len(values)]}})
    text = header.encode() + b" " * (-len(header) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + torch.tensor(values).numpy().tobytes())


def read_logits(path):
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    begin, end = json.loads(raw[8:8 + size])["logits"]["data_offsets"]
    return torch.frombuffer(bytearray(raw[8 + size + begin:8 + size + end]), dtype=torch.float32)


def logits_with(service, args, adapter):
    tokens, out = service.work / "tokens.safetensors", service.work / "logits.safetensors"
    write_safetensors(tokens, "input_ids", [3 + i % 256 for i in range(PROBE_TOKENS)])
    command = [service.bin / "sft-rank", "logits", "--model", service.work / "models" / args.model, "--tokens", tokens,
               "--out", out, "--device", "cpu" if args.cpu else "cuda:0"]
    done = subprocess.run(command + (["--adapter", adapter] if adapter else []), capture_output=True, text=True,
                          env=rank_environment(), check=False)
    if done.returncode:
        raise local.Failure(f"sft-rank logits: {done.stderr[-500:]}")
    return read_logits(out)


def change_of_logits(service, args, job):
    """The largest change of a logit by the downloaded adapter, as a part of the largest logit."""
    adapter = service.work / "adapter"
    service.ctl("download", job, "-o", adapter)
    base, tuned = logits_with(service, args, None), logits_with(service, args, adapter)
    return ((tuned - base).abs().max() / base.abs().max()).item()


class Table:
    """Rows of predicted and measured, and whether all of them hold."""

    def __init__(self):
        self.holds = True
        print(f"{'':<34}{'predicted':>14}{'measured':>14}", flush=True)

    def compare(self, name, unit, digits, predicted, measured, within):
        share = predicted / measured - 1 if predicted and measured else 0
        cells = [f"{value:.{digits}f}{unit}" if value else "-" for value in (predicted, measured)]
        held = abs(share) <= within
        self.holds &= held
        shown = f"{100 * share:+.1f} %" if predicted and measured else ""
        print(f"{name:<34}{cells[0]:>14}{cells[1]:>14}{shown:>10}{'' if held else '  NOT within ' + str(within)}", flush=True)

    def say(self, name, text, held):
        self.holds &= bool(held)
        print(f"{name:<34}{text}{'' if held else '  NOT as it should be'}", flush=True)


def report(service, args, job, seconds):
    steps = service.steps(job)
    first, second = local.split_attempts([(metric["step"], metric["loss"]) for metric in steps])
    twice = sorted(set(first) & set(second))
    same = [step for step in twice if first[step] == second[step]]
    plans = events_of(service, job, "plan")
    (service.logs / "plan_events.json").write_text(json.dumps(plans, indent=1))
    checked = events_of(service, job, "consistency")[-1]
    # The first steps of an attempt warm up.
    rates = [metric["tokens_per_second"] for metric in steps if metric["step"] in range(4, kill_rank.SAVE_STEPS + 3)]
    table = Table()
    if not args.cpu:
        plan = plans[0]
        for name, key in (("memory between steps", "resident_bytes"), ("memory, peak allocated", "allocated_bytes"),
                          ("memory, peak reserved", "reserved_bytes")):
            table.compare(name, " GB", 2, plan[key]["predicted"] / 1e9, plan[key]["measured"] / 1e9, MEMORY_WITHIN)
    predicted = plans[0]["predicted_tokens_per_second"] if plans else 0
    table.compare("tokens/s of all GPUs", "", 0, predicted, statistics.median(rates), SPEED_WITHIN)
    again = min(second, default=0)
    table.say("rank killed",
              f"after step {max(first)}; went on with step {again}, {len(same)} of {len(twice)} losses of steps run twice "
              "have the same bits", again > 1 and again % kill_rank.SAVE_STEPS == 1 and twice and twice == same)
    table.say("packed documents stay apart", f"alone, logits differ by {checked['packing_difference']:.2g} of the largest; "
              f"checked in {checked['packing_seconds']:.2f} s", True)
    table.say("files read back in the job", f"logits differ by {checked['delivered_difference']:.2g} of the largest; "
              f"checked in {checked['delivered_seconds']:.2f} s",
              checked["consistent"])
    change = change_of_logits(service, args, job)
    table.say("downloaded adapter", f"changes logits by up to {change:.2g} of the largest", change > 0)
    print(f"{args.model} on {args.gpus} x {service.gpu_type()}, {args.tokens} tokens a row: from submit to result "
          f"{seconds:.0f} s", flush=True)
    return table.holds


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=pathlib.Path)
    parser.add_argument("logs", type=pathlib.Path)
    parser.add_argument("--model", default="gemma3-27b", choices=make_random_model.SHAPES)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=4096, help="of a row")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--steps", type=int, default=kill_rank.STEPS)
    parser.add_argument("--work", type=pathlib.Path, help="room for the model")
    parser.add_argument("--cpu", action="store_true", help="CPU slots and a tiny model")
    args = parser.parse_args()
    if args.cpu:
        args.model = args.model if args.model.endswith("-tiny") else "gemma3-tiny"
        args.tokens = min(args.tokens, 128)
    return args


def main():
    args = options()
    args.logs.mkdir(parents=True, exist_ok=True)
    service = work = None
    try:
        work = work_folder(args)
        args.bundle = unpack(args.bundle, work)
        local.make_model(args, work, args.model, args.tokens)
        service = local.Service(args, work, args.logs)
        job, seconds = train(service, args, args.steps)
        holds = report(service, args, job, seconds)
        print("all of it holds" if holds else "NOT all of it holds", flush=True)
        return 0 if holds else 1
    except local.Failure as failure:
        print(f"end_to_end: {failure}", file=sys.stderr)
        return 1
    finally:
        if service:
            service.stop()
        if work:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
