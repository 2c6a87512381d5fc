#!/usr/bin/env python3
"""From a bundle alone: profiles a training job on this machine's GPUs through server, worker and sftctl, and checks
what CUPTI gave.

    python3 deploy/gpu/profile_job.py BUNDLE LOG_DIR [--gpus 1] [--model qwen3-1.7b] [--steps 40]

BUNDLE is an unpacked bundle. A QLoRA job runs twice, the second time with three of its steps recorded on every rank: the
losses have to be the same bits, each table has to add up to its steps, kernels have to know the layer that launched
them, with several GPUs NCCL has to be found, and the kernels that take longest are listed. Tables and
trace are left in LOG_DIR; about a minute on one H100. --cpu tries the script itself on CPU slots with a tiny model.
Exit 0 when all of it holds.
"""

import argparse
import collections
import gzip
import json
import statistics
import sys

import service as local

PROFILE_AFTER, RECORDED, TOP = 4, 3, 15


def train(service, args, values, name):
    return service.submit(name, model=service.work / "models" / args.model, rows=service.work / f"{args.model}.jsonl",
                          mode="qlora", sharding="", gpus=args.gpus, accumulation=8 // args.gpus, **values)


def losses(service, name, job):
    """Of all steps of a job, at its end."""
    state = service.wait(job)
    service.keep_logs(name, job)
    if state != "SUCCEEDED":
        raise local.Failure(f"{job} is {state}: {service.status(job)['reason']}")
    return [(metric["step"], metric["loss"], metric["grad_norm"]) for metric in service.steps(job)]


def check_table(table, args):
    """What does not hold."""
    wrong = []
    shares = table["shares"]
    if abs(sum(shares.values()) - table["seconds"]) > 1e-6 * table["seconds"]:
        wrong.append(f"the shares add up to {sum(shares.values())} s of {table['seconds']} s")
    needed = ["attention", "products", "norms and element-wise", "optimizer"]
    needed += [] if args.cpu else ["copies"]
    wrong += [f"no time went to {kind}" for kind in needed if shares[kind] <= 0]
    if args.gpus > 1 and shares["communication"] + table["hidden_communication_seconds"] <= 0:
        wrong.append("no communication was found")
    if table["steps"] != RECORDED or table["events_left_out"] or table["notes"]:
        wrong.append(f"{table['steps']} steps, {table['events_left_out']} events left out, notes {table['notes']}")
    return [f"rank {table['rank']}: {text}" for text in wrong]


def check_trace(path, args):
    """What does not hold of the trace; prints the longest kernels of no kind of their own."""
    with gzip.open(path, "rt") as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    work = [event for event in events if event["cat"] == ("operation" if args.cpu else "kernel")]
    placed = sum("layer" in event.get("args", {}).get("in", "") for event in work)
    ranks = {event["pid"] for event in work}
    times = collections.Counter()
    for event in work:
        times[event["name"]] += event["dur"]
    print(f"trace: {len(events)} events, {len(work)} of work, {placed} of them in a layer; the longest (ms of all steps):")
    for name, micros in times.most_common(TOP):
        print(f"  {micros / 1000:10.3f} {name[:110]}")
    wrong = []
    if len(ranks) != args.gpus:
        wrong.append(f"the trace has work of {len(ranks)} ranks, not {args.gpus}")
    if placed < len(work) / 2:
        wrong.append("most of the work is in no layer")
    return wrong


def check(service, args, tokens):
    values = {"tokens": tokens, "steps": args.steps, "save": args.steps, "type": service.gpu_type()}
    plain = losses(service, "plain", train(service, args, values, "plain"))
    job = train(service, args, values, "profiled")
    local.wait_for_step(service, job, PROFILE_AFTER)
    trace = args.logs / "trace.json.gz"
    answer = json.loads(service.ctl("profile", job, "--steps", RECORDED, "--rank", "all", "-o", trace, "--json"))
    (args.logs / "profile.json").write_text(json.dumps(answer, indent=2))
    wrong = [] if losses(service, "profiled", job) == plain else ["the profiled job's losses are others"]
    rates = {metric["step"]: metric["tokens_per_second"] for metric in service.steps(job)}
    first = answer["ranks"][0]["first_step"]
    before = [rate for step, rate in rates.items() if 2 < step < first]
    after = [rate for step, rate in rates.items() if step > first + RECORDED]
    print(f"tokens/s, medians: {statistics.median(before or [0]):.0f} before, "
          f"{statistics.median(after or [0]):.0f} after the recording")
    for table in answer["ranks"]:
        step = table["seconds"] / table["steps"]
        print(f"rank {table['rank']}, {table['device']}: {1000 * step:.1f} ms a step, {1000 * table['step_seconds_before']:.1f} "
              f"before; stood still for {table['stall_seconds']:.2f} s")
        for kind, seconds in table["shares"].items():
            print(f"  {kind:24} {1000 * seconds / table['steps']:10.3f} ms {100 * seconds / table['seconds']:6.2f} %")
        wrong += check_table(table, args)
    wrong += check_trace(trace, args)
    for text in wrong:
        print(text)
    return not wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    local.add_arguments(parser)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--model", default="qwen3-1.7b", help="a size of make_random_model.py")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    if args.cpu:
        args.model = "qwen3-tiny"
    tokens = 256 if args.cpu else 2048
    return local.run("profile_job", args, [args.model], tokens, lambda service: check(service, args, tokens))


if __name__ == "__main__":
    sys.exit(main())
