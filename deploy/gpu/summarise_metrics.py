#!/usr/bin/env python3
"""One line from `sftctl metrics --json`: python3 deploy/gpu/summarise_metrics.py FILE GPUS"""

import json
import statistics
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        steps = [json.loads(line) for line in file if line.strip()]
    steps = [step for step in steps if step.get("loss") is not None]
    if not steps:
        print("   no step was reported")
        return
    # The first steps warm up: allocator, cuBLAS heuristics, page cache.
    rate = statistics.median(step["tokens_per_second"] for step in steps[len(steps) // 3:])
    memory = max(step["gpu_memory_bytes"] for step in steps) / 1e9
    print(f"   {len(steps)} steps on {sys.argv[2]} GPUs: loss {steps[0]['loss']:.4f} -> "
          f"{steps[-1]['loss']:.4f}, grad norm {steps[-1]['grad_norm']:.3f}, median "
          f"{rate:,.0f} tokens/s, peak {memory:.1f} GB a GPU")


if __name__ == "__main__":
    main()
