"""Nodes that a real Slurm lends: deploy/slurm with slurmctld and four slurmd in namespaces (slurm.py)."""

import json
import os
import pathlib
import re
import subprocess
import time

import slurm
from harness import BUILD, DEADLINE_S, ServiceCase, wait_until
from network import run_tests

SLURM_DIR = pathlib.Path(__file__).parents[2] / "deploy/slurm"
SUCCEEDED, USAGE = 0, 2


class SlurmTest(ServiceCase):

    def setUp(self):
        missing = slurm.missing()
        if missing:
            self.skipTest(missing)
        super().setUp()
        self.cluster = slurm.Cluster(self.dir / "slurm")
        self.addCleanup(self.end_cluster)
        self.cluster.open()
        self.environment = {**self.cluster.environment, "XDG_CONFIG_HOME": str(self.dir / "config"),
                            "SFT_SLURM_ENV": str(self.dir / "slurm.env")}
        self.serve()
        self.set_up()

    def end_cluster(self):
        if self._outcome_failed():
            print(self.cluster.logs())
        self.cluster.close()

    def serve(self):
        """A server that nodes reach, with TLS and tokens."""
        init = subprocess.run([str(BUILD / "bin/sft-server"), "init", "--data-dir", str(self.dir / "server"),
                               "--name", self.cluster.server], capture_output=True, text=True, check=True)
        words = {key: re.search(rf"^{key} +(\S+)", init.stdout, re.M).group(1)
                 for key in ("fingerprint", "admin token", "join token")}
        for name in ("admin", "join"):
            path = self.dir / f"{name}.token"
            path.write_text(words[f"{name} token"] + "\n")
            path.chmod(0o600)
        self.start("server", BUILD / "bin/sft-server", "--listen", f"0.0.0.0:{self.port}", "--http", "off",
                   "--data-dir", self.dir / "server", "--restart-delay", "0s")
        wait_until("the admin to be let in", lambda: self.sftctl(
            "login", "--fingerprint", words["fingerprint"], "--token-file", self.dir / "admin.token").returncode == 0)

    def sftctl(self, *arguments, timeout=DEADLINE_S):
        return subprocess.run([str(BUILD / "bin/sftctl"), "--server", f"{self.cluster.server}:{self.port}",
                               *map(str, arguments)], capture_output=True, text=True, timeout=timeout, check=False,
                              env=getattr(self, "environment", None))

    def setup_script(self, *more):
        return subprocess.run(
            [str(SLURM_DIR / "setup.sh"), "--server", f"{self.cluster.server}:{self.port}", "--home", str(BUILD),
             "--settings", str(self.dir / "slurm.env"), "--join-token-file", str(self.dir / "join.token"),
             "--scratch", str(self.dir), "--models", str(self.dir / "models"), *more],
            capture_output=True, text=True, check=False, env=self.environment)

    def set_up(self):
        made = self.setup_script("--", "--dev", "--simulate-gpus", "H100:1", "--cpu-slots", "0", "--grace", "1", "--disk-full", "off",
                                 "--rank-binary", str(BUILD / "tests/sft-fake-rank"))
        self.assertEqual(made.returncode, 0, made.stderr)

    def sbatch(self, *options, time_limit="60"):
        """Submits deploy/slurm/worker.sbatch; the number of its Slurm job."""
        result = subprocess.run(["sbatch", "--parsable", f"--time={time_limit}", "--exclusive",
                                 f"--output={self.dir}/slurm-%j.log", *options, str(SLURM_DIR / "worker.sbatch")],
                                capture_output=True, text=True, check=False, env=self.environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.strip()

    def autoscale(self, *options):
        result = subprocess.run(
            [str(SLURM_DIR / "autoscale.py"), "--gpu-type", "H100", "--gpus", "1", "--time", "60", "--lead", "30s",
             "--sftctl", str(BUILD / "bin/sftctl"), "--server", f"{self.cluster.server}:{self.port}", "--once",
             *options, "--", "--exclusive", f"--output={self.dir}/slurm-%j.log"],
            capture_output=True, text=True, check=False, env=self.environment)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def nodes(self):
        return {node["node"]: node for node in json.loads(self.sftctl("nodes", "--json").stdout)}

    def node_of(self, number):
        """The name of the node that a Slurm job lends, once it belongs to the fleet."""
        def found():
            names = [name for name, node in self.nodes().items()
                     if (node["lease"] or {}).get("allocation") == f"Slurm job {number}" and node["state"] == "UP"]
            return names[-1] if names else None
        return wait_until(f"the node of Slurm job {number}", found)

    def attempts(self, job):
        """(nodes, code of the verdict) of each."""
        return [(each["nodes"], (each["verdict"] or {}).get("code")) for each in self.status(job)["attempts"]]

    def wait_for_node(self, job, node):
        wait_until(f"{job} to run on {node}, it is {self.attempts(job)}",
                   lambda: self.status(job)["nodes"] == [node] and self.status(job)["state"] == "RUNNING")

    def wait_gone(self, number, node):
        wait_until(f"Slurm job {number} to end", lambda: number not in self.cluster.jobs())
        self.assertNotIn(node, self.nodes())

    def assert_no_alarm(self, node):
        """It left, and nobody was told that it fell silent."""
        server = (self.dir / "server.log").read_text()
        self.assertIn(f"node {node} has left the fleet", server)
        self.assertNotIn(f"node {node} is SUSPECT", server)

    def test_jobs_outlive_the_end_of_an_allocation_and_the_loss_of_a_node(self):
        done = self.dir / "done"
        def submit(name):
            return self.submit(f"train steps=30000 pace=10 save=200 fast={done}", ranks=1, name=name,
                               compute='unreachable_after = "10s"')
        begun = time.monotonic()
        moved = submit("moved")
        short_lived = self.sbatch("--nodelist=n1", "--export=ALL,SFT_LEAVE_LEAD=40s", time_limit="2")
        ends = self.node_of(short_lived)
        self.assertEqual(ends, f"n1-{short_lived}")
        self.wait_for_node(moved, ends)
        lost = submit("lost")
        cut_off = self.sbatch("--nodelist=n2")
        dies = self.node_of(cut_off)
        self.wait_for_node(lost, dies)
        wait_until("a checkpoint", lambda: self.status(lost)["checkpoint_step"] > 0)
        self.cluster.cut("n2")

        # Too short for a job to begin and to write its checkpoint: refused, and the log says what would do.
        short = self.sbatch("--nodelist=n3", "--export=ALL,SFT_LEAVE_LEAD=40s", time_limit="1")
        wait_until("the short one to end", lambda: short not in self.cluster.jobs())
        log = (self.dir / f"slurm-{short}.log").read_text()
        self.assertIn("too soon for a job to begin and to write its checkpoint", log)
        self.assertIn("(sbatch --time=2)", log)

        # Slurm requeues the job of the node that it lost; it comes back elsewhere, under another name.
        wait_until("Slurm to requeue it", lambda: self.cluster.jobs().get(cut_off) == "PENDING")
        wait_until("the service to miss it", lambda: self.nodes()[dies]["state"] == "SUSPECT")
        again = self.start_requeued(cut_off, "n3")
        self.assertEqual(again, f"n3-{cut_off}-1")

        # Slurm would kill the first after two minutes; its job was asked for its checkpoint 40 s before.
        wait_until("the job to be moved", lambda: self.attempts(moved)[0] == ([ends], "moved"))
        self.assertGreater(time.monotonic() - begun, 60)
        self.assertIn(f"{ends} leaves the fleet: Slurm job {short_lived} ends at ",
                      self.status(moved)["attempts"][0]["verdict"]["message"])
        self.wait_gone(short_lived, ends)
        self.assertNotIn("TIME LIMIT", (self.dir / f"slurm-{short_lived}.log").read_text(), "it left by itself")
        self.assert_no_alarm(ends)
        self.assertFalse((self.dir / f"sft-worker-{short_lived}").exists(), "nothing stays on the node")

        # Both jobs go on from what they had saved, and end well.
        self.node_of(self.sbatch("--nodelist=n4"))
        done.touch()
        for job, first, code in ((moved, ends, "moved"), (lost, dies, "node_unreachable")):
            self.assert_ends(job, SUCCEEDED)
            self.assertEqual(self.attempts(job)[0], ([first], code))
            self.assertEqual(len(self.attempts(job)), 2)
            self.assertGreaterEqual(self.status(job)["attempts"][1]["first_step"], 200)

    def start_requeued(self, number, node):
        """Slurm waits for two minutes before it starts a job again that it has requeued; this does not."""
        wait_until("the job to take the change", lambda: self.cluster.run(
            "scontrol", "update", f"jobid={number}", f"reqnodelist={node}", "starttime=now").returncode == 0)
        return self.node_of(number)

    def test_an_allocation_that_is_cancelled_saves_what_it_did(self):
        job = self.submit(f"train steps=100000 pace=10 until={self.dir}/never", ranks=1)
        first = self.sbatch("--nodelist=n1")
        node = self.node_of(first)
        self.wait_for_node(job, node)
        self.wait_for_step(job, 30)
        second = self.sbatch("--nodelist=n2")
        other = self.node_of(second)
        self.assertEqual(self.cluster.run("scancel", first).returncode, 0)
        self.wait_for_node(job, other)
        self.assertEqual(self.attempts(job), [([node], "moved"), ([other], None)])
        self.assertIn("its worker got signal 15", self.status(job)["attempts"][0]["verdict"]["message"])
        self.assertGreater(self.status(job)["attempts"][1]["first_step"], 30)
        self.wait_gone(first, node)
        self.assert_no_alarm(node)

    def test_a_preempted_allocation_is_requeued_and_takes_the_job_again(self):
        job = self.submit(f"train steps=100000 pace=10 until={self.dir}/never", ranks=1)
        first = self.sbatch("--nodelist=n1")
        node = self.node_of(first)
        self.wait_for_node(job, node)
        self.wait_for_step(job, 30)
        urgent = self.cluster.run("sbatch", "--parsable", "--partition=urgent", "--exclusive", "--nodelist=n1",
                                  f"--output={self.dir}/urgent.log", "--wrap", "sleep 5").stdout.strip()
        wait_until("the node to have left", lambda: node not in self.nodes())
        self.assertEqual(self.status(job)["state"], "PENDING")
        self.assert_no_alarm(node)
        wait_until("the urgent one to run", lambda: self.cluster.jobs().get(urgent) == "RUNNING")
        self.assertEqual(self.cluster.jobs().get(first), "PENDING", "Slurm requeued it")
        again = self.start_requeued(first, "n1")
        self.assertEqual(again, f"n1-{first}-1")
        self.wait_for_node(job, again)
        self.assertGreater(self.status(job)["attempts"][1]["first_step"], 30)

    def test_the_autoscaler_asks_for_nodes_and_they_give_themselves_back(self):
        self.assertEqual(self.autoscale("--max", "2"), "", "nothing waits")
        done = self.dir / "done"
        jobs = [self.submit(f"train steps=20 pace=10 until={done}", ranks=1, name=f"job{i}") for i in range(3)]
        wait_until("the queue", lambda: all(self.status(job)["outlook"] for job in jobs))
        pool = ("--max", "2", "--idle", "20s")
        asked = self.autoscale(*pool)
        self.assertEqual(asked.count("asked Slurm for a node"), 2, asked)
        self.assertEqual(self.autoscale(*pool), "", "they are on their way")
        wait_until("two jobs to run", lambda: sum(self.status(job)["state"] == "RUNNING" for job in jobs) == 2)
        self.assertEqual(self.autoscale(*pool), "", "two are the most")
        done.touch()
        for job in jobs:
            self.assert_ends(job, SUCCEEDED)
        wait_until("the nodes to leave", lambda: not self.cluster.jobs())
        self.assertEqual(self.nodes(), {})
        self.assertNotIn("SUSPECT", (self.dir / "server.log").read_text())
        # With no node left such jobs are still accepted and planned, and others refused.
        job = self.submit("ok", ranks=1, name="later")
        refused = self.sftctl("submit", self.write_job("ok", ranks=2, name="large"))
        self.assertIn("no node has H100-2x; the largest is H100-1x", refused.stderr)
        wait_until("the queue", lambda: self.status(job)["outlook"])
        # What waits in Slurm's queue is withdrawn when nothing waits for it.
        blocker = self.cluster.run("sbatch", "--parsable", "--exclusive", "--nodes=4", "--partition=urgent",
                                   f"--output={self.dir}/blocker.log", "--wrap", "sleep 600").stdout.strip()
        wait_until("the cluster to be full", lambda: self.cluster.jobs().get(blocker) == "RUNNING")
        self.assertEqual(self.autoscale(*pool).count("asked Slurm"), 1)
        self.assertEqual(self.sftctl("cancel", job).returncode, 0)
        self.assertIn("withdrew Slurm job", self.autoscale(*pool))
        wait_until("it to be gone", lambda: list(self.cluster.jobs()) == [blocker])
        self.cluster.run("scancel", blocker)
        # Nodes that stay: one is asked for, and none more.
        self.assertIn("a node that stays", self.autoscale("--max", "2", "--min", "1"))
        self.assertEqual(self.autoscale("--max", "2", "--min", "1"), "")

    def test_what_could_not_work_is_refused_before_anything_starts(self):
        for options, message in ((("--models", "/no/such"), "a folder of --models is not there"),
                                 (("--lead", "soon"), "--lead soon: not a time"),
                                 (("--home", str(self.dir)), "bin/sft-worker is missing"),
                                 (("--sbatch", "--partition=nowhere"), "Slurm would not take the job")):
            result = self.setup_script(*options)
            self.assertNotEqual(result.returncode, 0, options)
            self.assertIn(message, result.stderr)
        (self.dir / "join.token").chmod(0o644)
        self.assertIn("others may read", self.setup_script().stderr)
        (self.dir / "slurm.env").unlink()
        number = self.sbatch()
        wait_until("it to end", lambda: number not in self.cluster.jobs())
        self.assertIn("run setup.sh first", (self.dir / f"slurm-{number}.log").read_text())


if __name__ == "__main__":
    run_tests()
