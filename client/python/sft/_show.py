"""What a person sees: a bar on a terminal, one display in a notebook, else plain lines; all text of others escaped."""

import html
import math
import shutil
import sys
import time
import typing

from ._point import Point

if typing.TYPE_CHECKING:
    from .job import Job

_EVERY_S = 1.0
_CURVE = 400
_BAR = 24


def one_line(text: str) -> str:
    """Without what moves a terminal's cursor or breaks the line."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def duration(seconds: float) -> str:
    if not math.isfinite(seconds) or seconds <= 0:
        return "?"
    seconds = int(seconds)
    if seconds >= 86400:
        return f"{seconds // 86400}d {seconds % 86400 // 3600}h"
    if seconds >= 3600:
        return f"{seconds // 3600}h {seconds % 3600 // 60:02d}m"
    if seconds >= 60:
        return f"{seconds // 60}m {seconds % 60:02d}s"
    return f"{seconds}s"


def figures(job: "Job") -> str:
    """ "120/400  loss 1.2345  val 1.3012  1,200 tok/s  eta 4m 10s" """
    progress = job.progress
    if not progress:
        return ""
    parts = [f"{progress['step']}/{progress['total_steps']}"]
    if job.kind == "SFT":
        parts.append(f"loss {progress['loss']:.4f}")
    if "val_loss" in progress:
        parts.append(f"val {progress['val_loss']:.4f}")
    parts.append(f"{progress['tokens_per_second']:,.0f} tok/s")
    if not job.ended:
        parts.append("eta " + duration(progress["eta_seconds"]))
    return "  ".join(parts)


def state_line(job: "Job") -> str:
    why = job.reason or (job.verdict["message"] if job.verdict and job.state == "FAILED" else "")
    return one_line(f"{job.id} {job.state}" + (f": {why}" if why else ""))


def share(job: "Job") -> float:
    total = job.progress.get("total_steps", 0)
    return min(1.0, job.progress["step"] / total) if total else 0.0


def html_of(job: "Job", points: typing.Sequence[Point] = ()) -> str:
    rows = [("job", f"{job.id} ({job.name})"), ("state", job.state + (f": {job.reason}" if job.reason else ""))]
    if job.progress:
        rows.append(("progress", figures(job)))
    if job.verdict:
        rows += [(name, job.verdict[name]) for name in ("code", "message", "advice") if job.verdict[name]]
    cells = "".join(f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
                    f"<td style='text-align:left'>{html.escape(text)}</td></tr>" for name, text in rows)
    bar = (f"<div style='width:{_CURVE}px;background:#8884'>"
           f"<div style='width:{100 * share(job):.1f}%;height:6px;background:#2a78d6'></div></div>")
    return f"<div><table>{cells}</table>{bar}{_curve(points)}</div>"


def table(jobs: typing.Sequence["Job"]) -> str:
    head = "".join(f"<th style='text-align:left'>{name}</th>" for name in ("job", "name", "state", "owner", "progress"))
    body = "".join("<tr>" + "".join(f"<td style='text-align:left'>{html.escape(text)}</td>" for text in (
        job.id, job.name, job.state, job.owner, figures(job))) + "</tr>" for job in jobs)
    return f"<table><tr>{head}</tr>{body}</table>"


def _curve(points: typing.Sequence[Point]) -> str:
    """The loss of steps, as a line; of many, some."""
    losses = [(each["step"], each["loss"]) for each in points if math.isfinite(each.get("loss", math.nan))]
    losses = losses[::max(1, len(losses) // _CURVE)]
    if len(losses) < 2 or losses[0][0] == losses[-1][0]:
        return ""
    low, high = min(loss for _, loss in losses), max(loss for _, loss in losses)
    first, last, height = losses[0][0], losses[-1][0], 100
    line = " ".join(f"{_CURVE * (step - first) / (last - first):.1f},"
                    f"{height - height * (loss - low) / ((high - low) or 1):.1f}" for step, loss in losses)
    return (f"<svg width='{_CURVE}' height='{height + 8}' viewBox='0 -4 {_CURVE} {height + 8}'>"
            f"<polyline points='{line}' fill='none' stroke='#2a78d6' stroke-width='1.5'/></svg>"
            f"<div>loss {high:.4g} to {low:.4g}</div>")


class View:
    """Shows a job that is waited for. finish() once, however it ends."""

    def show(self, job: "Job", points: typing.Sequence[Point]) -> None:
        raise NotImplementedError

    def finish(self, job: "Job", points: typing.Sequence[Point]) -> None:
        raise NotImplementedError


class _Terminal(View):
    def __init__(self) -> None:
        self._state, self._due, self._drawn = "", 0.0, 0

    def show(self, job: "Job", points: typing.Sequence[Point]) -> None:
        line = state_line(job)
        if line != self._state:
            self._state = line
            self._write("\r" + " " * self._drawn + "\r" + line + "\n")
            self._drawn = 0
        if job.progress and time.monotonic() >= self._due:
            self._draw(job)

    def finish(self, job: "Job", points: typing.Sequence[Point]) -> None:
        self.show(job, points)
        if job.progress:
            self._draw(job)
        if self._drawn:
            self._write("\n")

    def _draw(self, job: "Job") -> None:
        self._due = time.monotonic() + _EVERY_S
        done = int(_BAR * share(job))
        line = f"[{'#' * done}{'.' * (_BAR - done)}] {figures(job)}"[:shutil.get_terminal_size().columns - 1]
        self._write("\r" + line.ljust(self._drawn))
        self._drawn = len(line)

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


class _Lines(View):
    """Each state, and each tenth of the steps."""

    def __init__(self) -> None:
        self._state, self._tenth = "", 0

    def show(self, job: "Job", points: typing.Sequence[Point]) -> None:
        line = state_line(job)
        if line != self._state:
            self._state = line
            print(line, file=sys.stderr, flush=True)
        tenth = int(10 * share(job))
        if tenth > self._tenth:
            self._tenth = tenth
            print(one_line(f"{job.id} {figures(job)}"), file=sys.stderr, flush=True)

    def finish(self, job: "Job", points: typing.Sequence[Point]) -> None:
        self.show(job, points)


class _Notebook(View):
    """One display, updated at most once a second."""

    def __init__(self, display: typing.Callable[..., typing.Any]) -> None:
        self._display, self._handle, self._due = display, None, 0.0

    def show(self, job: "Job", points: typing.Sequence[Point]) -> None:
        if time.monotonic() >= self._due:
            self.finish(job, points)

    def finish(self, job: "Job", points: typing.Sequence[Point]) -> None:
        self._due = time.monotonic() + _EVERY_S
        shown = {"text/html": html_of(job, points), "text/plain": one_line(f"{state_line(job)}  {figures(job)}")}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


class _Silent(View):
    def show(self, job: "Job", points: typing.Sequence[Point]) -> None:
        pass

    finish = show


def view_of(progress: bool) -> View:
    """What fits where this runs."""
    if not progress:
        return _Silent()
    # Only a kernel that has loaded IPython has displays.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and hasattr(shell, "kernel"):
        from IPython.display import display  # type: ignore
        return _Notebook(display)
    return _Terminal() if sys.stderr.isatty() else _Lines()
