"""What trackers are told of a point: the names of the server's own TensorBoard files."""

import datetime
import typing

from .._point import Point

if typing.TYPE_CHECKING:
    from ..job import Job

_OF_STEPS = ("loss", "lr", "grad_norm", "tokens_per_second", "mfu", "epoch")


def scalars_of(point: Point) -> typing.Dict[str, float]:
    """{"train/loss": 1.25, ...}"""
    if point["type"] == "validation":
        side, scalars = "eval/", {"eval/loss": point["val_loss"]}
    else:
        side, scalars = "train/", {"train/" + name: point[name] for name in _OF_STEPS}
        scalars["train/gpu_memory_gb"] = point["gpu_memory_bytes"] / 1e9
    for name, value in point.items():
        if name.startswith(("rewards/", "logps/")) or name == "kl":
            scalars[side + name] = value
        elif name.startswith("comm."):
            scalars[side + name.replace(".", "/")] = value
        elif name.startswith("val."):
            scalars["eval/" + name[4:]] = value
    return scalars


def seconds_of(time: str) -> float:
    """Since 1970; "2026-11-27T12:00:00.123456Z" with or without the fraction, of up to nine digits."""
    whole, _, fraction = time.rstrip("Z").partition(".")
    moment = datetime.datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.timezone.utc)
    return moment.timestamp() + (float("0." + fraction) if fraction else 0.0)


def settings_of(job: "Job") -> typing.Dict[str, str]:
    """The keys of the job that somebody or something has set."""
    if "resolved" not in job.raw:
        job.refresh()
    return {each["key"]: each["value"] for each in job.raw["resolved"] if each["origin"] != "default"}
