"""No wait of the service follows the wall clock, which somebody may set back."""

import re
import shutil
import unittest

from harness import BUILD, DEADLINE_S, ServiceCase, free_port, run_tests, wait_until

# With a deadline on the wall clock: a futex; a sleep until, or a timer that goes off at a time of it.
FOLLOWS = [re.compile(r"futex\(.*FUTEX_CLOCK_REALTIME.*\{tv_sec="),
           re.compile(r"clock_nanosleep\(CLOCK_REALTIME, TIMER_ABSTIME")]
TIMER = re.compile(r"timerfd_create\(CLOCK_REALTIME|timer_create\(CLOCK_REALTIME")


def follows_the_wall_clock(line):
    return any(kind.search(line) for kind in FOLLOWS) or bool(TIMER.search(line))


def waits_on_the_wall_clock(trace):
    """Of a trace with stacks (strace -k): each such call with its stack, which is empty where the process ended in it."""
    lines = trace.read_text(errors="replace").splitlines()
    found = []
    for at, line in enumerate(lines):
        if not follows_the_wall_clock(line):
            continue
        end = at
        if line.endswith("<unfinished ...>"):
            resumed = line.split()[0] + " <... "
            end = next((i for i in range(at + 1, len(lines)) if lines[i].startswith(resumed)), len(lines))
        after = next((i for i in range(end + 1, len(lines)) if not lines[i].startswith(" > ")), len(lines))
        found.append((line, "\n".join(lines[end + 1:after])))
    return found


class ClockTest(ServiceCase):

    def traced(self, name):
        return ["strace", "-f", "-qq", "-e", "trace=futex,clock_nanosleep,timerfd_create,timer_create",
                "-o", self.dir / f"{name}.trace"]

    @unittest.skipUnless(shutil.which("strace"), "there is no strace")
    def test_no_wait_has_a_deadline_on_the_wall_clock(self):
        self.start("server", *self.traced("server"), BUILD / "bin/sft-server", "--listen",
                   f"127.0.0.1:{self.port}", "--http", f"127.0.0.1:{free_port()}", "--data-dir", self.dir / "server")
        wait_until("the server to answer", lambda: self.sftctl("nodes").returncode == 0)
        self.start_worker(prefix=self.traced("worker"))
        job = self.submit("train steps=20 pace=50 save=5", ranks=2)
        self.assert_ends(job, 0)
        for name, port, code in (("client", self.port, 0), ("waiting", free_port(), 4)):  # nobody is there
            self.start(name, *self.traced(name), BUILD / "bin/sftctl", "--server", f"127.0.0.1:{port}", "nodes")
            self.assertEqual(self.processes[name].wait(timeout=DEADLINE_S), code)
        for name in ("server", "worker", "client", "waiting"):
            lines = (self.dir / f"{name}.trace").read_text(errors="replace").splitlines()
            timed = [line for line in lines if "futex(" in line and "{tv_sec=" in line]
            self.assertTrue(timed, f"{name}: the trace has no wait with a deadline at all")
            bad = [line for line in lines if follows_the_wall_clock(line)]
            self.assertEqual(bad[:5], [], f"{name}: {len(bad)} of {len(lines)}")


if __name__ == "__main__":
    run_tests()
