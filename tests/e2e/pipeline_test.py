#!/usr/bin/env python3
"""Pipelines through the real service on CPU slots: what two stages train is, byte for byte, what one rank trains,
also after a stage was killed; what does not go is refused before anything starts."""

import json
import os
import pathlib
import signal

import families_test
import harness

STEPS, SAVE_STEPS = 60, 10


class PipelineTest(harness.ServiceCase):
    def start_all(self):
        families_test.copy_small_model(self.dir / "models/small")
        (self.dir / "rows.jsonl").write_text("".join(
            json.dumps({"text": f"row{number}:" + "abcdefgh"[number % 5:] * 2}) + "\n" for number in range(24)))
        (self.dir / "job.toml").write_text('[job]\nmodel = "small"\ndata = "rows.jsonl"\n')
        self.start_server()
        self.start("node-a", harness.BUILD / "bin/sft-worker", "--dev", "--server", f"127.0.0.1:{self.port}",
                   "--data-dir", self.dir / "node-a", "--node", "node-a", "--models", self.dir / "models", "--cpu-slots",
                   8, "--grace", 1)
        harness.wait_until("node-a to register", lambda: '"node-a"' in self.sftctl("nodes", "--json").stdout)

    def call(self, command, ranks, **settings):
        keys = {"compute.gpu_type": "CPU", "compute.gpu_count": ranks, "compute.gpus_per_node": ranks, "lora.r": 4,
                "lora.alpha": 8, "hyperparameters.max_steps": STEPS, "checkpoint.save_strategy": "steps",
                "checkpoint.save_steps": SAVE_STEPS, "hyperparameters.per_device_batch": 1,
                "hyperparameters.gradient_accumulation_steps": 4, "hyperparameters.sequence_length": 32,
                "hyperparameters.learning_rate": "1e-3", **settings}
        return self.sftctl("submit", self.dir / "job.toml", *command,
                           *(word for key, value in keys.items() for word in ("--set", f"{key}={value}")))

    def train(self, ranks, **settings):
        result = self.call(["--json"], ranks, **settings)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return json.loads(result.stdout)["job"]

    def adapter_of(self, job):
        result = self.sftctl("wait", job, "--timeout", f"{harness.DEADLINE_S}s", timeout=harness.DEADLINE_S + 30)
        self.assertEqual(result.returncode, 0, result.stderr + self.sftctl("logs", job).stdout)
        folder = self.dir / "adapters" / job
        folder.parent.mkdir(exist_ok=True)
        self.assertEqual(self.sftctl("download", job, "-o", folder).returncode, 0)
        return (folder / "adapter_model.safetensors").read_bytes()

    def kill_stage(self, job, rank):
        """Once the server has a checkpoint."""
        harness.wait_until("a checkpoint", lambda: self.status(job)["checkpoint_step"] > 0)
        for pid in harness.processes_with(f"train --launch {self.dir}"):
            words = harness.command_of(pid).split()
            launch = pathlib.Path(families_test.argument(words, "--launch"))
            if families_test.argument(words, "--rank") == str(rank) and job in launch.read_text():
                os.kill(pid, signal.SIGKILL)
                return
        self.fail("the stage had ended")

    def test_two_stages_train_the_bytes_of_one_rank_also_after_a_kill(self):
        self.start_all()
        pipeline = {"hyperparameters.parallelism.pipeline_parallel_size": 2}
        whole = self.adapter_of(self.train(1))
        self.assertEqual(self.adapter_of(self.train(2, **pipeline)), whole)
        self.assertEqual(self.adapter_of(self.train(2, **{"model.device_map": "balanced"})), whole)
        killed = self.train(2, **pipeline, **{"hyperparameters.max_steps": 10 * STEPS})
        self.kill_stage(killed, 1)
        after = self.adapter_of(killed)
        attempts = self.status(killed)["attempts"]
        self.assertEqual(len(attempts), 2, attempts)
        self.assertEqual(attempts[0]["verdict"]["code"], "rank_killed")
        self.assertEqual(after, self.adapter_of(self.train(1, **{"hyperparameters.max_steps": 10 * STEPS})))

    def test_a_dry_run_says_how_layers_are_divided_and_what_does_not_go(self):
        self.start_all()
        size = "hyperparameters.parallelism.pipeline_parallel_size"
        plan = self.call(["--dry-run"], 2, **{size: 2})
        self.assertEqual(plan.returncode, 0, plan.stderr)
        self.assertIn("2 stages: layers 0", plan.stdout)
        self.assertIn("idle for 20 % of a step", plan.stdout)
        few = self.call(["--dry-run"], 2, **{size: 2, "hyperparameters.gradient_accumulation_steps": 1})
        self.assertIn("1 micro-batch for 2 stages leaves each GPU idle for 50 % of a step", few.stdout + few.stderr)
        for settings, says in (({size: 3}, "at most"), ({size: 2, "training.loss": "dpo"}, "does not go with training.loss")):
            refused = self.call(["--dry-run"], settings[size], **settings)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(says, refused.stdout + refused.stderr)


if __name__ == "__main__":
    harness.run_tests()
