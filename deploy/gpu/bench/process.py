"""Processes of one run: started together, ended together, within a time limit."""

import dataclasses
import os
import signal
import subprocess
import time

POLL_S = 0.1
GRACE_S = 5


@dataclasses.dataclass
class Outcome:
    codes: list  # of each process; negative: the signal that ended it
    started_at: float  # Unix seconds
    seconds: float
    timed_out: bool = False
    cut_short: bool = False  # done() said that the rest is not needed

    @property
    def ok(self):
        return self.cut_short or (not self.timed_out and not any(self.codes))


def _end(processes):
    """SIGTERM, then SIGKILL, to the process groups that this program started."""
    for kind, patience in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        running = [process for process in processes if process.poll() is None]
        for process in running:
            try:
                os.killpg(process.pid, kind)
            except ProcessLookupError:
                continue
        until = time.monotonic() + patience
        while any(process.poll() is None for process in running) and time.monotonic() < until:
            time.sleep(POLL_S)


def run(commands, log_paths, env, limit_s, cwd, done=None):
    """Runs the commands at once, each into its log, until all have ended, one has failed, the limit has
    passed or done() is true."""
    begin, started_at = time.monotonic(), time.time()
    processes = []
    timed_out = cut_short = False
    try:
        for command, path in zip(commands, log_paths):
            with open(path, "wb") as log:
                processes.append(subprocess.Popen(
                    [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, env=env, cwd=cwd, start_new_session=True))
        while any(process.poll() is None for process in processes):
            if time.monotonic() - begin > limit_s:
                timed_out = True
                break
            if done is not None and done():
                cut_short = True
                break
            if any(process.poll() not in (None, 0) for process in processes):
                time.sleep(1)  # the others may still say why
                break
            time.sleep(POLL_S)
    finally:
        _end(processes)
    return Outcome([process.poll() for process in processes], started_at, time.monotonic() - begin,
                   timed_out, cut_short)
