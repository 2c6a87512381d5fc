"""What happens to data folders that somebody copied: of a worker beside the one that runs, and of a server."""

import json
import re
import shutil
import signal

from harness import BUILD, ServiceCase, run_tests, wait_until


class CopiesTest(ServiceCase):

    def start_copy(self):
        """A second worker of node-a with a copy of its folder; its log is copy.log."""
        shutil.copytree(self.dir / "node-a", self.dir / "copy", symlinks=True,
                        ignore=lambda folder, names: [n for n in names if n.endswith((".sock", ".lock"))])
        self.run_copy()

    def run_copy(self):
        self.start("copy", BUILD / "bin/sft-worker", "--dev", "--server", f"127.0.0.1:{self.port}",
                   "--data-dir", self.dir / "copy", "--node", "node-a", "--models", self.dir / "models",
                   "--simulate-gpus", "H100:8", "--cpu-slots", 0, "--grace", 1,
                   "--rank-binary", BUILD / "tests/sft-fake-rank")

    def log(self, name):
        return (self.dir / f"{name}.log").read_text(errors="replace")

    def node(self):
        return json.loads(self.sftctl("nodes", "node-a", "--json").stdout)

    def test_a_copy_is_refused_while_its_original_is_heard_and_both_say_so(self):
        self.start_server()
        self.start_worker()
        job = self.submit("train steps=100000 pace=100", ranks=2)
        self.wait_for_step(job)
        incarnation = self.node()["incarnation"]
        self.start_copy()
        wait_until("the refusal", lambda: "is a copy" in self.log("copy"))
        wait_until("the original to be told", lambda: "another worker came as node node-a" in self.log("node-a"))
        self.assertIn(str(self.dir / "node-a"), self.log("copy"))
        self.assertIn(str(self.dir / "copy"), self.log("node-a"))
        self.assertIn(str(self.dir / "copy"), self.node()["rival"])
        self.assertIn("another worker came as node node-a", self.sftctl("nodes", "node-a").stdout)
        self.assertIn("another worker came as node node-a", self.sftctl("events", job).stdout)
        # The original may start again under the eyes of its copy.
        self.kill("node-a")
        self.start_worker()
        wait_until("the next life", lambda: self.node()["incarnation"] != incarnation)
        step = self.status(job)["progress"]["step"]
        self.wait_for_step(job, step + 2)
        self.assertEqual(self.status(job)["attempt"], 1, self.sftctl("events", job).stdout)
        told = re.findall(r"refused this worker.* is the worker (\w+)", self.log("copy"))
        self.assertEqual(len(told), len(set(told)), "once for each life of the original, not at every try")
        self.assertNotIn("registered with", self.log("copy"))

    def test_who_was_replaced_stays_out_and_ends_what_runs_there(self):
        self.start_server()
        self.start_worker()
        job = self.submit("train steps=100000 pace=100", ranks=2)
        self.wait_for_step(job)
        original = self.processes["node-a"]
        original.send_signal(signal.SIGSTOP)
        self.start_copy()
        wait_until("the copy to take over", lambda: "registered with" in self.log("copy"))
        original.send_signal(signal.SIGCONT)
        wait_until("the original to be told", lambda: "has taken over as node-a" in self.log("node-a"))
        self.assertIn("takes no jobs", self.log("node-a"))
        wait_until("the copy to be told", lambda: "another worker came as node node-a" in self.log("copy"))
        wait_until("its ranks to end", lambda: not [
            pid for pid in self.ranks() if str(self.dir / "node-a") in open(f"/proc/{pid}/cmdline").read()])
        wait_until("the job to go on with the copy", lambda: self.status(job)["attempt"] == 2)
        self.wait_for_step(job)
        self.assertIsNone(original.poll(), "it stays, and says why")
        self.assertEqual(self.log("node-a").count("registered with"), 1)
        self.assertEqual(self.log("copy").count("registered with"), 1)


if __name__ == "__main__":
    run_tests()
