"""A fleet with something of everything, for the pages' pictures and for what is checked on each of them."""

import json
import math
import random

from dashboard_server import Fleet, at


def curve(random_numbers, high, low, half):
    return lambda step: low + (high - low) * math.exp(-step / half) + random_numbers.gauss(0, 0.035)


def resolved(**values):
    """Resolved values of a job, with their origins."""
    keys = {
        "job.model": "Qwen/Qwen3-8B",
        "job.data": "support-2026-11.jsonl",
        "training.mode": "lora",
        "training.use_qlora": "true",
        "lora.r": "16",
        "compute.gpu_count": "4",
        "hyperparameters.learning_rate": "2e-4",
        "hyperparameters.global_batch": "64",
        "hyperparameters.sequence_length": "4096",
        **values,
    }
    lines = {key: f"job.toml:{number}" for number, key in enumerate(keys, 2)}
    return [{"key": key, "value": value, "origin": lines[key]} for key, value in keys.items()] + [
        {"key": "hyperparameters.warmup_ratio", "value": "0.03", "origin": "default"},
        {"key": "hyperparameters.gradient_accumulation_steps", "value": "4", "origin": "derived: 64 / (4 x 4)"},
    ]


def as_json(values):
    out = {}
    for each in values:
        group, key = each["key"].split(".")
        value = each["value"]
        out.setdefault(group, {})[key] = float(value) if value.replace(".", "").replace("e-", "").isdigit() else value
    return json.dumps(out)


def add_run(fleet, job, name, steps, total, state="RUNNING", shape=(2.3, 0.62, 260), seed=1, **fields):
    """A job with a curve, validations, a log, events and a checkpoint."""
    numbers = random.Random(seed)
    values = resolved(**fields.pop("keys", {}))
    ended = fields.pop("ended", 0)  # seconds ago
    first = -steps * 2.4 - ended
    fields.setdefault("create_time", at(first - 200))
    if ended:
        fields["end_time"] = at(-ended)
    loss = curve(numbers, *shape)
    fleet.add_job(
        job,
        state,
        display_name=name,
        start_time=at(first - 60),
        attempt=1,
        nodes=["nodes/gpu-01"],
        progress={
            "step": str(steps),
            "total_steps": str(total),
            "loss": loss(steps),
            "tokens_per_second": 21480.0,
            "mfu": 0.43,
            "gpu_memory_bytes": "61400000000",
            "eta_seconds": (total - steps) * 2.4,
            "val_loss": shape[1] + 0.08,
            "has_val_loss": True,
            "of_limit": 0.72,
            "phase": "",
            "trainable_parameters": "43646976",
            "total_parameters": "8190735360",
        },
        checkpoint_step=str(steps // 200 * 200),
        resolved=values,
        resolved_json=as_json(values),
        attempts=[
            {
                "number": 1,
                "epoch": "1",
                "state": state,
                "nodes": ["nodes/gpu-01"],
                "first_step": "0",
                "last_step": str(steps),
                "create_time": at(first - 90),
            }
        ],
        **fields,
    )
    for step in range(1, steps + 1):
        point = {
            "step": str(step),
            "loss": loss(step),
            "lr": 2e-4 * min(1, step / 40) * 0.5 * (1 + math.cos(math.pi * step / total)),
            "grad_norm": 0.7 + abs(numbers.gauss(0, 0.12)) + (2.5 if step % 397 == 0 else 0),
            "tokens": "65536",
            "tokens_per_second": 21400 + numbers.gauss(0, 250) - (9000 if step % 200 == 0 else 0),
            "gpu_memory_bytes": str(int(6.05e10 + 4e8 * min(step, 30) / 30 + 5e7 * numbers.random())),
            "mfu": 0.43,
            "time": at(first + step * 2.4),
            "step_seconds": 2.4,
            "attempt": 1,
            "of_limit": 0.72 + numbers.gauss(0, 0.008),
            "is_eval": False,
            "val_loss": 0.0,
            "values": [],
        }
        fleet.points[job].append(point)
        if step % 50 == 0:
            fleet.points[job].append({**point, "is_eval": True, "val_loss": loss(step) + 0.09, "loss": 0.0})
    fleet.logs[(job, 0)] = b"".join(
        b"2026-11-24T10:%02d:%02dZ step %d/%d loss %.4f tokens/s 21480\n"
        % (step // 60 % 60, step % 60, step, total, loss(step))
        for step in range(1, steps + 1)
    )
    fleet.events[job] = [
        {"sequence": "1", "time": at(first - 200), "type": "submitted", "message": "by ada", "attempt": 0},
        {
            "sequence": "2",
            "time": at(first - 90),
            "type": "placed",
            "message": "gpu-01 slots 0,1,2,3",
            "attempt": 1,
        },
        {
            "sequence": "3",
            "time": at(first - 60),
            "type": "prepared",
            "attempt": 1,
            "message": json.dumps(
                {
                    "event": "prepared",
                    "rows": 48210,
                    "used": 48104,
                    "skipped": 106,
                    "forms": "chat",
                    "tokens": 61480000,
                    "loss_tokens": 22150000,
                    "validation": 500,
                }
            ),
        },
    ]
    fleet.checkpoints[job] = [
        {
            "step": str(step),
            "attempt": 1,
            "bytes": "262000000",
            "reason": "steps",
            "best": step == steps // 200 * 200,
            "commit_time": at(first + step * 2.4),
            "place": "server",
            "metric": loss(step) + 0.09,
            "problem": "",
        }
        for step in range(steps // 200 * 200, 0, -200)
    ]
    fleet.events[job] += [
        {
            "sequence": str(4 + i),
            "time": each["commit_time"],
            "type": "checkpoint",
            "attempt": 1,
            "message": json.dumps(
                {
                    "event": "checkpoint",
                    "step": int(each["step"]),
                    "bytes": 262000000,
                    "seconds": 3.1,
                    "stall_seconds": 0.4,
                    "reason": "steps",
                }
            ),
        }
        for i, each in enumerate(reversed(fleet.checkpoints[job]))
    ]


def add_nodes(fleet):
    jobs = {
        "gpu-01": ["job-k3v9qx"] * 4 + ["job-t8w2mc"] * 4,
        "gpu-02": ["job-p5h1za"] * 8,
        "gpu-03": [""] * 8,
        "gpu-04": ["job-d4n8fu"] * 2 + [""] * 6,
    }
    for index, (node, held) in enumerate(jobs.items()):
        fleet.nodes.append(
            {
                "name": f"nodes/{node}",
                "state": "UP",
                "reason": "",
                "worker_version": "1.9.0",
                "incarnation": "5f2c",
                "hostname": f"{node}.example.org",
                "cpus": 128,
                "memory_bytes": "1081000000000",
                "last_seen": at(-1),
                "simulated": False,
                "left_out": "",
                "unusable": "",
                "rival": "",
                "disk": {
                    "total_bytes": "7600000000000",
                    "free_bytes": str(3100000000000 - index * 600000000000),
                    "level": "OK",
                },
                "clock_offset_seconds": 0.004,
                "facts": {"driver_version": "570.124", "interconnect": "NVLink: 8 GPUs, 18 links each, all connected"},
                "slots": [
                    {
                        "index": slot,
                        "gpu_type": "H100",
                        "product_name": "NVIDIA H100 80GB HBM3",
                        "memory_bytes": "85500000000",
                        "memory_used_bytes": str(61400000000 + slot * 90000000 if job else 620000000),
                        "utilization_percent": 96 + slot % 4 if job else 0,
                        "job": job,
                        "healthy": True,
                        "health_reason": "",
                    }
                    for slot, job in enumerate(held)
                ],
            }
        )
    sick = fleet.nodes[2]["slots"][5]
    sick.update(healthy=False, health_reason="Xid 79: the GPU has fallen off the bus")
    fleet.nodes[3]["hold"] = {
        "mode": "DRAIN",
        "reason": "new driver",
        "who": "grace",
        "time": at(-1500),
        "jobs": ["job-d4n8fu"],
        "move_time": at(900),
    }
    fleet.nodes[3]["unusable"] = "drained by grace: new driver"
    fleet.gpu_use = {"gpu-01": busy(2700, 6.1e10), "gpu-02": busy(600, 7.2e10), "gpu-03": busy(0, 0)}
    fleet.variants = [
        {"name": f"H100-{count}x", "gpu_type": "H100", "gpus_per_node": count, "nodes": 4, "nodes_free": free}
        for count, free in ((1, 1), (2, 1), (4, 1), (8, 0))
    ]


def busy(begin, shape):
    """What a GPU does that works since `begin` seconds ago, and nothing before."""

    def use(slot, seconds):
        wave = math.sin(seconds / 97 + slot)
        works = seconds < begin
        return {
            "utilization_percent": 96 + 2 * wave - 3 * (slot % 2) if works else 0,
            "memory_used_bytes": str(int(shape + slot * 4e8 + 2e8 * wave) if works else 620_000_000),
            "power_watts": 640 + 25 * wave + 3 * slot if works else 71,
            "temperature_celsius": int(66 + 2 * wave + slot / 2) if works else 34,
        }

    return use


def add_failed(fleet):
    add_run(
        fleet,
        "job-b7c2ye",
        "qwen3-8b-high-lr",
        312,
        1200,
        "FAILED",
        shape=(2.3, 0.9, 120),
        seed=5,
        variant="H100-4x",
        keys={"hyperparameters.learning_rate": "2e-3"},
        ended=5400,
        reason="the loss is nan at step 312",
        verdict={
            "domain": "USER",
            "code": "nan_loss",
            "message": "the loss is nan at step 312",
            "rank": 3,
            "node": "nodes/gpu-02",
            "process": "rank-3",
            "advice": "lower hyperparameters.learning_rate (it is 2e-3), or raise hyperparameters.warmup_ratio",
            "retries_left": -1,
            "action": "not restarted: the job has to be changed",
            "evidence": [
                "rank 3 ended with exit code 2\n  step 311 loss 9.8113 grad_norm 1841.2\n  sft-rank: the loss is nan at step 312"
            ],
        },
    )
    log = b"".join(b"step %d loss %.4f\n" % (step, 2 + step / 40) for step in range(1, 311))
    fleet.logs[("job-b7c2ye", 3)] = (
        log + b"step 311 loss 9.8113 grad_norm 1841.2\nsft-rank: the loss is nan at step 312\n"
    )
    attempt = fleet.jobs["job-b7c2ye"]["attempts"][0]
    attempt.update(end_time=at(-5400), verdict=fleet.jobs["job-b7c2ye"]["verdict"])


def add_done(fleet):
    add_run(
        fleet,
        "job-m2x6rd",
        "qwen3-8b-support-r8",
        1200,
        1200,
        "SUCCEEDED",
        shape=(2.3, 0.66, 280),
        seed=2,
        group="support",
        keys={"lora.r": "8"},
        ended=9000,
        artifacts=["artifacts/af-1"],
        verdict={
            "domain": "NONE",
            "code": "succeeded",
            "message": "",
            "advice": "",
            "rank": -1,
            "node": "",
            "process": "",
            "evidence": [],
            "action": "",
        },
    )
    fleet.artifacts["artifacts/af-1"] = {
        "name": "artifacts/af-1",
        "job": "job-m2x6rd",
        "kind": "adapter",
        "node": "",
        "node_path": "",
        "create_time": at(-9000),
        "bytes": "87400000",
        "files": [
            {"path": path, "blob": {"sha256": f"{number:x}" * 16, "size": str(size)}}
            for number, (path, size) in enumerate(
                (("adapter_config.json", 812), ("adapter_model.safetensors", 87300000), ("README.md", 3120)), 0x3A7F
            )
        ],
    }


def add_waiting(fleet):
    fleet.add_job(
        "job-w1q7sb",
        display_name="llama-70b-full",
        owner="grace",
        variant="H100-8x",
        reason="waiting for 8 x H100 on one node: gpu-03 has 7, gpu-01 is held by job-k3v9qx and job-t8w2mc",
        create_time=at(-1300),
        outlook={"place": 1, "start_time": at(5100), "promised_start_time": at(7900), "source": "measured"},
        priority="high",
    )
    submit = "sftctl submit llama.toml --set"
    fleet.waits["job-w1q7sb"] = {
        "reason": fleet.jobs["job-w1q7sb"]["reason"],
        "outlook": {
            "place": 3,
            "start_time": at(5100),
            "promised_start_time": at(7900),
            "end_time": at(26700),
            "source": "plan",
        },
        "line": 7,
        "ahead_own": 1,
        "ahead_others": 1,
        "ahead_gpu_hours": 9.25,
        "ahead_unknown": 1,
        "past_starts": 412,
        "past_within_20": 289,
        "past_within_50": 391,
        "history": [
            {
                "time": at(-60 * (1 + number)),
                "place_before": 2,
                "place": 3,
                "start_time_before": at(3000),
                "start_time": at(5100),
                "cause": cause,
            }
            for number, cause in enumerate(
                (
                    "job-u7 was submitted ahead of it",
                    "node gpu-03 cannot be used: drained by ada",
                    "job-k3v9qx takes 35 min longer than expected",
                    "2 jobs of other projects were submitted ahead of it",
                )
            )
        ],
        "what_ifs": [
            {
                "change": "with 4 GPUs in place of 8",
                "now": True,
                "end_time": at(44000),
                "command": f"{submit} compute.gpu_count=4 && sftctl cancel job-w1q7sb",
            },
            {
                "change": "with a time limit of 1h",
                "now": False,
                "start_time": at(900),
                "promised_start_time": at(1800),
                "end_time": at(4500),
                "command": f"{submit} scheduling.time_limit=1h && sftctl cancel job-w1q7sb",
            },
            {
                "change": "with priority urgent",
                "now": False,
                "command": f"{submit} scheduling.priority=urgent && sftctl cancel job-w1q7sb",
            },
        ],
    }
    fleet.add_job(
        "job-z9f3hn",
        display_name="qwen3-8b-support-dpo",
        owner="ada",
        reason="waits for job-k3v9qx",
        after=["job-k3v9qx"],
        create_time=at(-1200),
        outlook={"place": 2, "start_time": at(6900), "source": "plan"},
        group="support",
    )
    fleet.add_job(
        "job-h6u4je",
        display_name="nightly-eval",
        kind="EVALUATE",
        owner="ci",
        variant="H100-1x",
        held=True,
        reason="held by grace: wait for the new data",
        create_time=at(-700),
    )


def add_reports(fleet):
    kinds = {
        "DATASETS": (38, 41200000000),
        "ARTIFACTS": (112, 18900000000),
        "CHECKPOINTS": (64, 16700000000),
        "LOGS": (905, 2300000000),
        "METRICS": (905, 410000000),
        "DATABASE": (1, 96000000),
    }
    uses = [{"kind": kind, "items": str(items), "bytes": str(size)} for kind, (items, size) in kinds.items()]
    fleet.storage = {
        "measured": at(-3),
        "disk": {"total_bytes": "480000000000", "free_bytes": "214000000000", "level": "OK"},
        "kinds": uses,
        "projects": [
            {
                "project": "default",
                "kinds": uses[:4],
                "quota": {
                    "project": "default",
                    "dataset_bytes": "100000000000",
                    "dataset_used": "31200000000",
                    "artifact_bytes": "0",
                    "artifact_used": "12900000000",
                },
            },
            {"project": "research", "kinds": uses[:2]},
        ],
        "biggest": [
            {
                "name": "dataset:5c1e77a0",
                "kind": "DATASETS",
                "bytes": "9800000000",
                "project": "default",
                "owner": "ada",
                "display_name": "support-2026-11.jsonl",
                "last_use": at(-4000),
                "live_jobs": "1",
                "jobs": "7",
                "node": "",
            },
            {
                "name": "job-m2x6rd",
                "kind": "CHECKPOINTS",
                "bytes": "1570000000",
                "project": "default",
                "owner": "ada",
                "display_name": "qwen3-8b-support-r8",
                "last_use": at(-9000),
                "live_jobs": "0",
                "jobs": "1",
                "node": "",
            },
            {
                "name": "dataset:99ab",
                "kind": "DATASETS",
                "bytes": "880000000",
                "project": "research",
                "owner": "mallory",
                "display_name": "old-notes.jsonl",
                "last_use": at(-90000),
                "live_jobs": "0",
                "jobs": "2",
                "node": "",
            },
        ],
    }
    row = {
        "gpu_hours": 1204.4,
        "cpu_slot_hours": 0,
        "succeeded": "181",
        "failed": "22",
        "cancelled": "14",
        "placed": "210",
        "wait_median_seconds": 95,
        "wait_p90_seconds": 2710,
        "failures": [
            {"code": "nan_loss", "domain": "user", "count": "9"},
            {"code": "rank_killed", "domain": "infrastructure", "count": "6"},
        ],
    }
    fleet.stats = {
        "begin": at(-30 * 86400),
        "end": at(0),
        "total": {"name": "", **row},
        "warning": "",
        "types": [{"gpu_type": "H100", "held_hours": 1204.4, "available_hours": 1880.0}],
        "rows": [{"name": "default", **row}, {"name": "research", **row, "gpu_hours": 310.2, "failures": []}],
        "estimates": [
            {"estimate": "start", "count": "88", "within_10": "40", "within_20": "61", "within_50": "83", "mean": 0.19},
            {
                "estimate": "end_after_50_steps",
                "count": "171",
                "within_10": "160",
                "within_20": "168",
                "within_50": "171",
                "mean": 0.03,
            },
        ],
    }
    methods = ("JobService.SubmitJob", "JobService.CancelJob", "OperatorService.HoldNode", "SchedulingService.HoldJob")
    fleet.audit = [
        {
            "sequence": str(100 - i),
            "time": at(-i * 310),
            "principal": ("ada", "grace", "ci")[i % 3],
            "token_id": "abcdefgh",
            "peer": "10.0.0.7:51002",
            "method": methods[i % 4],
            "object": ("job-k3v9qx", "gpu-04")[i % 4 == 2],
            "outcome": "PERMISSION_DENIED" if i % 7 == 3 else "OK",
            "calls": "12" if i % 7 == 3 else "1",
        }
        for i in range(20)
    ]


def sample_fleet():
    fleet = Fleet()
    add_done(fleet)
    add_failed(fleet)
    add_run(fleet, "job-d4n8fu", "granite-2b-code", 260, 3000, seed=7, variant="H100-2x", owner="lin")
    add_run(
        fleet,
        "job-p5h1za",
        "gpt-oss-20b-tools",
        90,
        800,
        seed=4,
        owner="grace",
        variant="H100-8x",
        shape=(1.9, 0.5, 90),
    )
    add_run(
        fleet,
        "job-t8w2mc",
        "qwen3-8b-support-r32",
        540,
        1200,
        seed=6,
        group="support",
        keys={"lora.r": "32"},
        shape=(2.3, 0.58, 240),
    )
    add_run(fleet, "job-k3v9qx", "qwen3-8b-support", 816, 1200, seed=3, group="support")
    numbers = random.Random(4)
    fleet.ranks["job-k3v9qx"] = {
        rank: [
            (int(point["step"]), point["loss"] + numbers.gauss(0.02 * rank, 0.03), 60_900_000_000 + 150_000_000 * rank)
            for point in fleet.points["job-k3v9qx"]
            if not point["is_eval"]
        ]
        for rank in range(4)
    }
    add_waiting(fleet)
    add_nodes(fleet)
    add_reports(fleet)
    return fleet
