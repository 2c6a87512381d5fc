"""A job of the server."""

import base64
import sys
import time
import typing
import uuid

from . import _show
from ._download import download
from ._http import given
from ._point import Point, point_of, progress_of

if typing.TYPE_CHECKING:
    from .client import Client

ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
Json = typing.Dict[str, typing.Any]


class Job:
    """A job as it was when it was last asked for: refresh(), wait() and follow() bring it up to date.

    `raw` is the server's message Job. Not to be used by several threads at once.
    """

    def __init__(self, client: "Client", raw: Json):
        self._client = client
        self.raw = raw

    @property
    def id(self) -> str:
        """ "job-0jd5vqcmhr" """
        return str(self.raw["name"]).rpartition("/")[2]

    @property
    def name(self) -> str:
        """Its label (job.name)."""
        return str(self.raw["display_name"])

    @property
    def kind(self) -> str:
        return str(self.raw["kind"])

    @property
    def state(self) -> str:
        """PENDING, PREPARING, RUNNING, CANCELLING, SUCCEEDED, FAILED or CANCELLED."""
        return str(self.raw["state"])

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def reason(self) -> str:
        return str(self.raw["reason"])

    @property
    def owner(self) -> str:
        return str(self.raw["owner"])

    @property
    def project(self) -> str:
        return str(self.raw["project"])

    @property
    def attempt(self) -> int:
        return int(self.raw["attempt"])

    @property
    def verdict(self) -> typing.Optional[Json]:
        """Why it ended: `code`, `message`, `advice`, `domain`, ...; None before."""
        return self.raw.get("verdict")

    @property
    def progress(self) -> Json:
        """`step`, `total_steps`, `loss`, `tokens_per_second`, ...; empty before the first step."""
        return progress_of(self.raw.get("progress"))

    @property
    def checkpoint_step(self) -> int:
        """Of its newest checkpoint; 0: none."""
        return int(self.raw["checkpoint_step"])

    @property
    def warnings(self) -> typing.List[Json]:
        """Of its job file."""
        return list(self.raw.get("warnings", ()))

    def refresh(self) -> "Job":
        self.raw = self._call("JobService/GetJob")
        return self

    def wait(self, timeout: typing.Optional[float] = None, callbacks: typing.Iterable[typing.Any] = (),
             progress: bool = True) -> "Job":
        """Waits until the job has ended, and shows how it goes. TimeoutError after `timeout` seconds. Ctrl-C ends the
        waiting alone: the job goes on.

        Each callback may have on_log(job, point), on_evaluate(job, point), on_save(job, step) and on_train_end(job);
        they are called here, from the first point on. One that raises is left out from then on, with a warning.
        """
        view = _show.view_of(progress)
        points: typing.List[Point] = []
        calls = _Callbacks(callbacks)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            for kind, data in self._feed(deadline):
                if kind == "job":
                    calls.on_job(self)
                else:
                    points += data
                    for point in data:
                        calls.call("on_evaluate" if point["type"] == "validation" else "on_log", self, point)
                view.show(self, points)
        except KeyboardInterrupt:
            view.finish(self, points)
            print(f'{self.id} goes on: come back with sft.Client().job("{self.id}").wait(), or '
                  f"`sftctl status {self.id} --watch`", file=sys.stderr, flush=True)
            raise
        except TimeoutError:
            view.finish(self, points)
            raise TimeoutError(f"{self.id} has not ended after {timeout:g} s: it is {self.state}") from None
        view.finish(self, points)
        calls.call("on_train_end", self)
        return self

    def follow(self) -> typing.Iterator[Point]:
        """The points of its curve, from the first on, as they come, until the job has ended. A connection that breaks
        or a server that is restarted leaves no gap and no double."""
        for kind, data in self._feed():
            if kind == "metrics":
                yield from data

    def batches(self, index: int = 0, live: bool = True) -> typing.Iterator[typing.Tuple[typing.List[Point], int]]:
        """The points from `index` on in batches, each with the index behind it; with `live` until the job has ended,
        else those that are there. What exporters are made of."""
        if not live:
            for answer in self._client.stream("JobService/ReadMetrics", {"name": self.id, "index": index}):
                yield [point_of(each) for each in answer["metrics"]], int(answer["next_index"])
            return
        for kind, data in self._client.feed(job=self.id, metrics=index):
            if kind == "job":
                self.raw = data
            elif kind == "metrics":
                yield [point_of(each) for each in data["points"]], int(data["next"])

    def _feed(self, deadline: typing.Optional[float] = None) -> typing.Iterator[typing.Tuple[str, typing.Any]]:
        for kind, data in self._client.feed(deadline=deadline, job=self.id, metrics=0):
            if kind == "job":
                self.raw = data
                yield kind, data
            elif kind == "metrics":
                yield kind, [point_of(each) for each in data["points"]]

    def metrics(self) -> typing.Any:
        """All points of its curve so far: a pandas DataFrame where pandas is installed, else a list of dicts."""
        points = self.points()
        try:
            import pandas  # type: ignore
        except ImportError:
            return points
        return pandas.DataFrame(points)

    def points(self) -> typing.List[Point]:
        return [point for batch, _ in self.batches(live=False) for point in batch]

    def log(self, rank: int = 0, attempt: int = 0) -> str:
        """What is kept of a rank's log; of the attempt that runs or was last, or another one (from 1)."""
        request = given({"name": self.id, "rank": rank, "attempt": attempt})
        data = b"".join(base64.b64decode(each["data"]) for each in self._client.stream("JobService/ReadLog", request))
        return data.decode(errors="replace")

    def events(self) -> typing.List[Json]:
        """Its history, oldest first: `sequence, time, type, message, attempt`."""
        return [{**each, "sequence": int(each["sequence"])}
                for each in self._client.pages("JobService/ListEvents", {"name": self.id}, "events")]

    def checkpoints(self) -> typing.List[Json]:
        """The saved training states, newest first: `step, attempt, bytes, reason, metric, best, commit_time, ...`."""
        answer = self._client.call("JobService/ListCheckpoints", {"name": self.id})
        return [{**each, "step": int(each["step"]), "bytes": int(each["bytes"])} for each in answer["checkpoints"]]

    def cancel(self, reason: str = "", checkpoint: bool = False) -> "Job":
        """Asks for its end, with `checkpoint` after saving its training state; wait() until its processes are gone."""
        self.raw = self._call("JobService/CancelJob", reason=reason, checkpoint=checkpoint)
        return self

    def checkpoint(self) -> int:
        """Asks the running job to save its training state; the step that it will have, or a later one."""
        return int(self._call("JobService/CheckpointJob", request_id=str(uuid.uuid4()))["step"])

    def resume(self, step: int = 0, allow_changes: bool = False,
               set: typing.Optional[typing.Mapping[str, typing.Any]] = None) -> "Job":
        """A new job that goes on from a checkpoint of this ended one: that of `step`, or the newest."""
        from ._submit import overrides_of
        return Job(self._client, self._call(
            "JobService/ResumeJob", request_id=str(uuid.uuid4()), step=step, allow_changes=allow_changes,
            overrides=overrides_of(set or {})))

    def hold(self, reason: str = "") -> "Job":
        """Keeps the waiting job from being placed, until release()."""
        self.raw = self._call("SchedulingService/HoldJob", reason=reason)
        return self

    def release(self) -> "Job":
        self.raw = self._call("SchedulingService/ReleaseJob")
        return self

    def download(self, path: typing.Optional[str] = None) -> str:
        """Downloads what the job delivered into the folder `path`, by default JOB-adapter, JOB-model, ... in the working
        directory, and returns it. The folder appears when it is complete; the same call goes on with a download that
        broke."""
        return download(self._client, self.id, path)

    def adapter(self, path: typing.Optional[str] = None) -> str:
        """The folder of its adapter, downloaded once: what peft.PeftModel.from_pretrained takes."""
        return download(self._client, self.id, path, kind="adapter")

    def _call(self, method: str, **request: typing.Any) -> Json:
        return self._client.call(method, given({"name": self.id, **request}))

    def __repr__(self) -> str:
        return f"<sft.Job {_show.state_line(self)}>"

    def _repr_html_(self) -> str:
        return _show.html_of(self)


class _Callbacks:
    def __init__(self, callbacks: typing.Iterable[typing.Any]):
        self._callbacks = list(callbacks)
        self._saved: typing.Optional[int] = None

    def on_job(self, job: Job) -> None:
        step = job.checkpoint_step
        if step > 0 and step != self._saved:
            self.call("on_save", job, step)
        self._saved = step

    def call(self, name: str, *arguments: typing.Any) -> None:
        for callback in list(self._callbacks):
            try:
                function = getattr(callback, name, None)
                if function is not None:
                    function(*arguments)
            except Exception as error:  # pylint: disable=broad-except
                self._callbacks.remove(callback)
                print(f"{type(callback).__name__}.{name} failed and is not called any more; the job goes on: {error!r}",
                      file=sys.stderr, flush=True)


class JobList(typing.List[Job]):
    """Jobs, shown as a table in notebooks."""

    def _repr_html_(self) -> str:
        return _show.table(self)
