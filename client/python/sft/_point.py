"""Points of a curve and values of protobuf's JSON as Python has them."""

import typing

Point = typing.Dict[str, typing.Any]
"""A point of a job's curve, with the members of `sftctl metrics --json` (docs/cli.md): of `type` "step" or
"validation"."""

_PREFERENCE = (("rewards/chosen", "rewards_chosen"), ("rewards/rejected", "rewards_rejected"),
               ("rewards/accuracies", "rewards_accuracies"), ("logps/chosen", "logps_chosen"),
               ("logps/rejected", "logps_rejected"), ("kl", "kl"))


def _traffic(message: typing.Mapping[str, typing.Any]) -> typing.Dict[str, float]:
    """What the axes of the ranks' grid cost in the step; empty where there is one rank."""
    axes = message.get("traffic", ())
    result = {"comm.exposed_share": sum(number(each["exposed_share"]) for each in axes)} if axes else {}
    for each in axes:
        result[f"comm.{each['axis']}.exposed_share"] = number(each["exposed_share"])
        result[f"comm.{each['axis']}.GBps"] = number(each["gigabytes_per_second"])
    return result


def number(value: typing.Any) -> float:
    """A double; protobuf writes "NaN" and "Infinity" for those that are no numbers."""
    return float(value)


def point_of(metric: typing.Mapping[str, typing.Any]) -> Point:
    """A message Metric."""
    point: Point
    if metric["is_eval"]:
        point = {"type": "validation", "step": int(metric["step"]), "val_loss": number(metric["val_loss"])}
    else:
        point = {"type": "step", "step": int(metric["step"])}
        point.update({name: number(metric[name]) for name in ("loss", "lr", "grad_norm")})
        point["tokens"] = int(metric["tokens"])
        point["tokens_per_second"] = number(metric["tokens_per_second"])
        point["gpu_memory_bytes"] = int(metric["gpu_memory_bytes"])
        point.update({name: number(metric[name]) for name in ("mfu", "of_limit", "epoch")})
        point["seconds"] = number(metric["step_seconds"])
    point["time"] = metric["time"]
    point["attempt"] = metric["attempt"]
    if metric.get("preference"):
        figures = {name: number(metric["preference"][key]) for name, key in _PREFERENCE}
        figures["rewards/margins"] = figures["rewards/chosen"] - figures["rewards/rejected"]
        point.update(figures)
    point.update({each["name"]: number(each["value"]) for each in metric.get("values", ())})
    point.update(_traffic(metric))
    return point


def progress_of(progress: typing.Optional[typing.Mapping[str, typing.Any]]) -> typing.Dict[str, typing.Any]:
    """A message Progress; empty before the first."""
    if not progress:
        return {}
    whole = ("step", "total_steps", "gpu_memory_bytes", "trainable_parameters", "total_parameters")
    result: typing.Dict[str, typing.Any] = {name: int(progress[name]) for name in whole}
    result.update({name: number(progress[name]) for name in ("loss", "tokens_per_second", "eta_seconds", "mfu")})
    if progress["has_val_loss"]:
        result["val_loss"] = number(progress["val_loss"])
    result.update({each["name"]: number(each["value"]) for each in progress.get("values", ())})
    result.update(_traffic(progress))
    result["phase"] = progress["phase"]
    return result
