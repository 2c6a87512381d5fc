"""Runs a peer's setting in processes of its own."""

import json
import pathlib
import shutil
import statistics
import sys

import ours
import process

HERE = pathlib.Path(__file__).resolve().parent


def command(row, peer, context, plan):
    accumulation = plan["tokens"] // row.seq // peer.batch // plan["gpus"]
    if peer.layout in ("padded", "grouped"):
        rows = plan["tokens"] * plan["row_count"] / plan["row_tokens"]
        accumulation = max(1, round(rows / peer.batch))
    arguments = ["--model", context.model_dir(row.model), "--rows", plan["rows"], "--seq", row.seq,
                 "--batch", peer.batch, "--accumulation", accumulation,
                 "--checkpointing", "on" if peer.checkpointing else "off",
                 "--steps", plan["steps"], *peer.options]
    if row.chat_lengths:
        arguments += ["--layout", peer.layout]
    if peer.program in ("qlora", "moe", "hf"):
        return [sys.executable, HERE / f"peer_{peer.program}.py", *arguments]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone",
            "--nproc-per-node", plan["gpus"], HERE / "peer_fft.py", *arguments]


def result_of(log):
    """The RESULT line; of several (each rank may run out of memory) the last."""
    results = [json.loads(line[len("RESULT "):]) for line in log.read_text(errors="replace").split("\n")
               if line.startswith("RESULT {")]
    return results[-1] if results else None


def run(row, peer, context, plan):
    folder = context.new_folder()
    log = folder / "peer.log"
    line = command(row, peer, context, plan)
    outcome = process.run([line], [log], context.peer_environment, context.limit(), folder)
    record = {"row": row.name, "side": "peer", "setting": peer.name, "default": peer.default,
              "gpus": plan["gpus"], "command": " ".join(str(word).removeprefix(f"{HERE}/") for word in line[1:]),
              "status": "ok", "error": "", "exit_codes": outcome.codes}
    result = result_of(log)
    if result is None or (result["status"] == "ok" and not outcome.ok):
        record["status"] = "timeout" if outcome.timed_out else "failed"
        record["error"] = ours.why(log)
    elif result["status"] == "oom":
        record |= {"status": "oom", "error": result["error"]}
    else:
        steps = result["steps"]
        warm = ours.warm_steps(steps)
        record |= {"steps": steps, "first_step_s": result["first_step_at"] - outcome.started_at,
                   "reserved_gb": result["reserved_gb"], "allocated_gb": result["allocated_gb"],
                   "tokens_per_second": plan["tokens"] / statistics.median(step["seconds"] for step in warm)}
        if row.chat_lengths:
            record["tokens_per_second"] = ours.loss_rate(steps)
    context.keep_logs(f"{row.name} / {peer.name}", [log])
    shutil.rmtree(folder, ignore_errors=True)
    return record
