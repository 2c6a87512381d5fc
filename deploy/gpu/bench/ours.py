"""Runs sft-rank on one machine without the service: job, launch file, prepare, one rank a GPU, events."""

import json
import math
import shutil
import socket
import statistics

import data
import process
import trace_table

USAGE, OUT_OF_MEMORY = 2, "cuda_oom"
WARM_UP_STEPS = 2  # allocator, cuBLAS heuristics, graphs: left out of the median
PROFILED_STEPS = (4, 5)  # with --profile too: one is recorded, and what it gave is read in the next


def put(job, key, value):
    """Sets "table.key" in the nested tables of a resolved job."""
    *tables, last = key.split(".")
    for table in tables:
        job = job.setdefault(table, {})
    job[last] = value


def make_job(row, setting, gpu_type, plan, overrides):
    """The resolved job as a nested dictionary (common/spec/visit.h). What is not named has the default
    of docs/config.md; sft-rank refuses a key that it does not know. `plan`: gpus, tokens, steps."""
    rows = plan["tokens"] // row.seq
    # GPUs that share a row or are stages of one pipeline take it together.
    ranks = plan["gpus"]
    for axis in ("tensor", "context", "pipeline"):
        ranks //= setting.job.get(f"hyperparameters.parallelism.{axis}_parallel_size", 1)
    if rows % (max(1, setting.batch) * ranks):
        raise SystemExit(f"bench: {row.name}: {rows} rows a step do not split into {ranks} x {setting.batch}")
    keys = {
        "job.model": row.model, "job.data": "rows.jsonl",
        "compute.gpu_type": gpu_type, "compute.gpu_count": plan["gpus"], "compute.nodes": 1,
        "compute.gpus_per_node": plan["gpus"], "compute.variant": f"{gpu_type}-{plan['gpus']}x",
        "training.mode": "full_finetune" if row.mode == "full" else "lora",
        "training.use_qlora": row.mode == "qlora",
        "quantization.bits": 4 if row.mode == "qlora" else 0,
        "hyperparameters.per_device_batch": setting.batch,
        "hyperparameters.gradient_accumulation_steps": rows // setting.batch // ranks if setting.batch else 0,
        "hyperparameters.global_batch": rows,
        "hyperparameters.sequence_length": row.seq,
        "hyperparameters.learning_rate": 1e-4,
        "hyperparameters.n_epochs": 1, "hyperparameters.max_steps": plan["steps"],
        "hyperparameters.parallelism.compute_type": "bf16" if row.device == "cuda" else "fp32",
        "hyperparameters.parallelism.activation_checkpointing": setting.checkpointing,
        "lora.r": 16, "lora.alpha": 32, "lora.dropout": 0.0,
        "data.loss_on": "assistant" if row.validation else "all",
        "data.packing": row.validation or row.chat_lengths,
    }
    if row.validation:
        keys |= {"training.validation.enabled": True, "training.validation.eval_steps": 50,
                 "data.val": "validation.jsonl"}
    job = {}
    for key, value in {**keys, **setting.job, **overrides}.items():
        put(job, key, value)
    return job


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write_launch(row, job, plan, context, folder, **others):
    """The launch file of a run in `folder`; `others`: members beside these or in their place."""
    model = context.model_dir(row.model)
    launch = {
        "attempt_uid": folder.name, "epoch": 1, "job_id": folder.name, "job_json": json.dumps(job),
        "world_size": plan["gpus"], "first_rank": 0, "local_ranks": plan["gpus"],
        "rendezvous": f"127.0.0.1:{free_port()}", "device": row.device,
        "threads_per_rank": max(1, context.cores // plan["gpus"]),
        "model_dir": str(model), "model_name": row.model, "train_file": str(plan["rows"]),
        "val_file": str(data.DEMO / "validation.jsonl") if row.validation else "",
        "cache_dir": str(folder / "cache"), "attempt_dir": str(folder),
        "output_dir": str(folder / "output"),
    } | others
    path = folder / "launch.json"
    path.write_text(json.dumps(launch))
    return path


def read_events(path):
    if not path.exists():
        return []
    # A line that is still being written has no end yet.
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines if line]


def number(value):
    """Events spell what is not finite as text."""
    return float(value)


def status_of(outcome, fatal):
    if outcome.timed_out:
        return "timeout"
    if any(event.get("code") == OUT_OF_MEMORY or "out of memory" in event.get("message", "")
           for event in fatal):
        return "oom"
    return "refused" if USAGE in outcome.codes else "failed"


def warm_steps(steps, profiled=False):
    """The steps whose speed counts; the last one where a run has no others."""
    left_out = PROFILED_STEPS if profiled else ()
    return [step for step in steps if step["step"] > WARM_UP_STEPS and step["step"] not in left_out] or steps[-1:]


def figures(record, folder, gpus, started_at, profiled):
    """Reads the ranks' events into the record."""
    ranks = [read_events(folder / f"rank-{rank}.events") for rank in range(gpus)]
    steps = [event for event in ranks[0] if event["event"] == "step"]
    keep = ("step", "loss", "grad_norm", "seconds", "tokens", "tokens_per_second", "gpu_memory_bytes", "mfu")
    record["steps"] = [{key: event.get(key) for key in keep} for event in steps]
    record["validation"] = [{"step": event["step"], "loss": event["loss"]}
                            for event in ranks[0] if event["event"] == "eval"]
    # Plans and what else a rank reports, as it came.
    record["events"] = [event for event in ranks[0] if event["event"] not in ("step", "eval", "progress")]
    if steps:
        record["first_step_s"] = steps[0]["time"] - started_at
        warm = warm_steps(steps, profiled)
        record["tokens_per_second"] = statistics.median(step["tokens_per_second"] for step in warm)
        record["mfu"] = statistics.median(step.get("mfu") or 0 for step in warm)
        record["reserved_gb"] = max(event["gpu_memory_bytes"] for events in ranks for event in events
                                    if event["event"] == "step") / 1e9
    return [event for events in ranks for event in events if event["event"] == "fatal"]


def loss_rate(steps, profiled=False):
    """Tokens that carry loss a second, of steps that differ in both: the warm ones together."""
    warm = warm_steps(steps, profiled)
    return sum(step["loss_tokens"] for step in warm) / sum(step["seconds"] for step in warm)


def count_loss_tokens(steps, plan):
    """All but the first token of each row carry loss; a step's rows are taken to be of average length."""
    share = 1 - plan["row_count"] / plan["row_tokens"]
    for step in steps:
        step["loss_tokens"] = round(step["tokens"] * share)


def run(row, setting, context, plan, overrides):
    """One run; a record for raw.jsonl. Its folder below the work folder is removed afterwards."""
    job = make_job(row, setting, context.gpu_type(row.device), plan, overrides)
    folder = context.new_folder()
    launch = write_launch(row, job, plan, context, folder)
    program, env = context.bin / "sft-rank", context.environment
    record = {"row": row.name, "side": "ours", "setting": setting.name, "gpus": plan["gpus"], "job": job,
              "status": "ok", "error": ""}
    log = folder / "prepare.log"
    outcome = process.run([[program, "prepare", "--launch", launch]], [log], env,
                          context.limit(), folder)
    started_at, logs = outcome.started_at, [log]
    fatal = [event for event in read_events(folder / "prepare.events") if event["event"] == "fatal"]
    prepared = [event for event in read_events(folder / "prepare.events") if event["event"] == "prepared"]
    record["prepare_s"] = outcome.seconds
    record["rows"] = {key: prepared[0][key] for key in ("rows", "used", "tokens")} if prepared else {}
    if outcome.ok:
        logs += [folder / f"rank-{rank}.log" for rank in range(plan["gpus"])]
        commands = [[*context.rank_prefix(rank), program, "train", "--launch", launch, "--rank", rank]
                    for rank in range(plan["gpus"])]
        events, trace = folder / "rank-0.events", folder / "trace.json.gz"
        if context.options.profile:
            commands[0] += ["--profile", trace]

        def last_step_done():
            # A full model takes longer to deliver than to measure.
            return row.mode == "full" and not row.validation and any(
                event["event"] == "step" and event["step"] >= plan["steps"] for event in read_events(events))

        outcome = process.run(commands, logs[1:], env, context.limit(), folder, last_step_done)
        fatal += figures(record, folder, plan["gpus"], started_at, context.options.profile)
        if row.chat_lengths and record["steps"]:
            count_loss_tokens(record["steps"], plan)
            record["tokens_per_second"] = loss_rate(record["steps"], context.options.profile)
        if trace.exists():
            table = context.out / f"profile-{row.name}-{setting.name.replace(' ', '-')}.txt"
            table.write_text(trace_table.table(trace, top=40))
    if not outcome.ok:
        record["status"] = status_of(outcome, fatal)
        words = [event.get("message", "") for event in fatal] or [why(logs[-1])]
        record["error"] = "; ".join(words)[:600]
    record["exit_codes"] = outcome.codes
    context.keep_logs(f"{row.name} / {setting.name}", logs)
    shutil.rmtree(folder, ignore_errors=True)
    return record


def why(path):
    """The line of a log that most likely says what went wrong: the last with an error, else the last."""
    lines = path.read_text(errors="replace").strip().split("\n") if path.exists() else [""]
    named = [line for line in lines if "rror" in line]
    return (named or lines)[-1].strip()[:600]


def check(record, row, plan, plain, tolerance, learn):
    """Correctness of a run as a list of (name, ok, detail)."""
    checks = []
    steps = record.get("steps", [])
    if not row.validation:
        want = {"rows": plan["row_count"], "used": plan["row_count"], "tokens": plan["row_tokens"]}
        checks.append(("every row is whole", record["rows"] == want, f"{record['rows']}, wanted {want}"))
    finite = bool(steps) and all(math.isfinite(number(step[key])) for step in steps
                                 for key in ("loss", "grad_norm"))
    checks.append(("loss and gradients finite", finite, f"{len(steps)} steps"))
    if steps and plain and plain.get("steps"):
        fast, slow = number(steps[0]["loss"]), number(plain["steps"][0]["loss"])
        error = abs(fast - slow) / abs(slow)
        checks.append(("loss of step 1 equals the plain path's", error <= tolerance,
                       f"{fast:.6f} against {slow:.6f}: {error:.1e} of {tolerance:.0e}"))
    elif plain is not None:
        checks.append(("loss of step 1 equals the plain path's", False,
                       f"no plain loss: {plain['status']} {plain['error'][:200]}"))
    if learn and len(steps) >= 10:
        first = statistics.mean(number(step["loss"]) for step in steps[:5])
        last = statistics.mean(number(step["loss"]) for step in steps[-5:])
        checks.append((f"last 5 of {len(steps)} steps below the first 5", last < first,
                       f"{first:.4f} -> {last:.4f}"))
    consistency = [event for event in record.get("events", []) if event["event"] == "consistency"]
    if consistency:
        checks.append(("ranks and the adapter agree", all(event["consistent"] for event in consistency), ""))
    return [{"name": name, "ok": ok, "detail": detail} for name, ok, detail in checks]
