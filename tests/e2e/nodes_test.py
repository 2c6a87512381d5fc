#!/usr/bin/env python3
"""Jobs over several machines with addresses of their own, with the real engine: a switch and its machines are
namespaces of the kernel's (network.py), whose links are cut, slowed and closed."""

import json
import os
import pathlib
import subprocess
import time
import unittest

from harness import BUILD, wait_until
from network import CutNetwork, Switch, run_tests
from remote import RemoteCase
from tiny_model import write_tiny_model

DEMO = pathlib.Path(__file__).resolve().parents[2] / "build/demo"
DEADLINE_S = 1500
SUCCEEDED, USER_FAILURE, INFRASTRUCTURE_FAILURE = 0, 10, 11
CUT_S = float(os.environ.get("SFT_CUT_SECONDS", "20"))


@unittest.skipUnless((DEMO / "model/tokenizer.json").exists(),
                     "build/demo/model is missing: run deploy/demo/make_model.sh")
class NodesTest(RemoteCase):

    def setUp(self):
        super().setUp()
        missing = CutNetwork.missing()
        if missing:
            self.skipTest(missing)
        write_tiny_model(self.dir / "models/small")

    def start_fleet(self, machines, gpus, *options):
        """A server and a worker on each machine: node-1, node-2, ..."""
        self.switch = Switch(machines)
        self.addCleanup(self.switch.close)
        self.switch.open()
        self.serve(self.switch.address)
        for number, machine in enumerate(self.switch.machines, 1):
            self.start(f"node-{number}", *machine.prefix(), BUILD / "bin/sft-worker", "--dev", "--server",
                       f"{self.switch.address}:{self.port}", "--data-dir", self.dir / f"node-{number}", "--node",
                       f"node-{number}", "--address", machine.inside, "--models", self.dir / "models",
                       "--simulate-gpus", f"H100:{gpus}", "--cpu-slots", 0, "--grace", 1, "--join-token-file",
                       self.dir / "join.token", *options)
        for number in range(1, machines + 1):
            wait_until(f"node-{number} to be UP", lambda: self.node(f"node-{number}").get("state") == "UP")

    def sftctl(self, *arguments, **_):
        return self.at(None, "admin", *arguments)

    def submit_over(self, nodes, per_node, steps, compute="", parallelism="", save=0):
        data, job = self.dir / "rows.jsonl", self.dir / "job.toml"
        data.write_text("".join(json.dumps({"text": f"Row {row}: what the nodes say to each other."}) + "\n"
                                for row in range(64)))
        checkpoint = f'[checkpoint]\nsave_strategy = "steps"\nsave_steps = {save}\n' if save else ""
        job.write_text(f"""
[job]
model = "small"
data = "{data.name}"
[compute]
variant = "H100-{per_node}x"
nodes = {nodes}
{compute}
[training]
mode = "lora"
[hyperparameters]
per_device_batch = 1
gradient_accumulation_steps = 1
sequence_length = 64
max_steps = {steps}
{parallelism}
{checkpoint}""")
        result = self.sftctl("submit", job, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["job"]

    def ends(self, job, code):
        wait_until(f"{job} to end", lambda: self.status(job)["state"] in ("SUCCEEDED", "FAILED", "CANCELLED"), DEADLINE_S)
        result = self.sftctl("wait", job)
        self.assertEqual(result.returncode, code, f"{result.stdout}{result.stderr}{self.sftctl('logs', job).stdout}")

    def events(self, job, kind):
        events = map(json.loads, self.sftctl("events", job, "--json").stdout.splitlines())
        return [event["message"] for event in events if event["type"] == kind]

    def check_whole(self, job, ranks, steps):
        """Each step is there once, and all ranks ended with the same weights, which were delivered."""
        points = map(json.loads, self.sftctl("metrics", job, "--json").stdout.splitlines())
        curve = [point for point in points if point["type"] == "step"]
        self.assertEqual([point["step"] for point in curve], list(range(1, steps + 1)))
        last = self.status(job)["attempt"]
        agreed = [json.loads(message) for message in self.events(job, "consistency")][-ranks:]
        self.assertEqual(len({each["weights_sha256"] for each in agreed}), 1, agreed)
        self.assertTrue(all(each["consistent"] for each in agreed), agreed)
        result = self.sftctl("download", job, "-o", self.dir / "adapter")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        return curve, last

    def test_two_nodes_train_as_one_and_a_cut_below_the_limit_loses_nothing(self):
        settings = self.dir / "network.env"
        settings.write_text("# of this rack\nNCCL_IB_TC=106\n")
        self.start_fleet(2, 2, "--network-env", settings, "--place", "hall/row-1")
        node = self.node("node-2")
        self.assertEqual(node["place"], "hall/row-1")
        self.assertIn("NCCL_IB_TC=106", node["network_settings"])
        self.assertIn("NCCL_IB_TC=106", self.sftctl("nodes", "node-2").stdout)
        steps = 400
        sharded = '[hyperparameters.parallelism]\nfsdp = true\nfsdp_sharding_strategy = "hybrid_shard"\n'
        job = self.submit_over(2, 2, steps, 'unreachable_after = "10m"', sharded)
        self.wait_for_step(job, 20, DEADLINE_S)
        self.switch.machines[1].cut()
        time.sleep(CUT_S)
        before = self.status(job)["progress"]["step"]
        self.switch.machines[1].mend()
        self.assertLess(before, steps, "the cut came too late to be one")
        self.ends(job, SUCCEEDED)
        curve, attempts = self.check_whole(job, 4, steps)
        self.assertEqual(attempts, 1)
        # The step that the cut was in waited for the other node.
        waited = max(point.get("comm.exposed_share", 0) for point in curve)
        self.assertGreater(waited, 0.9)
        for key in ("comm.shard.exposed_share", "comm.shard.GBps", "comm.replicate.GBps"):
            self.assertGreater(curve[10][key], 0, curve[10])
        self.assertAlmostEqual(curve[10]["comm.exposed_share"],
                               sum(value for key, value in curve[10].items() if key.count(".") == 2
                                   and key.endswith("exposed_share")), delta=1e-9)
        log = self.sftctl("logs", job).stdout
        self.assertIn("network of node node-1: NCCL_IB_TC=106 NCCL_SOCKET_IFNAME==eth0", log)
        self.assertRegex(log, r"nodes node-1 and node-2: [0-9.e+-]+ GB/s a rank, [0-9]+ us")
        self.assertIn("of the step waited for", self.sftctl("status", job).stdout)

    def test_a_node_that_dies_is_named_and_the_job_goes_on_elsewhere(self):
        self.start_fleet(3, 2)
        steps = 300
        job = self.submit_over(2, 2, steps, 'unreachable_after = "10s"', save=10)
        self.wait_for_step(job, 30, DEADLINE_S)
        lost = self.status(job)["nodes"][1]
        self.switch.machines[int(lost.split("-")[1]) - 1].kill()
        self.ends(job, SUCCEEDED)
        _, attempts = self.check_whole(job, 4, steps)
        self.assertEqual(attempts, 2)
        status = self.status(job)
        self.assertEqual(status["nodes"], [node for node in ("node-1", "node-2", "node-3") if node != lost])
        verdicts = self.events(job, "verdict")
        self.assertTrue(any(lost in text for text in verdicts), verdicts)
        self.assertRegex(self.sftctl("logs", job).stdout, r"goes on after step [1-9][0-9]+ ")

    def test_a_node_behind_a_broken_link_is_named_before_the_start_and_left_out(self):
        self.start_fleet(4, 1)
        self.switch.machines[1].slow("4mbit")
        steps = 5
        # So that the job begins on the other three.
        self.assertEqual(self.sftctl("nodes", "cordon", "node-4").returncode, 0)
        job = self.submit_over(3, 1, steps)
        wait_until("the preflight to tell", lambda: self.events(job, "preflight"))
        self.assertEqual(self.sftctl("nodes", "resume", "node-4").returncode, 0)
        self.ends(job, SUCCEEDED)
        _, attempts = self.check_whole(job, 3, steps)
        self.assertGreater(attempts, 1)
        self.assertEqual(self.status(job)["nodes"], ["node-1", "node-3", "node-4"])
        found = self.events(job, "preflight")
        self.assertTrue(found and "node node-2: its network to other nodes is broken" in found[0], found)
        verdicts = self.events(job, "verdict")
        self.assertTrue(any("node-2" in text and "is broken" in text for text in verdicts), verdicts)

    def test_a_preflight_can_be_left_out(self):
        self.start_fleet(3, 1)
        self.switch.machines[1].slow("4mbit")
        job = self.submit_over(3, 1, 2, "preflight = false")
        self.ends(job, SUCCEEDED)
        self.assertEqual(self.status(job)["attempt"], 1)
        self.assertEqual(self.events(job, "preflight"), [])

    def test_a_node_that_does_not_reach_rank_0_is_named_before_anything_is_loaded(self):
        self.start_fleet(2, 1)
        first, second = self.switch.machines
        second.lose(first)
        job = self.submit_over(2, 1, 2, "max_restarts = 0")
        self.ends(job, INFRASTRUCTURE_FAILURE)
        verdict = self.status(job)["verdict"]
        self.assertEqual((verdict["code"], verdict["node"]), ("rendezvous_unreachable", "node-2"), verdict)
        self.assertIn(f"node node-2 does not reach rank 0's node at {first.inside}:", verdict["message"])

    def test_an_interface_that_a_node_lacks_is_refused_with_node_and_key(self):
        self.start_fleet(2, 1)
        subprocess.run(["ip", "-n", self.switch.machines[0].name, "link", "add", "ib0", "type", "veth", "peer", "name", "ib1"], check=True)
        job = self.submit_over(2, 1, 2, 'network_interface = "ib0"')
        self.ends(job, USER_FAILURE)
        verdict = self.status(job)["verdict"]
        self.assertEqual((verdict["code"], verdict["node"]), ("bad_input", "node-2"), verdict)
        self.assertIn('node node-2 has no network interface for compute.network_interface = "ib0": it has eth0',
                      verdict["message"])


if __name__ == "__main__":
    run_tests()
