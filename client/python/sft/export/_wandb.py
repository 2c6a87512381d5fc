"""Weights & Biases, through the user's own package and login; WANDB_MODE=offline works."""

import json
import pathlib
import typing

from ._scalars import scalars_of, settings_of

if typing.TYPE_CHECKING:
    from ..job import Job


class _Place:
    """How far earlier calls came, beside what wandb keeps: a run that is offline cannot ask the service."""

    def __init__(self, folder: str, job: str):
        self._path = pathlib.Path(folder) / f"sft-{job}.json"

    def get(self) -> int:
        try:
            return int(json.loads(self._path.read_text(encoding="utf-8"))["next"])
        except FileNotFoundError:
            return 0

    def put(self, index: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"next": index}), encoding="utf-8")


def wandb(job: "Job", live: bool = True, project: str = "sft", **options: typing.Any) -> str:
    """Writes settings and curve into the run of the job's id, with `live` until the job has ended; returns that id.
    `options` go to wandb.init (entity=, dir=, tags=, mode=). wandb takes no earlier step than its last: of steps that a
    restart runs again it keeps the first. A second call goes on where the first ended."""
    import wandb as package  # type: ignore
    run = package.init(id=job.id, resume="allow", project=project, name=job.name, config=settings_of(job), **options)
    try:
        place = _Place(run.settings.wandb_dir, job.id)
        last = run.starting_step - 1
        for points, behind in job.batches(place.get(), live):
            for point in points:
                if point["step"] >= max(last, run.starting_step):
                    last = point["step"]
                    run.log(scalars_of(point), step=last)
            place.put(behind)
        job.refresh()
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish(exit_code=1 if job.state == "FAILED" else 0)
    return str(job.id)
