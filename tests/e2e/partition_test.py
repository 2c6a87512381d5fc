"""A worker that the server cannot reach: short of the job's limit nothing happens, beyond it the job is
placed elsewhere, once. The network between them is cut in a namespace of the kernel's (network.py)."""

import json
import os
import time

from harness import DEADLINE_S, ServiceCase, free_port, processes_with, wait_until
from network import CutNetwork, run_tests

SUCCEEDED = 0
# Longer cuts: SFT_CUT_SECONDS=300 python3 partition_test.py
CUT_S = float(os.environ.get("SFT_CUT_SECONDS", "5"))
PACE_MS = 100
LIMIT_S = 10  # the least that a job may ask for


class PartitionTest(ServiceCase):

    def setUp(self):
        super().setUp()
        missing = CutNetwork.missing()
        if missing:
            self.skipTest(missing)
        self.network = CutNetwork(self.port, free_port())
        self.network.open()
        self.addCleanup(self.network.close)

    def test_a_cut_below_the_limit_changes_nothing(self):
        self.start_server()
        self.start_worker("node-a", gpus="H100:2", prefix=self.network.prefix())
        steps = int((CUT_S + 10) * 1000 / PACE_MS)
        job = self.submit(f"lines {steps} {PACE_MS}", ranks=2,
                          compute=f'unreachable_after = "{int(CUT_S * 10 + 60)}s"')
        self.wait_for_step(job)
        self.start_worker("node-b", gpus="H100:2")
        self.follow(job)
        self.network.cut()
        time.sleep(CUT_S)
        self.network.mend()
        self.assert_ends(job, SUCCEEDED)
        status = self.status(job)
        self.assertEqual(status["attempt"], 1, status)
        self.assert_followed_whole(job, steps)

    def test_a_cut_beyond_the_limit_replaces_the_gang_once(self):
        self.start_server("--suspect-after", "3s", "--restart-delay", "0s", "--unreachable-margin", "3s")
        self.start_worker("node-a", gpus="H100:2", prefix=self.network.prefix())
        steps = int((max(CUT_S, 15) + 8) * 1000 / PACE_MS)  # it ends after the cut
        job = self.submit(f"train steps={steps} pace={PACE_MS} save=5", ranks=2,
                          compute=f'unreachable_after = "{LIMIT_S}s"')
        self.wait_for_step(job, 10)
        self.start_worker("node-b", gpus="H100:2")
        self.follow(job)
        self.network.cut()
        cut_at = time.monotonic()
        wait_until("the job to run on node-b",
                   lambda: self.status(job)["attempt"] == 2 and self.status(job)["state"] == "RUNNING")
        placed_after = time.monotonic() - cut_at
        self.assertGreater(placed_after, LIMIT_S)
        on_a = "sft-fake-rank train --launch " + str(self.dir / "node-a")
        self.assertEqual(processes_with(on_a), [], "its ranks had ended before the job was placed again")
        time.sleep(max(0, CUT_S - placed_after))
        self.network.mend()
        print(f"cut for {time.monotonic() - cut_at:.1f} s, placed elsewhere after {placed_after:.1f} s")
        self.assert_ends(job, SUCCEEDED)
        status = self.status(job)
        self.assertEqual(status["attempt"], 2, status)
        self.assertEqual(self.processes["follow"].wait(timeout=DEADLINE_S), 0, (self.dir / "follow.err").read_text())
        second = self.sftctl("logs", job).stdout.encode()
        self.assertTrue(self.followed().endswith(second), "the follower went on with the second attempt")
        self.assertEqual(status["nodes"], ["node-b"])
        points = [json.loads(line) for line in self.sftctl("metrics", job, "--json").stdout.splitlines()]
        self.assertEqual(points[-1]["step"], steps)
        wait_until("node-a to have forgotten it",
                   lambda: not list((self.dir / "node-a/attempts").iterdir()))


if __name__ == "__main__":
    run_tests()
