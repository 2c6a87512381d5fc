#!/usr/bin/env python3
"""A tiny model of every family, and of every form in which weights are stored, through the real
service on CPU slots: two ranks each, one of which is killed, delivered, and read by PEFT."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import unittest

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests/parity/goldens"
PARITY_PYTHON = ROOT / "build/deps/parity/bin/python"
SLOTS = 8
STEPS, SAVE_STEPS = 300, 20  # a few seconds
FIRST = f"step-{SAVE_STEPS}"  # the folder of the first checkpoint

FAMILIES = ("llama_rope_llama3_tied", "qwen2_sliding_untied", "qwen3_sliding_rope_yarn_untied",
            "mistral_sliding_untied", "ministral_untied", "smollm3_tied", "granite_tied", "granite4_tied", "gemma3_tied", "gemma3_multimodal_tied",
            "gemma4_e_tied", "gemma4_multimodal_tied",
            "gemma4_moe_tied", "gemma4_moe_multimodal_tied", "gpt2_tied", "olmo2_untied", "olmo3_untied", "ministral3_untied",
            "mistral3_multimodal_untied", "phi3_longrope_partial_tied", "qwen3_moe_mixed", "mixtral", "glm4_moe",
            "gpt_oss", "qwen3_5_tied", "qwen3_5_moe_multimodal_tied", "qwen3_next")
# Their two ranks share the tokens of each row.
CONTEXT = ("smollm3_tied", "gemma4_e_tied", "qwen3_moe_mixed", "gpt_oss", "qwen3_5_tied")
# Or the matrices.
TENSOR = ("llama_rope_llama3_tied", "granite_tied", "gemma3_tied", "gpt2_tied", "phi3_longrope_partial_tied",
          "nf4_double_quant", "fp8_blocks")
STORED = ("nf4_double_quant", "nf4_transposed", "fp8_blocks", "mxfp4")


def copy_small_model(folder):
    """The tiny model that jobs train and answer with, without its adapter."""
    shutil.copytree(GOLDENS / "families/qwen2_sliding_untied", folder)
    shutil.rmtree(folder / "adapter")
    write_tokenizer(folder)


def write_tokenizer(folder):
    """Each letter a token: fewer than the 128 that the tiny models have embeddings for."""
    letters = [chr(code) for code in range(33, 127)]
    vocabulary = {token: number for number, token in enumerate(["<pad>", "<s>", "</s>", "<unk>", *letters])}
    special = [{"id": number, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False} for token, number in vocabulary.items() if number < 4]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": "<unk>", "dropout": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                  "byte_fallback": False}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))


def argument(words, name):
    return words[words.index(name) + 1] if name in words else ""


class Stopper:
    """Stops the second rank of each job soon after its first checkpoint, all the time: such a training takes
    but seconds. Who is stopped can then be killed at leisure."""

    def __init__(self, folder):
        self.folder = str(folder)
        self.pids = {}  # by the model's name
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.ended.wait(0.02):
            for pid in harness.processes_with(f"train --launch {self.folder}"):
                words = harness.command_of(pid).split()
                if argument(words, "--rank") == "1":
                    self.look_at(pid, pathlib.Path(argument(words, "--launch")))

    def look_at(self, pid, launch):
        try:
            settings = json.loads(launch.read_text())
        except FileNotFoundError:  # it has just ended
            return
        case = pathlib.Path(settings["model_dir"]).name
        # Of the second: ranks that wait for the stopped one may not have told of their newest.
        saved = pathlib.Path(settings["checkpoint_dir"]).glob("step-*/manifest.json")
        if case not in self.pids and any(path.parent.name not in (FIRST, f"{FIRST}.partial") for path in saved):
            os.kill(pid, signal.SIGSTOP)
            self.pids[case] = pid

    def end(self):
        self.ended.set()
        self.thread.join()


class FamiliesTest(harness.ServiceCase):
    def place(self, source):
        """The folder of a golden case as a model's folder."""
        folder = self.dir / "models" / source.name
        folder.mkdir()
        for name in source.glob("*"):
            if name.name == "config.json" or name.name.startswith("model"):
                shutil.copyfile(name, folder / name.name)
        write_tokenizer(folder)

    def start_slots(self):
        self.start("node-a", harness.BUILD / "bin/sft-worker", "--dev", "--server", f"127.0.0.1:{self.port}", "--data-dir",
                   self.dir / "node-a", "--node", "node-a", "--models", self.dir / "models", "--cpu-slots", SLOTS,
                   "--grace", 1)
        harness.wait_until("node-a to register", lambda: '"node-a"' in self.sftctl("nodes", "--json").stdout)

    def submit_file(self, case, context=1, tensor=1):
        settings = {"compute.gpu_type": "CPU", "compute.gpu_count": 2, "compute.variant": "CPU-2x",
                    "compute.gpus_per_node": 2, "training.use_qlora": str(case.startswith("nf4")).lower(),
                    "lora.r": 4, "lora.alpha": 8, "hyperparameters.max_steps": STEPS,
                    "hyperparameters.logging_steps": SAVE_STEPS, "checkpoint.save_strategy": "steps",
                    "checkpoint.save_steps": SAVE_STEPS, "hyperparameters.per_device_batch": 1,
                    "hyperparameters.gradient_accumulation_steps": 1, "hyperparameters.sequence_length": 32,
                    "hyperparameters.parallelism.context_parallel_size": context,
                    "hyperparameters.parallelism.tensor_parallel_size": tensor,
                    "hyperparameters.learning_rate": "1e-3"}
        job = self.dir / "family.toml"
        job.write_text('[job]\ndata = "rows.jsonl"\n')
        return self.sftctl("submit", job, "--json", "--name", case, "--model", case,
                           *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")))

    def submit_case(self, case):
        result = self.submit_file(case, 2 if case in CONTEXT else 1, 2 if case in TENSOR else 1)
        self.assertEqual(result.returncode, 0, f"{case}: {result.stdout}{result.stderr}")
        return json.loads(result.stdout)["job"]

    def kill_each(self, jobs, stopped):
        """The stopped rank of each job, once the server has a checkpoint of it; meanwhile the worker, once."""
        left, worker_killed = dict(jobs), False

        def kill_those_that_have_saved():
            nonlocal worker_killed
            for case, pid in list(stopped.items()):
                if case in left and self.status(left[case])["checkpoint_step"] > 0:
                    os.kill(pid, signal.SIGKILL)
                    del left[case]
            if not worker_killed and len(left) < len(jobs) / 2:
                worker_killed = True
                self.kill("node-a")
                self.start_slots()
            return not left

        harness.wait_until("every job to be stopped and killed", kill_those_that_have_saved, deadline_s=300)

    def check_delivered(self, case, job):
        result = self.sftctl("wait", job, "--timeout", f"{harness.DEADLINE_S}s", timeout=harness.DEADLINE_S + 30)
        self.assertEqual(result.returncode, 0, f"{case}: {result.stderr}{self.sftctl('logs', job).stdout}")
        status = self.status(job)
        # On a busy machine another process may take the port of a rendezvous first.
        attempts = [each for each in status["attempts"] if each["verdict"]["code"] != "rendezvous_port"]
        self.assertEqual(len(attempts), 2, status)
        self.assertGreaterEqual(attempts[1]["first_step"], SAVE_STEPS, f"{case}: {self.sftctl('events', job).stdout}")
        self.assertEqual(attempts[0]["verdict"]["code"], "rank_killed", status)
        self.assertEqual(self.sftctl("download", job, "-o", self.dir / "adapters" / case).returncode, 0)
        rows = next(GOLDENS.glob(f"*/{case}/rows.safetensors"))
        computed = subprocess.run(
            [harness.BUILD / "bin/sft-rank", "logits", "--model", self.dir / "models" / case, "--adapter",
             self.dir / "adapters" / case, "--tokens", rows, "--out", self.dir / f"{case}.logits", "--device", "cpu"],
            capture_output=True, text=True, check=False)
        self.assertEqual(computed.returncode, 0, f"{case}: {computed.stderr}")

    def check_exported_for_vllm(self, jobs):
        """By a job of its own: the experts of a layer one by one."""
        folder = self.dir / "for-vllm"
        result = self.sftctl("export", jobs["gemma4_moe_tied"], "--vllm", "-o", folder, timeout=harness.DEADLINE_S)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(folder / "adapter_model.safetensors", "rb") as file:
            names = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for linear in ("gate_proj", "up_proj", "down_proj"):
            self.assertIn(f"base_model.model.model.layers.0.experts.3.{linear}.lora_B.weight", names)
        self.assertEqual(json.loads((folder / "export.json").read_text())["form"], "vllm")
        refused = self.sftctl("export", jobs["smollm3_tied"], "--vllm", "-o", self.dir / "none",
                              timeout=harness.DEADLINE_S)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("this smollm3 model has no experts", refused.stdout + refused.stderr)

    def check_listed(self):
        """What `sftctl models` says of the folders; one that is refused, in the words of a submit."""
        listed = {model["model"]: model for model in json.loads(self.sftctl("models", "--json").stdout)}
        self.assertEqual({case: listed[case]["problem"] for case in FAMILIES + STORED},
                         dict.fromkeys(FAMILIES + STORED, ""))
        self.assertEqual({case: listed[case]["stored"] for case in STORED},
                         {"nf4_double_quant": "bnb 4-bit", "nf4_transposed": "bnb 4-bit", "fp8_blocks": "FP8",
                          "mxfp4": "MXFP4"})
        self.assertEqual(listed["gemma3_multimodal_tied"]["family"], "gemma3_text")
        self.assertEqual([need["method"] for need in listed["gpt2_tied"]["needs"]], ["QLoRA", "LoRA", "full"])
        self.assertTrue(listed["gpt2_tied"]["needs"][0]["assumed"], "there are no GPUs")
        problem = listed["qwen3_tied"]["problem"]
        self.assertIn("the nearest is gemma3_text", problem)
        submitted = self.submit_file("qwen3_tied")
        self.assertNotEqual(submitted.returncode, 0)
        self.assertIn(problem, submitted.stdout + submitted.stderr)
        for case, what in (("qwen3_next", "gated DeltaNets"), ("gpt_oss", "mixtures of experts"),
                           ("olmo2_untied", "norms over all heads together")):
            submitted = self.submit_file(case, tensor=2)
            self.assertNotEqual(submitted.returncode, 0)
            self.assertIn(f"2 does not go with {what} yet, which this", submitted.stdout + submitted.stderr)

    def test_a_model_of_every_family_is_killed_resumed_delivered_and_read_by_peft(self):
        (self.dir / "adapters").mkdir()
        (self.dir / "rows.jsonl").write_text("".join(
            json.dumps({"text": f"row{number}:" + "abcdefgh"[number % 5:] * 2}) + "\n" for number in range(8)))
        shutil.rmtree(self.dir / "models/tiny")
        for kind, cases in (("families", FAMILIES), ("stored", STORED)):
            for case in cases:
                self.place(GOLDENS / kind / case)
        self.place(GOLDENS / "families/qwen3_tied")
        refused = self.dir / "models/qwen3_tied/config.json"
        refused.write_text(refused.read_text().replace('"qwen3"', '"gemma2"'))
        self.start_server()
        self.start_slots()
        self.check_listed()
        stopper = Stopper(self.dir)
        self.addCleanup(stopper.end)
        jobs = {case: self.submit_case(case) for case in FAMILIES + STORED}
        self.kill_each(jobs, stopper.pids)
        for case, job in jobs.items():
            self.check_delivered(case, job)
        self.check_exported_for_vllm(jobs)
        if not PARITY_PYTHON.exists():
            print("not read by PEFT: there is no build/deps/parity (deploy/bootstrap --parity)")
            return
        read = subprocess.run([PARITY_PYTHON, ROOT / "tests/parity/check_deliveries.py", self.dir, *FAMILIES, *STORED],
                              capture_output=True, text=True, check=False)
        print(read.stdout)
        self.assertEqual(read.returncode, 0, read.stdout + read.stderr)


if __name__ == "__main__":
    harness.run_tests()
