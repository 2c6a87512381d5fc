#!/usr/bin/env python3
"""The scripts that measure models of real sizes on GPUs, tried on CPU slots with tiny ones."""

import pathlib
import subprocess
import tempfile
import unittest

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARITY_PYTHON = ROOT / "build/deps/parity/bin/python"  # has the torch and numpy that the scripts ask for
SIZES = ("gemma3-tiny", "gemma4-tiny", "gemma4-e-tiny")


class ScriptsTest(unittest.TestCase):
    def setUp(self):
        if not PARITY_PYTHON.exists():
            self.skipTest("there is no build/deps/parity (deploy/bootstrap --parity)")

    def run_script(self, name, *arguments):
        return subprocess.run([PARITY_PYTHON, ROOT / "deploy/gpu" / name, *map(str, arguments)], capture_output=True,
                              text=True, check=False, timeout=harness.DEADLINE_S)

    def test_a_model_goes_through_the_service_and_its_result_is_read_back(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_script("end_to_end.py", harness.BUILD, folder, "--cpu", "--gpus", 2, "--model", "gemma4-e-tiny")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for line in ("went on with step 6, ", "packed documents stay apart", "changes logits by up to", "all of it holds"):
            self.assertIn(line, done.stdout)

    def test_a_job_is_profiled_and_trains_the_same(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_script("profile_job.py", harness.BUILD, folder, "--cpu", "--gpus", 2)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("all of it holds", done.stdout)

    def test_random_models_have_the_tensors_that_their_config_asks_for(self):
        with tempfile.TemporaryDirectory() as folder:
            for size in SIZES:
                model = pathlib.Path(folder) / size
                made = self.run_script("make_random_model.py", size, model)
                self.assertEqual(made.returncode, 0, made.stderr)
                answered = subprocess.run(
                    [harness.BUILD / "bin/sft-rank", "generate", "--model", model, "--prompt", "Hi", "--max-new-tokens",
                     "1", "--device", "cpu"], capture_output=True, text=True, check=False, timeout=harness.DEADLINE_S)
                self.assertEqual(answered.returncode, 0, f"{size}: {answered.stderr}")


if __name__ == "__main__":
    harness.run_tests()
