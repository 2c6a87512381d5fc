#!/usr/bin/env python3
"""Jobs that learn from preferences, from `sftctl submit` to the delivered adapter, on a tiny model."""

import json
import math
import os
import pathlib
import signal
import unittest

import harness
from tiny_model import write_tiny_model

DEMO = pathlib.Path(__file__).resolve().parents[2] / "build/demo"
DEADLINE_S = 600


def message(role, content):
    return [{"role": role, "content": content}]


PAIRS = [{"prompt": message("user", f"What is {i} and {i}?"), "chosen": message("assistant", f"It is {2 * i}."),
          "rejected": message("assistant", f"I will not say what {i} is.")} for i in range(1, 25)]
MARKED = [{"prompt": pair["prompt"], "completion": pair[side], "label": side == "chosen"}
          for pair in PAIRS for side in ("chosen", "rejected")]


@unittest.skipUnless((DEMO / "model/tokenizer.json").exists(),
                     "build/demo/model is missing: run deploy/demo/make_model.sh")
class PreferenceTest(harness.ServiceCase):
    def setUp(self):
        super().setUp()
        write_tiny_model(self.dir / "models/small")

    def write_preferences(self, loss, rows, gpus=1, name="preferences", tables=""):
        data = self.dir / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        job = self.dir / f"{name}.toml"
        job.write_text(f"""
[job]
model = "small"
data = "{data.name}"
[compute]
variant = "H100-{gpus}x"
[training]
loss = "{loss}"
[hyperparameters]
per_device_batch = {8 // gpus}
max_steps = 12
learning_rate = 2e-3
sequence_length = 128
warmup_ratio = 0.0
[checkpoint]
save_strategy = "steps"
save_steps = 4
{tables}
""")
        return job

    def submit_file(self, file, *arguments):
        result = self.sftctl("submit", file, "--json", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["job"]

    def curve(self, job, kind="step"):
        lines = self.sftctl("metrics", job, "--json").stdout.splitlines()
        return [point for point in map(json.loads, lines) if point["type"] == kind]

    def succeed(self, job):
        result = self.sftctl("wait", job, "--timeout", f"{DEADLINE_S}s", timeout=DEADLINE_S + 30)
        self.assertEqual(result.returncode, 0, f"{result.stderr}{self.sftctl('logs', job).stdout}")

    def test_dpo_learns_and_delivers_an_adapter_and_its_metrics_are_told(self):
        self.start_server()
        self.start_worker(gpus="H100:2", engine=True)
        same = {**PAIRS[0], "rejected": PAIRS[0]["chosen"]}
        job = self.submit_file(self.write_preferences("dpo", PAIRS + [same], gpus=2,
                                                      tables='[data]\nval_split = "4 rows"\n'))
        self.succeed(job)
        curve = self.curve(job)
        self.assertEqual([point["step"] for point in curve], list(range(1, 13)))
        self.assertAlmostEqual(curve[0]["loss"], math.log(2), delta=1e-3)
        self.assertAlmostEqual(curve[0]["rewards/margins"], 0, delta=1e-3)
        self.assertLess(curve[-1]["loss"], curve[0]["loss"])
        self.assertGreater(curve[-1]["rewards/margins"], 0)
        self.assertLess(curve[-1]["logps/chosen"], 0)
        validations = self.curve(job, "validation")
        self.assertGreater(validations[-1]["rewards/margins"], validations[0]["rewards/margins"])
        self.assertIn("rewards/margins", self.status(job)["progress"])
        self.assertIn("MARGIN", self.sftctl("metrics", job).stdout)
        log = self.sftctl("logs", job, "--prepare").stdout
        self.assertIn("two equal answers", log)
        self.assertEqual(self.sftctl("download", job, "-o", self.dir / "adapter").returncode, 0)
        self.assertTrue((self.dir / "adapter/adapter_model.safetensors").exists())
        # What compares nothing reads the chosen answers.
        merged = self.sftctl("export", job, "--merged", "-o", self.dir / "merged", "--json", timeout=DEADLINE_S)
        self.assertEqual(merged.returncode, 0, merged.stderr)
        self.assertGreater(json.loads(merged.stdout)["export"]["compared"]["original"]["tokens"], 0)
        graded = self.sftctl("evaluate", job, "--data", self.dir / "preferences.jsonl", "--metrics", "f1",
                             "--max-new-tokens", 4, "--max-examples", 3, "--json", timeout=DEADLINE_S)
        self.assertEqual(graded.returncode, 0, graded.stderr)
        self.assertEqual(json.loads(graded.stdout)["samples"][0]["reference"], "It is 2.")

    def test_the_other_losses_run_and_answers_marked_good_or_bad_are_kto(self):
        self.start_server()
        self.start_worker(gpus="H100:1", engine=True)
        for loss, rows in (("orpo", PAIRS), ("simpo", PAIRS), ("kto", MARKED)):
            with self.subTest(loss=loss):
                job = self.submit_file(self.write_preferences(loss, rows, name=loss))
                self.succeed(job)
                curve = self.curve(job)
                self.assertLess(curve[-1]["loss"], curve[0]["loss"])
                self.assertGreater(curve[-1]["rewards/margins"], curve[0]["rewards/margins"])

    def test_a_killed_rank_goes_on_with_the_same_losses(self):
        self.start_server()
        self.start_worker(gpus="H100:1", engine=True)
        file = self.write_preferences("dpo", PAIRS)
        plain = self.submit_file(file)
        self.succeed(plain)
        job = self.submit_file(file, "--set", "hyperparameters.max_steps=400")
        harness.wait_until("a checkpoint", lambda: "checkpoint" in self.sftctl("events", job).stdout, DEADLINE_S)
        os.kill(harness.processes_with("sft-rank train --launch " + str(self.dir))[0], signal.SIGKILL)
        harness.wait_until("the second attempt", lambda: self.status(job)["attempt"] == 2, DEADLINE_S)
        harness.wait_until("its steps", lambda: any(p["attempt"] == 2 for p in self.curve(job)), DEADLINE_S)
        self.assertIn("as computed before", self.sftctl("logs", job).stdout)
        self.sftctl("cancel", job)
        # The first attempt had another schedule than `plain`; the first step has none.
        self.assertEqual(self.curve(plain)[0]["loss"], self.curve(job)[0]["loss"])

    def test_rows_and_settings_that_do_not_go_together_are_refused_at_submit(self):
        self.start_server()
        for loss, rows, tables, said in (
                ("dpo", [{"text": "a"}], "", "no preference pair"),
                ("sft", PAIRS, "", 'training.loss = "dpo"'),
                ("dpo", MARKED, "", 'training.loss = "kto"'),
                ("dpo", PAIRS, "[data]\npacking = true\n", "data.packing"),
                ("simpo", PAIRS, "[lora]\ndropout = 0.1\n", "lora.dropout")):
            with self.subTest(loss=loss, said=said):
                result = self.sftctl("submit", self.write_preferences(loss, rows, tables=tables))
                self.assertEqual(result.returncode, 2, result.stdout)
                self.assertIn(said, result.stderr)


if __name__ == "__main__":
    harness.run_tests()
