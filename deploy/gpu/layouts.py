#!/usr/bin/env python3
"""From a bundle alone: one QLoRA job that changes how it is divided over this machine's GPUs, through server, worker and
sftctl, and loses a rank in each layout.

    python3 deploy/gpu/layouts.py BUNDLE LOG_DIR [--model qwen3-1.7b] \\
        [--layouts full_shard@2,tensor2@2,pipeline2@2,context2@2,whole@1]

BUNDLE is an unpacked bundle. A layout is whole, full_shard, pipelineN, contextN or tensorN, or several of these joined by +,
@ the GPUs it takes. A job of the first runs alone to the end. A second one has its last rank killed with SIGKILL in
the middle, has to go on with the step after a checkpoint with the same losses bit for bit, is cancelled ten steps
on and resumed in the next layout, and so on: every loss has to be that of the job that ran alone, within LOSS of it.
Prints for each layout what was predicted and measured, and the seconds from the kill to the next new step. --cpu
tries the script itself on CPU slots, with a tiny model. Exit 0 when all of it holds.
"""

import argparse
import json
import re
import statistics
import sys
import time

import service as local

SAVE, SEGMENT, ROWS = 5, 10, 8  # steps between checkpoints, steps in a layout, rows of a step
LOSS = 2e-3  # relative: bf16 sums in another order
PARALLEL = "hyperparameters.parallelism."
AXES = ("pipeline", "context", "tensor")


def layout_keys(text):
    """The GPUs of a layout and its keys of the job; those of other layouts are set back."""
    words, _, gpus = text.partition("@")
    if not gpus.isdigit():
        raise SystemExit(f"layouts: \"{text}\" does not say on how many GPUs: full_shard@2")
    keys = {f"{PARALLEL}{axis}_parallel_size": 1 for axis in AXES} | {f"{PARALLEL}fsdp": False}
    shared = 1
    for word in words.split("+"):
        axis = re.fullmatch(r"(pipeline|context|tensor)(\d+)", word)
        if axis:
            keys[f"{PARALLEL}{axis[1]}_parallel_size"] = int(axis[2])
            shared *= int(axis[2])
        elif word == "full_shard":
            keys[f"{PARALLEL}fsdp"] = True
        elif word != "whole":
            raise SystemExit(f"layouts: there is no layout \"{word}\": whole, full_shard, pipelineN, contextN, tensorN")
    groups = int(gpus) // shared
    if groups * shared != int(gpus) or ROWS % groups:
        raise SystemExit(f"layouts: \"{text}\" cannot be divided over {gpus} GPUs with {ROWS} rows a step")
    return int(gpus), {"compute.gpu_count": int(gpus),
                       "hyperparameters.gradient_accumulation_steps": ROWS // groups, **keys}


def set_words(keys):
    return [word for key, value in keys.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def reach(service, job, step):
    """Until a step is done and, where it is one that is saved, its checkpoint is committed."""
    local.wait_for_step(service, job, step)
    if step % SAVE == 0:
        local.wait_for_checkpoint(service, job, step)


def seconds_to_go_on(service, job, gpus):
    """Seconds from the kill to the first step of the next attempt that the first had not made."""
    local.kill_last_rank(gpus)
    begin = time.monotonic()

    def on():
        status = service.status(job)
        if status["state"] == "FAILED":
            raise local.Failure(f"{job}: {status['reason']}")
        steps = service.steps(job)
        first, second = local.split_attempts([(metric["step"], metric["loss"]) for metric in steps])
        return second and max(second) > max(first)
    local.wait_for(f"a step of {job} after the kill", on)
    return time.monotonic() - begin


def plan_words(service, job, cpu):
    if cpu:
        return ""
    events = map(json.loads, service.ctl("events", job, "--json").splitlines())
    plan = [json.loads(event["message"]) for event in events if event["type"] == "plan"][0]
    rates = [metric["tokens_per_second"] for metric in service.steps(job)]
    memory = plan["reserved_bytes"]
    return (f"{statistics.median(rates):.0f} tokens/s ({plan['predicted_tokens_per_second']:.0f} predicted), "
            f"{memory['measured'] / 1e9:.1f} GB ({memory['predicted'] / 1e9:.1f} predicted); ")


def check_segment(service, args, job, text, begin, last, alone):
    """One layout, from a checkpoint to the next but one; False where something does not hold."""
    gpus, _ = layout_keys(text)
    reach(service, job, begin + SAVE)
    reach(service, job, begin + SAVE + 2)
    seconds = seconds_to_go_on(service, job, gpus)
    if last:
        state, wanted = service.wait(job), "SUCCEEDED"
    else:
        reach(service, job, begin + SEGMENT)
        service.ctl("cancel", job)
        state, wanted = service.wait(job), "CANCELLED"
    name = re.sub(r"\W", "_", text)
    service.keep_logs(name, job)
    steps = [(metric["step"], metric["loss"]) for metric in service.steps(job)]
    first, second = local.split_attempts(steps)
    twice = sorted(set(first) & set(second))
    same = [step for step in twice if first[step] == second[step]]
    off = max(abs(loss - alone[step]) / abs(alone[step]) for step, loss in steps if step in alone)
    saved = min(second, default=1) - 1  # a small model's steps are faster than the kill: it may have a later checkpoint
    held = (state == wanted and min(first) == begin + 1 and saved > begin and saved % SAVE == 0
            and bool(twice) and twice == same and off <= LOSS)
    print(f"{text}: began with step {min(first)}, killed after step {max(first)}, went on with step {min(second, default=None)} "
          f"(next new step after {seconds:.1f} s), {len(same)} of {len(twice)} steps run twice are equal bit for bit, losses "
          f"off by {off:.1e} of {LOSS:.0e}; {plan_words(service, job, args.cpu)}{state}{'' if held else '  WRONG'}", flush=True)
    return held


def submit(service, args, values, name, layout):
    gpus, keys = layout_keys(layout)
    return service.submit(name, *set_words(keys), model=service.work / "models" / args.model,
                          rows=service.work / f"{args.model}.jsonl", mode="qlora", sharding="", gpus=gpus,
                          accumulation=1, **values)


def check(service, args):
    layouts = args.layouts.split(",")
    # Steps beyond the last segment: a job that is cancelled must not have ended.
    values = {"tokens": args.tokens, "steps": SEGMENT * (len(layouts) + 2), "save": SAVE, "type": service.gpu_type()}
    job = submit(service, args, values, "alone", layouts[0])
    state = service.wait(job)
    service.keep_logs("alone", job)
    if state != "SUCCEEDED":
        raise local.Failure(f"{layouts[0]} alone: {state}: {service.status(job)['reason']}")
    alone = {metric["step"]: metric["loss"] for metric in service.steps(job)}
    print(f"{layouts[0]} alone: {len(alone)} steps, losses {alone[1]:.6f} to {alone[max(alone)]:.6f}", flush=True)
    held = True
    job = submit(service, args, values, "chain", layouts[0])
    for number, text in enumerate(layouts):
        last = number == len(layouts) - 1
        held &= check_segment(service, args, job, text, SEGMENT * number, last, alone)
        if not last:
            _, keys = layout_keys(layouts[number + 1])
            job = json.loads(service.ctl("resume", job, "--from", SEGMENT * (number + 1), *set_words(keys), "--json"))["job"]
    return held


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    local.add_arguments(parser)
    parser.add_argument("--layouts", default="full_shard@2,tensor2@2,pipeline2@2,context2@2,whole@1")
    parser.add_argument("--model", default="qwen3-1.7b", help="a size of make_random_model.py")
    parser.add_argument("--tokens", type=int, default=2048, help="of a row")
    args = parser.parse_args()
    if args.cpu:
        args.model, args.tokens = "qwen3-tiny", 256
    for text in args.layouts.split(","):
        layout_keys(text)
    return local.run("layouts", args, [args.model], args.tokens, lambda service: check(service, args))


if __name__ == "__main__":
    sys.exit(main())
