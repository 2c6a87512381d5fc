"""deploy/slurm/autoscale.py: what it asks Slurm for, and what it does where Slurm does not answer."""

import argparse
import contextlib
import io
import pathlib
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "deploy/slurm"))
import autoscale
from autoscale import Allocation, Pool, Wanted, plan

POOL = Pool("H100", 8, 0, 4)


def job(name, variant="H100-8x", nodes=1, exclusive=False, state="PENDING", lacks=True):
    return {"job": name, "variant": variant, "node_count": nodes, "exclusive": exclusive, "state": state,
            "outlook": {"lacks_slots": lacks}}


def node(name, free, slurm_job=None, gpu_type="H100", unusable="", total=8):
    return {"node": name, "state": "UP", "unusable": unusable,
            "lease": slurm_job and {"allocation": f"Slurm job {slurm_job}"},
            "slots": [{"gpu_type": gpu_type, "healthy": True, "job": "" if i < free else "job-x"} for i in range(total)]}


class PlanTest(unittest.TestCase):

    def more(self, wanted, nodes=(), allocations=(), pool=POOL):
        return plan(pool, [Wanted(f"job-{i}", *each) for i, each in enumerate(wanted)], list(nodes), list(allocations)).more

    def test_jobs_share_nodes_and_gangs_do_not(self):
        self.assertEqual(self.more([]), 0)
        self.assertEqual(self.more([(1, 4), (1, 2), (1, 2)]), 1)
        self.assertEqual(self.more([(1, 4), (1, 4), (1, 2)]), 2)
        self.assertEqual(self.more([(2, 2)]), 2)
        self.assertEqual(self.more([(2, 4), (1, 4), (1, 4)]), 2)

    def test_what_is_free_or_on_its_way_is_not_asked_for_again(self):
        self.assertEqual(self.more([(1, 8)], [node("static", 8)]), 0)
        self.assertEqual(self.more([(1, 8)], [node("busy", 7)]), 1)
        self.assertEqual(self.more([(1, 8)], [node("leaving", 8, unusable="leaving: ...")]), 1)
        self.assertEqual(self.more([(1, 8)], [node("other", 8, gpu_type="CPU")]), 1)
        self.assertEqual(self.more([(1, 8)], [], [Allocation("7", "PENDING", False)]), 0)
        self.assertEqual(self.more([(1, 8)], [], [Allocation("7", "RUNNING", False)]), 0, "it joins soon")
        self.assertEqual(self.more([(1, 8)], [node("n", 0, slurm_job="7")], [Allocation("7", "RUNNING", False)]), 1)
        self.assertEqual(self.more([(1, 8)], [], [Allocation("7", "COMPLETING", False)]), 1)

    def test_a_gang_that_has_no_room_now_gets_no_part_of_it(self):
        running = [Allocation(str(i), "RUNNING", False) for i in range(3)]
        busy = [node(f"n{i}", 0, slurm_job=str(i)) for i in range(3)]
        self.assertEqual(self.more([(2, 8)], busy, running), 0)
        self.assertEqual(self.more([(2, 8), (1, 8)], busy, running), 1, "a smaller one goes on")

    def test_what_no_pool_of_this_size_can_hold_is_named(self):
        self.assertEqual(plan(POOL, [Wanted("a", 1, 16), Wanted("b", 5, 8), Wanted("c", 4, 8)], [], []),
                         autoscale.Plan(more=4, beyond=["a", "b"]))

    def test_some_nodes_stay(self):
        pool = Pool("H100", 8, 2, 4)
        self.assertEqual(plan(pool, [], [], []), autoscale.Plan(base=2))
        one = [Allocation("7", "RUNNING", True)]
        self.assertEqual(plan(pool, [], [node("n", 8, slurm_job="7")], one), autoscale.Plan(base=1))
        self.assertEqual(plan(pool, [Wanted("a", 3, 8)], [node("n", 8, slurm_job="7")], one),
                         autoscale.Plan(base=1, more=1))
        full = one + [Allocation(str(i), "RUNNING", False) for i in (8, 9, 10)]
        self.assertEqual(plan(pool, [], [], full).base, 0, "--max holds")

    def test_what_waits_at_slurm_for_nothing_is_withdrawn(self):
        waiting = [Allocation("7", "PENDING", False), Allocation("8", "PENDING", False), Allocation("9", "PENDING", True)]
        self.assertEqual(plan(POOL, [], [], waiting).withdraw, ["7", "8"])
        self.assertEqual(plan(POOL, [Wanted("a", 2, 8)], [], waiting).withdraw, ["8"], "the base and the older one are used")
        self.assertEqual(plan(POOL, [], [], [Allocation("7", "RUNNING", False)]).withdraw, [], "it leaves when idle")

    def test_only_jobs_that_wait_for_slots_of_the_type_count(self):
        jobs = [job("a"), job("b", "H100-2x", 3), job("c", "CPU-8x"), job("d", lacks=False), job("e", state="RUNNING"),
                job("f", "H100-2x", exclusive=True), {**job("g"), "outlook": None}]
        self.assertEqual(autoscale.wanted_jobs(POOL, jobs), [Wanted("a", 1, 8), Wanted("b", 3, 2), Wanted("f", 1, 8)])


class AutoscalerTest(unittest.TestCase):

    def make(self, *more):
        options = autoscale.parse(["--gpu-type", "H100", "--gpus", "8", "--max", "4", "--time", "8:00:00", *more,
                                   "--", "--exclusive"])
        return autoscale.Autoscaler(options)

    def run_step(self, scaler, answers):
        """One look, with these answers of programs (an exception is raised); what was called, what was said."""
        calls = []

        def call(command, **_):
            calls.append(command)
            answer = answers.get(command[2] if command[0] == "sftctl" and command[1] == "--server" else
                                 command[1] if command[0] == "sftctl" else command[0], "")
            if isinstance(answer, Exception):
                raise answer
            return answer
        said = io.StringIO()
        with mock.patch.object(autoscale, "call", call), contextlib.redirect_stdout(said):
            try:
                scaler.step()
            except autoscale.Failed:
                said.write("failed")
        return [command for command in calls if command[0] in ("sbatch", "scancel")], said.getvalue()

    def test_silence_of_slurm_or_the_service_is_no_answer(self):
        wanting = {"list": '[{"job": "a", "variant": "H100-8x", "node_count": 1, "exclusive": false, "state": "PENDING", '
                           '"outlook": {"lacks_slots": true}}]', "nodes": "[]", "squeue": "", "sbatch": "17\n"}
        for silent in ("list", "nodes", "squeue"):
            calls, said = self.run_step(self.make(), {**wanting, silent: autoscale.Failed("no answer")})
            self.assertEqual((calls, said), ([], "failed"), silent)
        calls, said = self.run_step(self.make(), wanting)
        self.assertEqual(len(calls), 1)
        self.assertIn("asked Slurm for a node: job 17", said)
        self.assertIn("--job-name=sft-H100-8", calls[0])
        self.assertEqual(calls[0][-2], "--exclusive")

    def test_nodes_that_never_join_are_asked_for_less_and_less(self):
        wanting = {"list": '[{"job": "a", "variant": "H100-8x", "node_count": 1, "exclusive": false, "state": "PENDING", '
                           '"outlook": {"lacks_slots": true}}]', "nodes": "[]", "squeue": "", "sbatch": "17\n"}
        scaler = self.make()
        with mock.patch("time.monotonic") as clock:
            clock.return_value = 0.0
            self.run_step(scaler, wanting)
            clock.return_value = 30.0
            calls, said = self.run_step(scaler, wanting)
            self.assertEqual(calls, [])
            self.assertIn("Slurm job 17 ended before its node joined", said)
            clock.return_value = 91.0
            self.assertEqual(len(self.run_step(scaler, wanting)[0]), 1)
            clock.return_value = 92.0
            self.assertIn("in the next 120 s", self.run_step(scaler, wanting)[1])

    def test_times_are_read_as_slurm_reads_them(self):
        for text, seconds in (("60", 3600), ("60:30", 3630), ("8:00:00", 28800), ("1-12", 129600), ("1-0:30", 88200),
                              ("2-1:2:3", 176523)):
            self.assertEqual(autoscale.slurm_seconds(text), seconds, text)
        for text in ("", "x", "1:2:3:4", "-5", "1-", "x-3"):
            with self.assertRaises(argparse.ArgumentTypeError):
                autoscale.slurm_seconds(text)

    def test_what_could_not_work_is_refused(self):
        for arguments, message in ((["--time", "10"], "Give at least --time 11"), (["--min", "5"], "--min is from 0 to --max"),
                                   (["--interval", "1"], "every 10 s"), (["--name", "a,b"], "--name a,b"),
                                   (["--idle", "x"], "not a time such as 10m")):
            said = io.StringIO()
            with contextlib.redirect_stderr(said), self.assertRaises(SystemExit):
                self.make(*arguments)
            self.assertIn(message, said.getvalue())


if __name__ == "__main__":
    unittest.main()
