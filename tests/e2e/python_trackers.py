"""What trackers hold of a job that the package sft has told them of: run by python_sdk_test.py in the Python environment
that has them. Arguments: the tracker, the job's id, a folder to work in."""

import json
import pathlib
import struct
import sys

import sft
import sft.export


def steps_and_losses(points):
    return [(each["step"], round(each["loss"], 5)) for each in points if each["type"] == "step"]


def check_tensorboard(job, folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    for _ in range(2):
        events = EventAccumulator(sft.export.tensorboard(job, folder))
        events.Reload()
        told = [(each.step, round(each.value, 5)) for each in events.Scalars("train/loss")]
        assert told == steps_and_losses(job.points()), told
    theirs = EventAccumulator(str(folder / "server" / job.id))
    theirs.Reload()
    assert sorted(theirs.Tags()["scalars"]) == sorted(events.Tags()["scalars"]), (theirs.Tags(), events.Tags())
    for tag in theirs.Tags()["scalars"]:
        same = [[(each.step, each.value, round(each.wall_time, 5)) for each in side.Scalars(tag)] for side in (theirs, events)]
        assert same[0] == same[1], tag


def check_mlflow(job, folder):
    from mlflow import MlflowClient
    uri = f"sqlite:///{folder}/mlflow.db"
    client = MlflowClient(tracking_uri=uri)
    run_id = sft.export.mlflow(job, uri, live=False)
    assert sft.export.mlflow(job, uri) == run_id
    history = client.get_metric_history(run_id, "train/loss")
    assert [(each.step, round(each.value, 5)) for each in history] == steps_and_losses(job.points()), history
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED" and run.info.run_name == job.name, run.info
    assert run.data.params["job.model"] == "tiny" and run.data.tags["sft.job"] == job.id, run.data
    assert len(client.search_runs([run.info.experiment_id])) == 1


def records(file):
    """Those of wandb's offline file: a head of 7 bytes, then blocks of 32 KiB as LevelDB's log has them."""
    assert file[:4] == b":W&B", file[:8]
    at, parts = 7, b""
    while at + 7 <= len(file):
        if (1 << 15) - at % (1 << 15) < 7:
            at += (1 << 15) - at % (1 << 15)
            continue
        length, kind = struct.unpack("<HB", file[at + 4:at + 7])
        parts += file[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def check_wandb(job, folder):
    from wandb.proto import wandb_internal_pb2
    for _ in range(2):
        assert sft.export.wandb(job, mode="offline", dir=str(folder)) == job.id
    rows = []
    for path in sorted(pathlib.Path(folder).glob("wandb/offline-run-*/*.wandb")):
        for data in records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
                rows.append((items["_step"], round(items["train/loss"], 5)))
    assert rows == steps_and_losses(job.points()), rows


tracker, name, where = sys.argv[1:]
globals()["check_" + tracker](sft.Client().job(name), pathlib.Path(where))
