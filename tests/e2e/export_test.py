#!/usr/bin/env python3
"""`sftctl export` under the real service: what a QLoRA job has trained as a merged model and as GGUF, and
what it says when that cannot be."""

import json
import pathlib
import re
import struct
import unittest

import harness
from tiny_model import write_tiny_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "deploy/demo/train.jsonl"
TRAINING_DEADLINE_S = 1500
SUCCEEDED, USAGE, USER_FAILURE = 0, 2, 10


def read_tensors(path):
    """Name -> (type, shape, bytes)."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"],
                   data[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]])
            for name, entry in header.items()}


def numbers(tensor):
    kind, _, data = tensor
    if kind == "F32":
        return struct.unpack(f"<{len(data) // 4}f", data)
    return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]


@unittest.skipUnless((ROOT / "build/demo/model/model.safetensors").exists(),
                     "build/demo/model is missing: run deploy/demo/make_model.sh")
class ExportTest(harness.ServiceCase):
    def setUp(self):
        super().setUp()
        write_tiny_model(self.dir / "models/small")
        write_tiny_model(self.dir / "models/other")
        self.start_server()
        self.start_worker(gpus="H100:1", engine=True)

    def train(self, *settings):
        job = self.dir / "train.toml"
        job.write_text(f"""
[job]
model = "small"
data = "{DATA}"
[compute]
variant = "H100-1x"
[lora]
r = 4
alpha = 8
[hyperparameters]
max_steps = 3
learning_rate = 5e-3
sequence_length = 512
per_device_batch = 1
gradient_accumulation_steps = 1
""")
        result = self.sftctl("submit", job, "--json", *(word for value in settings for word in ("--set", value)))
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        name = json.loads(result.stdout)["job"]
        result = self.sftctl("wait", name, "--timeout", f"{TRAINING_DEADLINE_S}s", timeout=TRAINING_DEADLINE_S + 30)
        self.assertEqual(result.returncode, SUCCEEDED, f"{result.stderr}{self.sftctl('logs', name).stdout}")
        return name

    def export(self, *arguments):
        return self.sftctl("export", *arguments, timeout=TRAINING_DEADLINE_S)

    def exported(self, *arguments):
        result = self.export(*arguments, "--json")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        return json.loads(result.stdout)["export"]

    def test_what_a_qlora_job_trained_is_merged_into_the_better_base_and_written_as_gguf(self):
        job = self.train("training.use_qlora=true")
        adapter = self.dir / "adapter"
        self.assertEqual(self.sftctl("download", job, "-o", adapter).returncode, SUCCEEDED)
        merged = self.dir / "merged"
        result = self.exported(job, "--merged", "-o", merged, "--type", "f32")
        self.assertEqual(set(result["compared"]), {"original", "nf4"})
        self.assertEqual(result["merged_into"], "nf4", "what it was trained on is nearest in fp32")
        self.assertLess(result["compared"]["nf4"]["largest_logit_difference"], 1e-3)
        self.assertGreater(result["compared"]["original"]["mean_logit_difference"],
                           10 * result["compared"]["nf4"]["mean_logit_difference"])
        tensors = read_tensors(merged / "model.safetensors")
        self.assertNotIn("lm_head.weight", tensors, "a tied head stays tied")
        self.assertEqual(json.loads((merged / "config.json").read_text())["torch_dtype"], "float32")

        # Merged into the original base: W + s B A, by hand.
        original = self.dir / "original"
        self.exported(job, "--merged", "-o", original, "--type", "f32", "--base", "original")
        factors = read_tensors(adapter / "adapter_model.safetensors")
        module = "model.layers.0.self_attn.k_proj"
        a, b = (numbers(factors[f"base_model.model.{module}.lora_{which}.weight"]) for which in "AB")
        base = numbers(read_tensors(self.dir / "models/small/model.safetensors")[module + ".weight"])
        made = numbers(read_tensors(original / "model.safetensors")[module + ".weight"])
        columns = 64
        for i in (0, 1, 100, 2047):
            row, column = divmod(i, columns)
            want = base[i] + 2 * sum(b[row * 4 + k] * a[k * columns + column] for k in range(4))
            self.assertAlmostEqual(made[i], want, delta=1e-6)
        self.assertNotEqual(made, base)

        gguf = self.dir / "gguf"
        result = self.exported(job, "--gguf", "-o", gguf, "--type", "q8_0")
        self.assertEqual(result["form"], "gguf")
        self.assertEqual({path.name for path in gguf.iterdir()},
                         {"model-q8_0.gguf", "Modelfile", "export.json", "README.md"})
        self.assertEqual((gguf / "model-q8_0.gguf").read_bytes()[:4], b"GGUF")
        modelfile = (gguf / "Modelfile").read_text()
        self.assertIn("FROM ./model-q8_0.gguf\n", modelfile)
        self.assertIn('PARAMETER stop "<|im_end|>"', modelfile)
        left = [path for path in self.dir.rglob("*.work")]
        self.assertEqual(left, [], "nothing half done stays")

    def test_what_cannot_be_exported_is_said_before_anything_runs(self):
        job = self.train()
        folder = self.dir / "there"
        folder.mkdir()
        (folder / "file").write_text("mine")
        result = self.export(job, "--merged", "-o", folder)
        self.assertIn("is not an empty folder", result.stderr)
        self.assertNotEqual(result.returncode, SUCCEEDED)
        for arguments, said in [(("--merged", "--gguf"), "needs one of --merged, --gguf and --vllm"),
                                ((), "needs one of --merged, --gguf and --vllm"),
                                (("--merged", "--type", "q8_0"), "q8_0 is a type of GGUF"),
                                (("--merged", "--type", "fp16"), 'must be "bf16", "f32" or "q8_0"'),
                                (("--merged", "--base", "best"), 'must be "better", "original" or "trained"')]:
            result = self.export(job, *arguments, "-o", self.dir / "none")
            self.assertEqual(result.returncode, USAGE, result.stderr)
            self.assertIn(said, result.stderr)
        self.assertFalse((self.dir / "none").exists())
        other = self.dir / "other.toml"
        other.write_text(f'[job]\nkind = "export"\nmodel = "other"\nadapter = "{job}"\n'
                         '[compute]\nvariant = "H100-1x"\n')
        result = self.sftctl("submit", other)
        self.assertEqual(result.returncode, USAGE)
        self.assertIn(f'{job} trained an adapter for small, not for other: set job.model = "small"', result.stderr)

    def restart_with(self, script):
        """The worker again, whose ranks are started by a shell script with `$rank` in it."""
        wrapper = self.dir / "wrapped-rank"
        wrapper.write_text(f"#!/bin/sh\nrank={harness.BUILD}/bin/sft-rank\n{script}\nexec $rank \"$@\"\n")
        wrapper.chmod(0o755)
        self.kill("node-a")
        self.start_worker(gpus="H100:1", engine=True, options=("--rank-binary", wrapper))

    def half_done(self):
        return [path for path in self.dir.rglob("*") if path.name.endswith(".work") or ".partial" in path.name]

    def test_a_full_disk_leaves_nothing_half_done(self):
        job = self.train()
        self.restart_with('case "$*" in export*) ulimit -f 2048 ;; esac')
        result = self.export(job, "--merged", "-o", self.dir / "merged")
        self.assertNotEqual(result.returncode, SUCCEEDED)
        self.assertIn("File too large", result.stderr)
        self.assertFalse((self.dir / "merged").exists())
        self.assertEqual(self.half_done(), [])

    def test_an_export_that_is_killed_runs_again_and_leaves_nothing_half_done(self):
        job = self.train()
        self.restart_with(f"""
case "$*" in export*)
  if mkdir {self.dir}/killed 2> /dev/null; then
    $rank "$@" &
    while [ -z "$(find {self.dir}/node-a -name '*.work')" ]; do :; done
    kill -9 $! $$
  fi ;;
esac""")
        result = self.exported(job, "--merged", "-o", self.dir / "merged")
        self.assertTrue((self.dir / "killed").exists())
        self.assertEqual(result["merged_into"], "original")
        self.assertEqual(self.half_done(), [])

    def test_an_export_that_is_cancelled_after_a_kill_leaves_nothing_half_done(self):
        adapter = self.train()
        self.restart_with(f"""
case "$*" in export*)
  $rank "$@" &
  while [ -z "$(find {self.dir}/node-a -name '*.work')" ]; do :; done
  kill -9 $!
  wait
  touch {self.dir}/killed
  exec sleep 600 ;;
esac""")
        job = self.dir / "export.toml"
        job.write_text(f'[job]\nkind = "export"\nmodel = "small"\nadapter = "{adapter}"\n'
                       '[compute]\nvariant = "H100-1x"\n')
        result = self.sftctl("submit", job, "--json")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        name = json.loads(result.stdout)["job"]
        harness.wait_until("the rank to be killed", (self.dir / "killed").exists)
        self.assertNotEqual(self.half_done(), [])
        self.assertEqual(self.sftctl("cancel", name).returncode, SUCCEEDED)
        self.wait_for_state(name, "CANCELLED")
        self.assertEqual(self.half_done(), [])

    def test_ranks_of_single_modules_are_trained_delivered_merged_and_gone_on_with(self):
        job = self.train("lora.rank_pattern=layers.0.*k_proj=2,q_proj=6", "lora.alpha_pattern=k_proj=16")
        refused = self.sftctl("submit", self.dir / "train.toml", "--set", "lora.rank_pattern=x_proj=2")
        self.assertEqual(refused.returncode, USAGE, refused.stdout)
        self.assertIn('lora.rank_pattern: "x_proj" counts for no linear', refused.stderr)
        adapter = self.dir / "adapter"
        self.assertEqual(self.sftctl("download", job, "-o", adapter).returncode, SUCCEEDED)
        config = json.loads((adapter / "adapter_config.json").read_text())
        self.assertEqual(config["rank_pattern"], {"layers.0.*k_proj": 2, "q_proj": 6})
        self.assertEqual(config["alpha_pattern"], {"k_proj": 16})
        factors = read_tensors(adapter / "adapter_model.safetensors")
        for module, rank in (("0.self_attn.k", 2), ("1.self_attn.k", 4), ("0.self_attn.q", 6), ("1.self_attn.v", 4)):
            self.assertEqual(factors[f"base_model.model.model.layers.{module}_proj.lora_A.weight"][1][0], rank, module)
        result = self.exported(job, "--merged", "-o", self.dir / "merged", "--type", "f32")
        self.assertLess(result["compared"]["original"]["largest_logit_difference"], 1e-3)
        second = self.train(f"job.adapter={job}", "lora.r=6", "lora.alpha=3")
        self.assertIn("starts from the adapter of", self.sftctl("logs", second).stdout)

    def test_the_name_of_a_job_stands_for_the_full_model_that_it_delivered(self):
        adapter = self.train()
        job = self.dir / "train.toml"
        refused = self.sftctl("submit", job, "--set", f"job.model={adapter}")
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn(f'set job.model = "small" and job.adapter = "{adapter}"', refused.stderr)
        full = self.train("training.mode=full_finetune")
        merged = self.exported(adapter, "--merged", "-o", self.dir / "merged")
        self.assertEqual(merged["form"], "merged")
        exports = [each["job"] for each in json.loads(self.sftctl("list", "--json").stdout)
                   if each["name"].startswith("export of")]
        for model in (full, exports[0]):
            second = self.train(f"job.model={model}", "training.mode=full_finetune")
            log = self.sftctl("logs", second).stdout
            resolved = self.status(second)["resolved"]["job"]["model"]
            self.assertIn(model, resolved, "the folder of that job")
            self.assertTrue(pathlib.Path(resolved, "model.safetensors").exists(), log)

    def test_training_goes_on_from_an_adapter_and_says_what_would_be_lost(self):
        first = self.train("training.use_qlora=true")
        second = self.train(f"job.adapter={first}", "lora.r=8")
        log = self.sftctl("logs", second).stdout
        said = re.search(r"starts from the adapter of (\d+) of (\d+) modules, r 4 of 8, \|B\| ([0-9.e-]+)", log)
        self.assertTrue(said, log)
        self.assertEqual(said[1], said[2])
        self.assertGreater(float(said[3]), 0)
        job = self.dir / "train.toml"
        for change, message in (("lora.r=2", "set lora.r = 4 or more"),
                                ("lora.target_modules=q_proj", "which the job does not train")):
            result = self.sftctl("submit", job, "--json", "--set", f"job.adapter={first}", "--set", change)
            self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
            result = self.sftctl("wait", json.loads(result.stdout)["job"], timeout=TRAINING_DEADLINE_S)
            self.assertEqual(result.returncode, USER_FAILURE, result.stderr)
            self.assertIn(message, result.stderr)
        result = self.sftctl("submit", job, "--set", f"job.adapter={first}", "--set", "training.mode=full_finetune")
        self.assertEqual(result.returncode, USAGE)
        self.assertIn("has no adapters", result.stderr)
        card = self.dir / "second"
        self.assertEqual(self.sftctl("download", second, "-o", card).returncode, SUCCEEDED)
        self.assertIn(f"Job {second} of sft", (card / "README.md").read_text())


if __name__ == "__main__":
    unittest.main()
