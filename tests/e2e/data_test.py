#!/usr/bin/env python3
"""Data as people have it, by the commands that a user types: checked, submitted, trained on."""

import json
import math
import pathlib
import shutil
import subprocess

import harness
from families_test import copy_small_model

SUCCEEDED, USAGE = 0, 2
FILES = pathlib.Path(__file__).resolve().parents[1] / "unit/common/columnar/files"


class DataTest(harness.ServiceCase):
    def setUp(self):
        super().setUp()
        self.model = self.dir / "models/small"
        copy_small_model(self.model)
        config = json.loads((self.model / "tokenizer_config.json").read_text())
        config["chat_template"] = ("{% for message in messages %}{{ message.content }}"
                                   "{{ '</s>' if message.role == 'assistant' }}{% endfor %}")
        (self.model / "tokenizer_config.json").write_text(json.dumps(config))

    def write_job(self, data, keys):
        job = self.dir / "job.toml"
        job.write_text(f"""
[job]
model = "{self.model}"
data = "{data}"
[compute]
gpu_type = "CPU"
variant = "CPU-1x"
[data]
{keys}
[training]
mode = "lora"
[training.validation]
eval_steps = 10
metric_for_best_model = "perplexity"
save_best_model_at_end = true
[lora]
r = 8
[hyperparameters]
max_steps = 20
learning_rate = 0.03
sequence_length = 32
per_device_batch = 6
""")
        return job

    def start_slot(self):
        self.start("node-a", harness.BUILD / "bin/sft-worker", "--dev", "--server", f"127.0.0.1:{self.port}", "--data-dir",
                   self.dir / "node-a", "--node", "node-a", "--models", self.dir / "models", "--cpu-slots", 1)
        harness.wait_until("node-a to register", lambda: '"node-a"' in self.sftctl("nodes", "--json").stdout)

    def chat(self, job, *lines):
        """What a person reads who types these lines."""
        result = subprocess.run([str(harness.BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}", "chat", job],
                                input="".join(f"{line}\n" for line in lines), capture_output=True, text=True,
                                timeout=harness.DEADLINE_S, check=False)
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        return result.stdout

    def submit(self, job, *arguments):
        result = self.sftctl("submit", job, *arguments)
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        return result

    def last_validation(self, job):
        result = self.sftctl("metrics", job, "--json")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        points = [json.loads(line) for line in result.stdout.splitlines()]
        return [point for point in points if "val.loss" in point][-1]

    def test_a_parquet_set_with_long_rows_goes_from_its_check_to_answers(self):
        shutil.copy(FILES / "share_gpt.parquet", self.dir / "chats.parquet")
        self.start_server()
        self.start_slot()
        job = self.write_job("chats.parquet", "")
        counts = []
        for model in (self.model, "small"):  # a folder here, and the same model as nodes list it
            checked = self.sftctl("data", "check", self.dir / "chats.parquet", "--model", model, "--json")
            counts.append(json.loads(checked.stdout)["tokens"])
        self.assertEqual(counts[0], counts[1])
        checked = self.sftctl("data", "check", "--job", job)
        self.assertEqual(checked.returncode, USAGE, checked.stderr)
        self.assertIn("40 of 40 can be used: 40 ShareGPT", checked.stdout)
        self.assertIn("2 rows (5.0 %), too long for sequence_length", checked.stdout)
        self.assertIn("This job would be refused: ", checked.stdout)
        self.assertRegex(checked.stdout, r"row 10: \d+ tokens")
        keys = 'on_long_rows = "skip"\nval_split = "4 rows"\n'
        job = self.write_job("chats.parquet", keys)
        checked = self.sftctl("data", "check", "--job", job, "--json")
        self.assertEqual(checked.returncode, SUCCEEDED, checked.stderr)
        found = json.loads(checked.stdout)["job"]
        self.assertEqual(found["rows"] + found["held_out"] + found["left_out"], 40, found)
        submitted = self.submit(job)
        self.assertIn("chats.parquet: 40 rows: 40 ShareGPT\n", submitted.stderr)
        self.assertRegex(submitted.stderr, r"  tokens    [\d.]+k?, [\d.]+ % of them with loss; a row has ")
        self.assertIn("  too long  2 of 40 rows have more than 32 tokens (data.on_long_rows = skip)\n", submitted.stderr)
        trained = submitted.stdout.strip()
        self.assert_ends(trained, SUCCEEDED)
        self.assertIn(f"{found['rows']} of {found['rows'] + 2} rows", self.sftctl("logs", trained, "--prepare").stdout)
        self.assertRegex(self.sftctl("events", trained).stdout, r"2 left out \(2 too long, of \d+ tokens\); ")
        last = self.last_validation(trained)
        self.assertAlmostEqual(last["val.perplexity"], math.exp(last["val.loss"]), places=4)
        self.assertGreater(last["val.bits_per_byte"], 0)
        self.assertIn("whose val.perplexity is the best", self.sftctl("logs", trained).stdout)
        answer = self.sftctl("generate", trained, "--prompt", "aaa?", "--max-new-tokens", 3)
        self.assertEqual(answer.returncode, SUCCEEDED, answer.stderr)
        self.assertTrue(self.chat(trained, "aaa?", "bbb?").strip())

    def test_a_folder_of_documents_is_packed_and_trained_on_in_pieces(self):
        folder = self.dir / "documents"
        folder.mkdir()
        for number in range(3):
            short, long = f"note{number}", "abcdefgh" * 12
            (folder / f"{number}.txt").write_text(f"{short}\n{short}\n\n{long}{number}\n\n\nend{number}\n")
        self.start_server()
        self.start_slot()
        keys = 'on_long_rows = "split"\nsplit_overlap = 8\ntext_documents = "blank_lines"\nval_split = "2 rows"\n'
        job = self.write_job("documents", keys)
        packing = json.loads(self.submit(job, "--dry-run", "--json").stdout)["values"]["data.packing"]
        self.assertEqual(packing, {"value": "true", "origin": "a folder of raw documents"})
        checked = self.sftctl("data", "check", "--job", job, "--json")
        self.assertEqual(checked.returncode, SUCCEEDED, checked.stderr)
        found = json.loads(checked.stdout)["job"]
        self.assertEqual((found["rows"], found["held_out"], found["packing"]), (7, 2, True))
        trained = self.submit(job).stdout.strip()
        self.assert_ends(trained, SUCCEEDED)
        self.assertIn("7 of 7 rows", self.sftctl("logs", trained, "--prepare").stdout)
        history = self.sftctl("events", trained).stdout
        self.assertIn("3 rows cut or split, 0 tokens of them left out; 2 rows for validation", history)
        curve = [json.loads(line) for line in self.sftctl("metrics", trained, "--json").stdout.splitlines()]
        losses = [point["loss"] for point in curve if "val.loss" not in point]
        self.assertLess(losses[-1], losses[0])


if __name__ == "__main__":
    harness.run_tests()
