#!/usr/bin/env python3
"""The real engine under the real service: the two job files of configs/ on simulated GPUs, from
submission to what they deliver, as CI would run them."""

import json
import os
import pathlib
import pwd
import shutil
import signal
import struct
import time
import unittest
import unittest.mock

import clock_test
import harness
from tiny_model import split_tokenizer, write_tiny_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "build/demo"
DATA = ROOT / "deploy/demo/train.jsonl"
TRAINING_DEADLINE_S = 1500
RESTART_STEPS = 5  # of the restart test: 15 to 30 s of training on 2 cores
SUCCEEDED, INFRASTRUCTURE_FAILURE, CANCELLED = 0, 11, 12


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {name: data[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]]
            for name, entry in header.items()}


@unittest.skipUnless((DEMO / "model/model.safetensors").exists(),
                     "build/demo/model is missing: run deploy/demo/make_model.sh")
class TrainingTest(harness.ServiceCase):
    def submit_config(self, name, *arguments):
        result = self.sftctl("submit", ROOT / "configs" / name, "--dataset", DATA, "--examples", 8, "--json",
                             *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["job"]

    def ranks(self):
        return harness.processes_with("sft-rank train --launch " + str(self.dir))

    def consistency(self, job):
        lines = self.sftctl("events", job, "--json").stdout.splitlines()
        events = [json.loads(line) for line in lines]
        return [json.loads(event["message"]) for event in events if event["type"] == "consistency"]

    def wait_success(self, job):
        result = self.sftctl("wait", job, "--timeout", f"{TRAINING_DEADLINE_S}s", timeout=TRAINING_DEADLINE_S + 30)
        self.assertEqual(result.returncode, SUCCEEDED, f"{result.stderr}{self.sftctl('logs', job).stdout}")

    def check_consistent(self, job, ranks):
        found = self.consistency(job)
        self.assertEqual(len(found), ranks)
        self.assertEqual(len({event["weights_sha256"] for event in found}), 1, found)
        for event in found:
            self.assertTrue(event["consistent"], event)
            self.assertEqual(event["delivered_sha256"], event["weights_sha256"])

    @unittest.skipUnless(shutil.which("strace"), "there is no strace")
    def test_no_wait_of_a_rank_but_those_of_gloo_has_a_deadline_on_the_wall_clock(self):
        """gloo's, which LibTorch brings along, are of the whole collective timeout: a clock that is set
        back makes them longer, and who hangs is found by the worker's own, monotonic, watch."""
        write_tiny_model(self.dir / "models/small")
        traced = self.dir / "traced-rank"
        traced.write_text(f"""#!/bin/sh
case "$*" in *"--rank 0"* | *"--rank 1"*)  # two, which wait for each other
  exec strace -f -qq -k -e trace=futex,clock_nanosleep,timerfd_create,timer_create -o {self.dir}/rank-$$.trace \\
    {harness.BUILD}/bin/sft-rank "$@" ;;
esac
exec {harness.BUILD}/bin/sft-rank "$@"
""")
        traced.chmod(0o755)
        self.start_server()
        self.start_worker(engine=True, options=("--rank-binary", traced))
        # Each traced wait costs its stack: a few steps show them all.
        self.wait_success(self.submit_config("multi_gpu_qlora_4xh100.toml", "--model", "small",
                                             "--set", "hyperparameters.max_steps=2"))
        waits = [wait for trace in self.dir.glob("rank-*.trace") for wait in clock_test.waits_on_the_wall_clock(trace)]
        self.assertTrue([stack for _, stack in waits if "gloo::" in stack], "not even gloo's: the trace is empty")
        ours = [wait for wait in waits if wait[1] and "gloo::" not in wait[1]]
        self.assertEqual(ours[:3], [], f"{len(ours)} of {len(waits)}")

    def test_the_qlora_job_of_four_gpus_and_the_full_job_of_eight_run_as_they_are(self):
        base = write_tiny_model(self.dir / "models/small")
        split_tokenizer(self.dir / "models/small")
        shutil.copytree(DEMO / "model", self.dir / "models/smollm2")
        self.start_server()
        self.start_worker(engine=True)
        qlora = self.submit_config("multi_gpu_qlora_4xh100.toml", "--model", "smollm2")
        full = self.submit_config("multi_gpu_fft_8xh100.toml", "--model", "small")

        self.wait_for_ranks(4)
        waiting = self.status(full)
        self.assertEqual(waiting["state"], "PENDING")
        self.assertIn(qlora, waiting["reason"])
        self.wait_success(qlora)
        self.check_consistent(qlora, 4)

        self.wait_for_ranks(8)
        self.wait_success(full)
        self.check_consistent(full, 8)

        self.assertEqual(self.sftctl("download", qlora, "-o", self.dir / "adapter").returncode, 0)
        adapter = read_safetensors(self.dir / "adapter/adapter_model.safetensors")
        self.assertEqual(len(adapter), 2 * 7 * 30)
        self.assertTrue(all(any(data) for name, data in adapter.items() if "lora_B" in name))

        self.assertEqual(self.sftctl("download", full, "-o", self.dir / "full").returncode, 0)
        made = json.loads((self.dir / "full/tokenizer.json").read_text())  # of vocab.json and merges.txt
        self.assertEqual(len(made["model"]["vocab"]), 49152)
        self.assertIn("tokenizer.json is made of vocab.json and merges.txt", self.sftctl("logs", full, "--prepare").stdout)
        delivered = read_safetensors(self.dir / "full/model.safetensors")
        self.assertEqual(set(delivered), set(base))
        changed = [name for name in base if delivered[name] != base[name][1]]
        self.assertIn("model.embed_tokens.weight", changed)
        self.assertIn("model.layers.1.mlp.down_proj.weight", changed)

    @unittest.skipIf(os.geteuid() != 0, "only root can start ranks as another user")
    def test_ranks_that_are_another_user_train_and_deliver(self):
        base = write_tiny_model(self.dir / "models/small")
        self.dir.chmod(0o755)
        self.start_server()
        self.start_worker(gpus="H100:1", engine=True, options=("--rank-user", "nobody"))
        job = self.submit_small("as-nobody", "--set", "hyperparameters.max_steps=100000")
        self.wait_for_step(job, step=25, deadline_s=TRAINING_DEADLINE_S)
        rank = self.wait_for_ranks(1)[0]
        self.assertEqual(os.stat(f"/proc/{rank}").st_uid, pwd.getpwnam("nobody").pw_uid)
        os.kill(rank, signal.SIGKILL)
        harness.wait_until("the second attempt", lambda: self.status(job)["attempt"] == 2)
        self.wait_for_step(job, step=45, deadline_s=TRAINING_DEADLINE_S)
        self.assertGreaterEqual(self.status(job)["attempts"][1]["first_step"], 20)
        self.sftctl("cancel", job)
        self.assert_ends(job, CANCELLED)
        full = self.submit_config("multi_gpu_fft_8xh100.toml", "--model", "small", "--set", "compute.gpu_count=1",
                                  "--set", "compute.gpus_per_node=1", "--set", "compute.variant=H100-1x")
        self.wait_success(full)
        self.check_consistent(full, 1)
        self.assertEqual(self.sftctl("download", full, "-o", self.dir / "full").returncode, 0)
        self.assertEqual(set(read_safetensors(self.dir / "full/model.safetensors")), set(base))

    def test_a_cancelled_training_leaves_no_process_and_frees_its_gpus(self):
        shutil.copytree(DEMO / "model", self.dir / "models/smollm2")
        self.start_server()
        self.start_worker(engine=True)
        job = self.submit_config("multi_gpu_qlora_4xh100.toml", "--model", "smollm2", "--set",
                                 "hyperparameters.max_steps=1000")
        self.wait_for_ranks(4)
        self.assertEqual(self.sftctl("cancel", job).returncode, 0)
        self.assert_ends(job, CANCELLED)
        self.assertEqual(self.ranks(), [])
        self.assertEqual(self.shims(), [])
        nodes = json.loads(self.sftctl("nodes", "--json").stdout)
        self.assertTrue(all(slot["job"] == "" for node in nodes for slot in node["slots"]), nodes)

    def test_one_gang_trains_over_two_workers(self):
        write_tiny_model(self.dir / "models/small")
        self.start_server()
        self.start_worker("node-a", gpus="H100:1", engine=True)
        self.start_worker("node-b", gpus="H100:1", engine=True)
        job = self.submit_config(
            "multi_gpu_qlora_4xh100.toml", "--model", "small", "--set", "compute.gpu_count=2", "--set",
            "compute.nodes=2", "--set", "compute.gpus_per_node=1", "--set", "compute.variant=H100-1x")
        self.wait_success(job)
        self.check_consistent(job, 2)
        self.assertEqual(len(self.status(job)["nodes"]), 2)

    def test_two_nodes_that_share_each_row_train_as_one_gpu(self):
        """Keys and values go between the nodes; one rank is killed."""
        write_tiny_model(self.dir / "models/small")
        self.start_server()
        self.start_worker("node-a", gpus="H100:1", engine=True)
        self.start_worker("node-b", gpus="H100:1", engine=True)
        steps = ("--set", "hyperparameters.max_steps=12", "--set", "hyperparameters.logging_steps=1", "--set",
                 "hyperparameters.global_batch=2", "--set", "hyperparameters.per_device_batch=2", "--set",
                 "hyperparameters.gradient_accumulation_steps=1", "--set",
                 "checkpoint.save_steps=4")
        parts = {1: ("compute.gpu_count=1", "compute.nodes=1"),
                 2: ("compute.gpu_count=2", "compute.nodes=2",
                     "hyperparameters.parallelism.context_parallel_size=2")}
        jobs = {}
        for nodes, settings in parts.items():
            jobs[nodes] = self.submit_config(
                "multi_gpu_qlora_4xh100.toml", "--model", "small", *steps, *(word for each in (
                    *settings, "compute.gpus_per_node=1", "compute.variant=H100-1x") for word in ("--set", each)))
        self.wait_success(jobs[1])
        os.kill(self.wait_for_ranks(2)[1], signal.SIGKILL)
        self.wait_success(jobs[2])
        self.check_consistent(jobs[2], 2)
        self.assertEqual(len(self.status(jobs[2])["nodes"]), 2)
        for (step, one), (same, two) in zip(self.losses(jobs[1]), self.losses(jobs[2]), strict=True):
            self.assertEqual(step, same)
            self.assertAlmostEqual(one, two, delta=2e-3 * one)

    def start_long_job(self):
        """Two ranks that train the demo's model long enough to lose a server or a worker meanwhile."""
        shutil.copytree(DEMO / "model", self.dir / "models/smollm2")
        self.start_server()
        self.start_worker(gpus="H100:2", engine=True)
        job = self.submit_config(
            "multi_gpu_qlora_4xh100.toml", "--model", "smollm2", "--set", "compute.gpu_count=2", "--set",
            "compute.gpus_per_node=2", "--set", "compute.variant=H100-2x", "--set",
            f"hyperparameters.max_steps={RESTART_STEPS}", "--set", "hyperparameters.logging_steps=1")
        self.wait_for_step(job, deadline_s=TRAINING_DEADLINE_S)
        return job, self.wait_for_ranks(2)

    def test_a_training_whose_worker_and_server_are_killed_and_started_again_succeeds(self):
        job, ranks = self.start_long_job()
        shims = self.shims()
        self.kill("node-a")
        self.start_worker(gpus="H100:2", engine=True)
        self.assertEqual((self.shims(), self.ranks()), (shims, ranks))
        self.kill("server")
        self.start_server()
        self.assertEqual(self.status(job)["state"], "RUNNING", "it must not have ended before the restart")
        self.assertEqual((self.shims(), self.ranks()), (shims, ranks))
        self.wait_success(job)
        self.check_consistent(job, 2)
        self.assertEqual(self.status(job)["attempt"], 1)
        self.assertEqual([step for step, _ in self.losses(job)], list(range(1, RESTART_STEPS + 1)))
        self.assertEqual(self.sftctl("download", job, "-o", self.dir / "adapter").returncode, 0)
        self.assertTrue((self.dir / "adapter/adapter_model.safetensors").exists())

    def losses(self, job):
        points = [json.loads(line) for line in self.sftctl("metrics", job, "--json").stdout.splitlines()]
        return [(point["step"], point["loss"]) for point in points if "loss" in point]

    def submit_small(self, name, *arguments):
        return self.submit_config(
            "multi_gpu_qlora_4xh100.toml", "--model", "small", "--name", name, "--set", "compute.gpu_count=1", "--set",
            "compute.gpus_per_node=1", "--set", "compute.variant=H100-1x", "--set", "hyperparameters.logging_steps=1",
            "--set", "hyperparameters.global_batch=2", "--set", "hyperparameters.gradient_accumulation_steps=1",
            "--set", "checkpoint.save_steps=20", *arguments)

    def test_a_preempted_training_goes_on_with_the_losses_of_one_that_was_left_alone(self):
        write_tiny_model(self.dir / "models/small")
        self.start_server()
        self.start_worker(gpus="H100:1", engine=True)
        # Long enough that nobody waits for its end.
        endless = ("--set", "hyperparameters.max_steps=200000")
        low = self.submit_small("low", *endless, "--priority", "low")
        self.wait_for_step(low, step=30, deadline_s=TRAINING_DEADLINE_S)
        high = self.submit_small("high", "--set", "hyperparameters.max_steps=3", "--priority", "high")
        self.wait_success(high)
        first = self.status(low)["attempts"][0]
        self.assertEqual(first["verdict"]["code"], "preempted")
        cut = first["last_step"]
        steps = cut + 50
        self.wait_for_step(low, step=steps, deadline_s=TRAINING_DEADLINE_S)
        self.sftctl("cancel", low)
        self.assert_ends(low, CANCELLED)
        straight = self.submit_small("straight", *endless)
        self.wait_for_step(straight, step=steps, deadline_s=TRAINING_DEADLINE_S)
        self.sftctl("cancel", straight)
        self.assert_ends(straight, CANCELLED)
        self.assertIn(self.status(low)["attempts"][1]["first_step"], range(21, cut + 2), "it went on, not anew")
        alone = dict(self.losses(straight))
        found = [(step, loss) for step, loss in self.losses(low) if step <= steps]
        self.assertEqual({step for step, _ in found}, set(range(1, steps + 1)))
        self.assertEqual(found, [(step, alone[step]) for step, _ in found])

    def test_the_words_of_an_unsloth_script_train_by_the_rates_that_they_name(self):
        write_tiny_model(self.dir / "models/small")
        self.start_server()
        self.start_worker(gpus="H100:2", engine=True)
        settings = ("max_steps=6", "warmup_steps=2", "lr_scheduler=polynomial", "lr_power=2", "lr_end=1e-5",
                    "optimizer=adamw", "checkpoint.save_strategy=no")
        with unittest.mock.patch.dict(os.environ, {"UNSLOTH_FORCE_SINGLE_GPU": "1"}):
            job = self.submit_config("run_unsloth.yaml", "--model", "small",
                                     *(word for setting in settings for word in ("--set", setting)))
        said = {warning["key"]: warning["message"] for warning in self.status(job)["warnings"]}
        self.assertIn("taken as the engine here", said["tuning.backend"])
        self.assertIn("plan decides block by block", said["hyperparameters.parallelism.activation_checkpointing"])
        self.assertIn("taken as bf16 = true", said["hyperparameters.parallelism.fp16"])
        self.wait_success(job)
        self.check_consistent(job, 1)
        points = [json.loads(line) for line in self.sftctl("metrics", job, "--json").stdout.splitlines()]
        found = [point["lr"] for point in points if point.get("lr")]
        expected = [1e-4, 2e-4] + [1.9e-4 * (1 - step / 4) ** 2 + 1e-5 for step in range(4)]
        self.assertEqual(len(found), len(expected), points)
        for one, other in zip(found, expected):
            self.assertAlmostEqual(one, other, delta=1e-9)

    def rank_pid(self, rank):
        for pid in self.wait_for_ranks(3):
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if command[command.index(b"--rank") + 1] == str(rank).encode():
                return pid
        raise AssertionError(f"no process of rank {rank}")

    def failed_verdict(self, name, number):
        """Of three ranks, of which rank 1 gets the signal while they train."""
        job = self.submit_config(
            "multi_gpu_qlora_4xh100.toml", "--model", "small", "--name", name, "--set", "compute.gpu_count=3", "--set",
            "compute.gpus_per_node=3", "--set", "compute.variant=H100-3x", "--set", "hyperparameters.max_steps=100000",
            "--set", "hyperparameters.logging_steps=1", "--set", "hyperparameters.global_batch=3", "--set",
            "hyperparameters.gradient_accumulation_steps=1", "--set", "compute.hang_timeout=10", "--set", "compute.max_restarts=0")
        self.wait_for_step(job, step=3, deadline_s=TRAINING_DEADLINE_S)
        begin = time.monotonic()
        os.kill(self.rank_pid(1), number)
        self.assert_ends(job, INFRASTRUCTURE_FAILURE)
        print(f"{name}: ended after {time.monotonic() - begin:.1f} s: {self.status(job)['verdict']['message']}")
        self.assertEqual(self.ranks(), [])
        verdict = self.status(job)["verdict"]
        self.assertEqual(verdict["rank"], 1)
        operations = [line for line in verdict["evidence"] if ": step " in line]
        self.assertEqual(len(operations), 3, verdict)
        self.assertIn("group world)", operations[0])
        return verdict

    def test_a_rank_that_hangs_or_is_killed_is_named_with_the_last_collective_of_each(self):
        write_tiny_model(self.dir / "models/small")
        self.start_server()
        self.start_worker(gpus="H100:3", engine=True)
        hang = self.failed_verdict("hang", signal.SIGSTOP)
        self.assertEqual(hang["code"], "rank_hang")
        self.assertIn("rank 1 hangs: its process is stopped (state T); ranks 0, 2 wait in", hang["message"])
        self.assertEqual(self.failed_verdict("killed", signal.SIGKILL)["code"], "rank_killed")


if __name__ == "__main__":
    harness.run_tests()
