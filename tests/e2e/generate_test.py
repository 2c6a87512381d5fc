#!/usr/bin/env python3
"""A thousand prompts through `sft-rank generate`: any number of processes, killed at any time, make one
file."""

import json
import pathlib
import random
import shutil
import struct
import subprocess
import tempfile
import time
import unittest

import harness
from families_test import GOLDENS, write_tokenizer

ROWS, NEW_TOKENS = 1000, 8
KILLS = 5


def write_prompts(path):
    source = random.Random(5)
    with open(path, "w") as out:
        for number in range(ROWS):
            text = "".join(chr(source.randrange(33, 127)) for _ in range(source.randrange(1, 40)))
            out.write(json.dumps({"id": f"row {number}", "prompt": text}) + "\n")


def whole_lines(folder):
    return sum(part.read_bytes().count(b"\n") for part in folder.glob("part-*"))


class GenerateTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sft-generate-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = self.folder / "model"
        shutil.copytree(GOLDENS / "families/qwen2_sliding_untied", self.model)
        write_tokenizer(self.model)
        self.prompts = self.folder / "prompts.jsonl"
        write_prompts(self.prompts)

    def command(self, out, *more):
        return [str(harness.BUILD / "bin/sft-rank"), "generate", "--model", str(self.model),
                "--adapter", str(self.model / "adapter"), "--prompts", str(self.prompts), "--out", str(out),
                "--max-new-tokens", str(NEW_TOKENS), "--temperature", "0.9", "--seed", "3", *more]

    def answers(self, name, ranks):
        out = self.folder / name
        processes = [subprocess.Popen(self.command(out, "--ranks", str(ranks), "--rank", str(rank)))
                     for rank in range(ranks)]
        self.assertEqual([process.wait() for process in processes], [0] * ranks)
        return out.read_text()

    def test_any_number_of_generating_processes_makes_the_same_file(self):
        whole = self.answers("one.jsonl", 1)
        rows = [json.loads(line) for line in whole.splitlines()]
        self.assertEqual([row["id"] for row in rows], [f"row {number}" for number in range(ROWS)])
        self.assertGreater(len({row["answer"] for row in rows}), ROWS // 2)
        for row in rows:
            self.assertIn(row["finish_reason"], ("stop", "length"))
            self.assertLessEqual(row["answer_tokens"], NEW_TOKENS)
            self.assertEqual(row["prompt_tokens"], len(row["prompt"]))
        self.assertEqual(self.answers("two.jsonl", 2), whole)
        self.assertEqual(self.answers("four.jsonl", 4), whole)
        # One prompt after the other, and so in other batches.
        out = self.folder / "single.jsonl"
        subprocess.run(self.command(out, "--batch", "1"), check=True)
        self.assertEqual(out.read_text(), whole)

    def test_a_killed_generating_process_repeats_and_loses_no_line(self):
        whole = self.answers("whole.jsonl", 1)
        out = self.folder / "killed.jsonl"
        parts = self.folder / "killed.jsonl.parts"
        kills = 0
        for kill in range(KILLS):
            process = subprocess.Popen(self.command(out))
            aim = (kill + 1) * ROWS // (KILLS + 2)
            while process.poll() is None and whole_lines(parts) < aim:
                time.sleep(0.002)
            if process.poll() is None:
                kills += 1
            process.kill()
            process.wait()
        self.assertEqual(kills, KILLS, "it was done before it could be killed")
        self.assertFalse(out.exists())
        subprocess.run(self.command(out), check=True)
        self.assertEqual(out.read_text(), whole)

    def poison(self, letter):
        """Makes the embedding of a letter NaN: whatever holds it cannot be answered."""
        path = self.model / "model.safetensors"
        data = bytearray(path.read_bytes())
        size = struct.unpack("<Q", data[:8])[0]
        entry = json.loads(data[8:8 + size])["model.embed_tokens.weight"]
        width = entry["shape"][1]
        begin = 8 + size + entry["data_offsets"][0] + 2 * width * (ord(letter) - 33 + 4)
        data[begin:begin + 2 * width] = b"\xc0\x7f" * width  # bf16
        path.write_bytes(data)

    def test_a_row_whose_logits_are_nan_says_so_and_changes_no_other(self):
        before = [json.loads(line) for line in self.answers("before.jsonl", 1).splitlines()]
        self.poison("Z")
        for batch in ("1", "32"):
            out = self.folder / f"poisoned-{batch}.jsonl"
            subprocess.run(self.command(out, "--batch", batch), check=True)
            rows = [json.loads(line) for line in out.read_text().splitlines()]
            self.assertEqual(len(rows), ROWS)
            failed = 0
            for row, clean in zip(rows, before):
                if "Z" in row["prompt"]:
                    self.assertEqual((row["finish_reason"], row["answer"]), ("error", ""))
                    self.assertIn("token 1 of the answer cannot be chosen: the model's logits are NaN", row["error"])
                    failed += 1
                elif "Z" not in clean["answer"]:
                    self.assertEqual(row, clean)
                elif row != clean:  # it wrote the letter itself, and had to go on from there
                    self.assertEqual(row["finish_reason"], "error")
                    self.assertTrue(row["answer"].endswith("Z"), row)
            self.assertGreater(failed, 50)

    def test_an_adapter_trained_anew_into_the_same_folder_does_not_keep_old_answers(self):
        out = self.folder / "adapter.jsonl"
        subprocess.run(self.command(out), check=True)
        out.rename(self.folder / "old.jsonl")
        weights = self.model / "adapter/adapter_model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-2] ^= 0x40
        weights.write_bytes(data)
        ended = subprocess.run(self.command(out), capture_output=True, text=True)
        self.assertEqual(ended.returncode, 64, ended.stderr)
        self.assertIn("holds answers of another run (adapter differs)", ended.stderr)

    def test_bad_options_are_refused_before_anything_is_read(self):
        out = self.folder / "options.jsonl"
        command = self.command(out, "--top-p", "2")
        command[command.index("--model") + 1] = str(self.folder / "no-model")
        ended = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(ended.returncode, 64, ended.stderr)
        self.assertIn("top_p is 2", ended.stderr)
        self.assertFalse(pathlib.Path(f"{out}.parts").exists())

    def test_a_bad_prompt_is_named_before_anything_is_answered(self):
        lines = self.prompts.read_text().splitlines()
        for line, text in ((7, '{"prompt": 3}'), (9, '{"answer": "", "prompt": "a"}'), (11, '{"prompt": "a"')):
            bad = self.folder / "bad.jsonl"
            bad.write_text("\n".join(lines[:line - 1] + [text] + lines[line:]) + "\n")
            out = self.folder / "bad_out.jsonl"
            command = self.command(out)
            command[command.index(str(self.prompts))] = str(bad)
            ended = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(ended.returncode, 64, ended.stderr)
            self.assertIn(f"{bad}:{line}: ", ended.stderr)
            self.assertFalse(out.exists() or pathlib.Path(f"{out}.parts").exists())


if __name__ == "__main__":
    unittest.main()
