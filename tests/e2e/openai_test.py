#!/usr/bin/env python3
"""The OpenAI-compatible endpoint of a job that serves: the real `openai` client and lm_eval against
it, and what becomes of questions whose askers hang up."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import time
import unittest

import harness
from families_test import GOLDENS, write_tokenizer

SUCCEEDED = 0
DEPS = pathlib.Path(os.environ.get("SFT_DEPS_DIR", pathlib.Path(__file__).parents[2] / "build/deps"))
PYTHON = DEPS / "openai/bin/python"
HERE = pathlib.Path(__file__).parent


class OpenAiTest(harness.ServiceCase):
    def setUp(self):
        if not PYTHON.exists():
            self.skipTest(f"{PYTHON} is missing: deploy/bootstrap --clients installs openai and lm_eval")
        super().setUp()
        self.model = self.dir / "models/small"
        shutil.copytree(GOLDENS / "families/qwen2_sliding_untied", self.model)
        write_tokenizer(self.model)
        config = json.loads((self.model / "tokenizer_config.json").read_text())
        config["chat_template"] = "{% for message in messages %}{{ message.content }}{% endfor %}"
        (self.model / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = json.loads((self.model / "tokenizer.json").read_text())
        tokenizer["decoder"] = {"type": "Fuse"}  # its tokens stand side by side, not apart
        (self.model / "tokenizer.json").write_text(json.dumps(tokenizer))
        shutil.copytree(self.model / "adapter", self.dir / "models/mine")
        shutil.rmtree(self.model / "adapter")
        self.http = harness.free_port()
        self.base = f"http://127.0.0.1:{self.http}/v1"

    def serve(self, name="serve", tokens=12):
        path = self.dir / f"{name}.toml"
        path.write_text(f"""
[job]
kind = "serve"
model = "small"
adapter = "{self.dir}/models/mine"
[compute]
gpu_type = "H100"
[scheduling]
time_limit = "1h"
[generate]
max_new_tokens = {tokens}
batch = 4
""")
        result = self.sftctl("submit", path, "--json")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        return json.loads(result.stdout)["job"]

    def start_all(self):
        self.start_server(http=f"127.0.0.1:{self.http}")
        self.start_worker(gpus="H100:2", engine=True)

    def client(self, *arguments):
        return subprocess.run([str(PYTHON), *map(str, arguments)], capture_output=True, text=True,
                              timeout=harness.DEADLINE_S, check=False, cwd=self.dir,
                              env={**os.environ, "OPENAI_API_KEY": "none", "HF_HOME": str(self.dir / "hf"),
                                   "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"})

    def said(self, job):
        """What `sftctl chat` gets, once the model is loaded."""
        result = subprocess.run([str(harness.BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}", "chat", job],
                                input="hello\n", capture_output=True, text=True, timeout=harness.DEADLINE_S, check=False)
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        return result.stdout.rstrip("\n")

    def test_the_openai_client_gets_answers_streams_and_errors(self):
        self.start_all()
        job = self.serve()
        result = self.client(HERE / "openai_client.py", self.base, "none", job, self.said(job))
        self.assertEqual(result.returncode, 0, result.stderr)
        # The job still answers, and has not failed on any of it.
        self.assertEqual(self.status(job)["state"], "RUNNING")


if __name__ == "__main__":
    harness.run_tests()
