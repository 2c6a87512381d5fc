"""The server or the worker is stopped (SIGSTOP), as by a debugger, a snapshot or a hypervisor: short of
the job's limit nothing happens, beyond it the job is placed again, once."""

import json
import os
import signal
import subprocess
import time

from harness import BUILD, DEADLINE_S, ServiceCase, run_tests, wait_until

SUCCEEDED = 0
# Longer stops: SFT_STOP_SECONDS=60 python3 stop_test.py
STOP_S = float(os.environ.get("SFT_STOP_SECONDS", "6"))
LIMIT_S = 10  # the least that a job may ask for
BEYOND_S = LIMIT_S + STOP_S
PACE_MS = 50
SERVER_OPTIONS = ("--suspect-after", "3s", "--restart-delay", "0s", "--unreachable-margin", "3s")


class StopTest(ServiceCase):

    def stopped(self, name, seconds):
        self.processes[name].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.processes[name].send_signal(signal.SIGCONT)

    def start_lines(self, limit_s, seconds):
        """A followed job that writes lines for so long, and how many."""
        lines = int(seconds * 1000 / PACE_MS)
        job = self.submit(f"lines {lines} {PACE_MS}", ranks=2, compute=f'unreachable_after = "{int(limit_s)}s"')
        self.wait_for_step(job)
        self.follow(job)
        wait_until("the follower's first line", self.followed)
        return job, lines

    def events(self, job, kind):
        lines = self.sftctl("events", job, "--json").stdout.splitlines()
        return [event["message"] for event in map(json.loads, lines) if event["type"] == kind]

    def test_a_stopped_server_loses_nothing_and_counts_its_stop_as_nobodys_silence(self):
        self.start_server()  # a node is silent after 15 s; it is heard every 5 s
        self.start_worker("node-a", gpus="H100:2")
        self.start_worker("node-b", gpus="H100:2")
        stop_s = max(STOP_S, 12)
        job, lines = self.start_lines(stop_s * 10, stop_s + 8)
        self.processes["server"].send_signal(signal.SIGSTOP)
        # Accepted by the kernel, answered when the server goes on.
        submit = subprocess.Popen([str(BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}", "submit",
                                   str(self.write_job("ok", ranks=2, name="meanwhile")), "--json"],
                                  stdout=subprocess.PIPE, text=True)
        self.processes["submit"] = submit
        time.sleep(stop_s)
        self.processes["server"].send_signal(signal.SIGCONT)
        meanwhile, _ = submit.communicate(timeout=DEADLINE_S)
        if submit.returncode == SUCCEEDED:
            self.assert_ends(json.loads(meanwhile)["job"], SUCCEEDED)
        else:  # its deadline passed, and it said so
            self.assertEqual(submit.returncode, 4)
        self.assert_ends(job, SUCCEEDED)
        self.assertEqual(self.status(job)["attempt"], 1)
        self.assert_followed_whole(job, lines)
        self.assertEqual([line for line in self.events(job, "reason") if "silent" in line], [])

    def test_ranks_end_at_the_limit_of_a_server_that_is_stopped_for_longer_and_go_on_once(self):
        self.start_server(*SERVER_OPTIONS)
        self.start_worker("node-a", gpus="H100:2")
        job = self.submit(f"train steps=400 pace={PACE_MS} save=5", ranks=2,
                          compute=f'unreachable_after = "{LIMIT_S}s"')
        self.wait_for_step(job, 20)
        self.processes["server"].send_signal(signal.SIGSTOP)
        wait_until("the ranks to end", lambda: not self.ranks())
        time.sleep(max(0.0, STOP_S - LIMIT_S))
        self.processes["server"].send_signal(signal.SIGCONT)
        self.assert_ends(job, SUCCEEDED)
        first, second = self.status(job)["attempts"]
        self.assertEqual(first["verdict"]["code"], "fenced")
        self.assertGreaterEqual(second["first_step"], 15)
        self.assertEqual(second["last_step"], 400)

    def test_a_worker_that_is_stopped_short_of_the_limit_is_waited_for(self):
        self.start_server(*SERVER_OPTIONS)
        self.start_worker("node-a", gpus="H100:2")
        job, lines = self.start_lines(STOP_S * 10, STOP_S + 8)
        self.start_worker("node-b", gpus="H100:2")
        self.stopped("node-a", STOP_S)
        self.assert_ends(job, SUCCEEDED)
        self.assertEqual(self.status(job)["attempt"], 1)
        self.assertEqual(self.status(job)["nodes"], ["node-a"])
        self.assert_followed_whole(job, lines)

    def test_a_worker_that_is_stopped_beyond_the_limit_is_replaced_once_and_comes_back_with_nothing(self):
        self.start_server(*SERVER_OPTIONS)
        self.start_worker("node-a", gpus="H100:2")
        job = self.submit(f"train steps={int(BEYOND_S * 1000 / PACE_MS) + 100} pace={PACE_MS} save=5", ranks=2,
                          compute=f'unreachable_after = "{LIMIT_S}s"')
        self.wait_for_step(job, 10)
        self.start_worker("node-b", gpus="H100:2")
        self.processes["node-a"].send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        wait_until("the job to run on node-b", lambda: self.status(job)["attempt"] == 2 and
                   self.status(job)["state"] == "RUNNING")
        placed_after = time.monotonic() - begin
        self.assertGreater(placed_after, LIMIT_S)
        self.assertEqual(len(self.ranks()), 2, "those of the first attempt had ended before")
        time.sleep(max(0.0, BEYOND_S - placed_after))
        self.processes["node-a"].send_signal(signal.SIGCONT)
        print(f"stopped for {time.monotonic() - begin:.1f} s, placed elsewhere after {placed_after:.1f} s")
        self.assert_ends(job, SUCCEEDED, deadline_s=BEYOND_S + DEADLINE_S)
        status = self.status(job)
        self.assertEqual((status["attempt"], status["nodes"]), (2, ["node-b"]))
        wait_until("node-a to have forgotten it", lambda: not list((self.dir / "node-a/attempts").iterdir()))
        self.assert_ends(self.submit("ok", ranks=2, name="next"), SUCCEEDED)


if __name__ == "__main__":
    run_tests()
