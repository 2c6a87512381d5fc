#!/usr/bin/env python3
"""Runs two builds of sft-rank on the same rows of bench.py, in turns, and says whether they give the same bits.

    python3 deploy/gpu/bench/compare.py --before DIR --after DIR --rows qlora-8b-seq2048 --out DIR \\
        [--settings NAME] [--steps 10] [--turns 2] [--work DIR]

For each row and setting: whether loss and gradient norm of every step are equal bit for bit, the largest memory of
both, and the speed of the second as a ratio of the first (the better run of each). Exit 1 when bits differ or a run
of either is not correct."""

import argparse
import pathlib
import statistics
import subprocess
import sys

import report

HERE = pathlib.Path(__file__).resolve().parent


def run(options, which, binary, turn):
    """One bench.py run; the records of ours."""
    out = pathlib.Path(options.out) / f"{which}-{turn}"
    command = [sys.executable, HERE / "bench.py", "--bin", binary, "--rows", options.rows, "--out", out, "--peer", "none",
               "--steps", options.steps, "--work", options.work, "--keep"]
    if options.settings:
        command += ["--settings", options.settings]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    raw = out / "raw.jsonl"
    if not raw.exists():
        raise SystemExit(f"compare: {which} wrote nothing: {done.stdout[-800:]}{done.stderr[-800:]}")
    return {(record["row"], record["setting"]): record for record in report.load(raw) if record["side"] == "ours"}


def figures(record):
    """Loss and norm of each step, the steady speed, the most memory."""
    steps = record["steps"]
    bits = [(step["loss"], step["grad_norm"]) for step in steps]
    speed = statistics.median(step["tokens_per_second"] for step in steps[2:]) if len(steps) > 2 else 0.0
    return bits, speed, max((step["gpu_memory_bytes"] for step in steps), default=0)


def compare(key, before, after):
    """A line of the table for one row and setting, and whether all is well."""
    runs = {"before": [record[key] for record in before if key in record],
            "after": [record[key] for record in after if key in record]}
    seen = {which: [figures(record) for record in records] for which, records in runs.items()}
    first = seen["before"][0][0] if seen["before"] else []
    same = bool(first) and bool(seen["after"]) and all(bits == first for each in seen.values() for bits, _, _ in each)
    correct = all(report.correct(record) for records in runs.values() for record in records)
    best = {which: max((speed for _, speed, _ in each), default=0.0) for which, each in seen.items()}
    most = {which: max((memory for _, _, memory in each), default=0) / 1e9 for which, each in seen.items()}
    ratio = best["after"] / best["before"] if best["before"] else 0.0
    print(f"{key[0]}, {key[1]}: {len(first)} steps {'the same bits' if same else 'DIFFERENT BITS'}"
          f"{'' if correct else ', NOT CORRECT'}; {best['before']:,.0f} and {best['after']:,.0f} tokens/s, {ratio:.4f}; "
          f"{most['before']:.2f} and {most['after']:.2f} GB")
    return same and correct


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="folder with sft-rank (its plugin in ../lib), or a bundle")
    parser.add_argument("--after", required=True, help="the other one")
    parser.add_argument("--rows", required=True, help="names of bench.py --list, with commas")
    parser.add_argument("--settings", default="", help="only these settings")
    parser.add_argument("--steps", default=10, type=int)
    parser.add_argument("--turns", default=2, type=int, help="runs of each build")
    parser.add_argument("--out", required=True)
    parser.add_argument("--work", required=True, help="models, which both builds read")
    options = parser.parse_args()
    before, after = [], []
    for turn in range(options.turns):
        before.append(run(options, "before", options.before, turn))
        after.append(run(options, "after", options.after, turn))
    keys = sorted({key for records in before + after for key in records})
    if not keys:
        raise SystemExit("compare: no run of either build is on record")
    # Each line is wanted, whatever the one before says.
    return 0 if all([compare(key, before, after) for key in keys]) else 1


if __name__ == "__main__":
    sys.exit(main())
