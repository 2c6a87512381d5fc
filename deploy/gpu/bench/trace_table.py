#!/usr/bin/env python3
"""Where a step's time goes: sums the GPU kernels of a Chrome trace by kind.

    python3 deploy/gpu/bench/trace_table.py TRACE.json.gz [--top N]

TRACE is what `sft-rank train --profile` writes. Prints milliseconds by kind and by kernel, the time in
which no kernel ran, and the time in which kernels of two streams overlapped.
"""

import argparse
import collections
import gzip
import json
import re

KINDS = [
    ("attention", r"fmha|flash|attention|sdpa|cudnn"),
    ("product", r"gemm|nvjet|cutlass|cublas|splitK|xmma|s16816"),
    ("de-quantise", r"[Nn]f4"),
    ("norm", r"RmsNorm|NormRope"),
    ("glu", r"Glu"),
    ("cross entropy", r"CrossEntropy"),
    ("adapter placement", r"PlaceFactors"),
    ("rope", r"Rope"),
    ("collective", r"nccl"),
    ("copy", r"Memcpy|Memset|copy|Copy|fill|Fill"),
]


def kind_of(name):
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "other")


def union(intervals):
    total, end = 0.0, float("-inf")
    for begin, stop in sorted(intervals):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total


def gaps(work):
    """(microseconds, the name before, the name after) of each time in which nothing ran."""
    found, end, last = [], None, ""
    for event in sorted(work, key=lambda e: e["ts"]):
        if end is not None and event["ts"] > end:
            found.append((event["ts"] - end, last, event["name"]))
        if end is None or event["ts"] + event["dur"] > end:
            end, last = event["ts"] + event["dur"], event["name"]
    return found


def table(trace, top):
    """The text that main prints."""
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    if not work:
        return "the trace holds no GPU kernel\n"
    intervals = [(e["ts"], e["ts"] + e["dur"]) for e in work]
    span = max(stop for _, stop in intervals) - min(begin for begin, _ in intervals)
    busy, summed = union(intervals), sum(e["dur"] for e in work)
    lines = [f"span {span / 1e3:.1f} ms, busy {busy / 1e3:.1f} ms, idle {(span - busy) / 1e3:.1f} ms, "
             f"overlapped {(summed - busy) / 1e3:.1f} ms, {len(work)} launches"]
    kinds, names = collections.Counter(), collections.defaultdict(lambda: [0, 0.0])
    for event in work:
        kinds[kind_of(event["name"])] += event["dur"]
        names[event["name"]][0] += 1
        names[event["name"]][1] += event["dur"]
    for kind, duration in kinds.most_common():
        lines.append(f"{duration / 1e3:10.2f} ms {100 * duration / summed:5.1f} %  {kind}")
    lines += ["", "longest times without work, what ran before them and after:"]
    for gap, before, after in sorted(gaps(work), key=lambda g: -g[0])[:10]:
        lines.append(f"{gap / 1e3:10.2f} ms  {before[:60]} | {after[:60]}")
    lines.append("")
    for name, (count, duration) in sorted(names.items(), key=lambda i: -i[1][1])[:top]:
        lines.append(f"{duration / 1e3:10.2f} ms {count:6d} x {duration / count:9.1f} us  {name[:150]}")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--top", type=int, default=25)
    options = parser.parse_args()
    print(table(options.trace, options.top), end="")


if __name__ == "__main__":
    main()
