#!/usr/bin/env python3
"""The OpenAI-compatible endpoint of a job that serves: the real `openai` client and lm_eval against
it, and what becomes of questions whose askers hang up."""

import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import time
import unittest

import harness
from families_test import GOLDENS, write_tokenizer

SUCCEEDED = 0
DEPS = pathlib.Path(os.environ.get("SFT_DEPS_DIR", pathlib.Path(__file__).parents[2] / "build/deps"))
PYTHON = DEPS / "clients/bin/python"
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
        job = self.submit_serving()
        result = self.client(HERE / "openai_client.py", self.base, "none", job, self.said(job))
        self.assertEqual(result.returncode, 0, result.stderr)
        one = self.sftctl("generate", job, "--prompt", "hello", "--max-new-tokens", 12)
        self.assertEqual((one.returncode, one.stdout), (0, self.said(job) + "\n"), one.stderr)
        shown = json.loads(self.sftctl("generate", job, "--prompt", "hello", "--max-new-tokens", 3, "--json").stdout)
        self.assertEqual((shown["answer_tokens"], shown["finish_reason"], shown["job"]), (3, "length", job))
        for flags in (("--project", "default"), ("--num-beams", "4")):
            self.assertEqual(self.sftctl("generate", job, "--prompt", "hello", *flags).returncode, 2)
        self.assertIn(f"{self.base}, model {job}", self.sftctl("status", job).stdout)
        # The job still answers, and has not failed on any of it.
        self.assertEqual(self.status(job)["state"], "RUNNING")

    def write_tasks(self):
        """Two tasks of lm_eval: how likely words are after others, and answers up to a letter."""
        tasks = self.dir / "tasks"
        tasks.mkdir()
        rows = [{"text": "hello", "word": "world"}, {"text": "again", "word": "I"}, {"text": "abcabcabc", "word": "abc"}]
        (tasks / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        common = f"""
dataset_path: json
dataset_kwargs:
  data_files:
    test: {tasks}/rows.jsonl
test_split: test
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{word}}}}"
target_delimiter: ""
"""
        (tasks / "likely.yaml").write_text(
            "task: likely" + common + "output_type: loglikelihood\nmetric_list:\n  - metric: perplexity\n  - metric: acc\n")
        (tasks / "answers.yaml").write_text(
            "task: answers" + common + "output_type: generate_until\ngeneration_kwargs:\n  until: [\"Z\"]\n"
            "  max_gen_toks: 6\n  temperature: 0\nmetric_list:\n  - metric: exact_match\n")
        return tasks, rows

    def log_likelihood(self, text, word):
        """By the engine's plain forward, whose logits `sft-rank logits` writes."""
        ids = [ord(letter) - 33 + 4 for letter in text + word]
        tokens, out = self.dir / "ids.safetensors", self.dir / "logits.safetensors"
        header = json.dumps({"input_ids": {"dtype": "I64", "shape": [1, len(ids)],
                                           "data_offsets": [0, 8 * len(ids)]}}).encode()
        tokens.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack(f"<{len(ids)}q", *ids))
        subprocess.run([str(harness.BUILD / "bin/sft-rank"), "logits", "--model", str(self.model), "--adapter",
                        str(self.dir / "models/mine"), "--tokens", str(tokens), "--out", str(out)],
                       check=True, capture_output=True, timeout=harness.DEADLINE_S)
        content = out.read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        logits = json.loads(content[8:8 + size])["logits"]
        first, vocabulary = 8 + size + logits["data_offsets"][0], logits["shape"][2]
        total = 0.0
        for place in range(len(text), len(ids)):
            row = struct.unpack_from(f"<{vocabulary}f", content, first + 4 * vocabulary * (place - 1))
            total += row[ids[place]] - math.log(sum(math.exp(each) for each in row))
        return total

    def test_lm_eval_scores_and_generates_with_the_remote_tokenizer(self):
        self.start_all()
        job = self.submit_serving()
        self.said(job)
        tasks, rows = self.write_tasks()
        result = self.client(
            "-m", "lm_eval", "--model", "local-completions", "--tasks", "likely,answers", "--include_path", tasks,
            "--model_args", f"model={job},base_url={self.base}/completions,tokenizer_backend=remote,max_length=60",
            "--batch_size", 2, "--output_path", self.dir / "out", "--log_samples")
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        samples = {}
        for path in self.dir.glob("out/**/samples_*.jsonl"):
            for line in path.read_text().splitlines():
                sample = json.loads(line)
                samples[path.name.split("_")[1], sample["doc"]["text"]] = sample["resps"][0][0]
        self.assertEqual(len(samples), 2 * len(rows), samples)
        for row in rows:
            found = float(samples["likely", row["text"]][0])
            self.assertAlmostEqual(found, self.log_likelihood(row["text"], row["word"]), delta=1e-3)
            self.assertLessEqual(len(samples["answers", row["text"]]), 6)
            self.assertTrue(samples["answers", row["text"]])

    def test_each_caller_sees_the_models_of_his_projects_and_nobody_without_a_token(self):
        made = subprocess.run([str(harness.BUILD / "bin/sft-server"), "init", "--data-dir", str(self.dir / "server"),
                               "--name", "127.0.0.1"], capture_output=True, text=True, check=True).stdout
        found = {key: re.search(rf"^{key} +(\S+)", made, re.M).group(1)
                 for key in ("fingerprint", "admin token", "join token")}
        self.secret("admin", found["admin token"])
        self.secret("join", found["join token"])
        self.start("server", harness.BUILD / "bin/sft-server", "--listen", f"127.0.0.1:{self.port}", "--require-token",
                   "--http", f"127.0.0.1:{self.http}", "--data-dir", self.dir / "server")

        def admin(*arguments):
            result = subprocess.run([str(harness.BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}",
                                     *map(str, arguments)], capture_output=True, text=True, check=False,
                                    env={**os.environ, "XDG_CONFIG_HOME": str(self.dir / "home")})
            return result
        harness.wait_until("the admin to be let in", lambda: admin(
            "login", "--fingerprint", found["fingerprint"], "--token-file", self.dir / "admin.token").returncode == 0)
        self.sftctl = lambda *arguments: admin(*arguments)
        tokens = {"admin": found["admin token"], "forged": found["admin token"][:-3] + "xyz", "none": "none"}
        for name, role in (("ann", "alpha=submitter"), ("eve", "alpha=viewer"), ("bob", "beta=submitter")):
            self.assertEqual(admin("admin", "user", "set", name, "--project", role).returncode, 0)
            tokens[name] = admin("admin", "token", "create", name).stdout.strip()
        self.start("node-a", harness.BUILD / "bin/sft-worker", "--dev", "--server", f"127.0.0.1:{self.port}",
                   "--data-dir", self.dir / "node-a", "--node", "node-a", "--models", self.dir / "models",
                   "--simulate-gpus", "H100:1", "--cpu-slots", 0, "--grace", 1,
                   "--join-token-file", self.dir / "join.token")
        job = self.submit_serving("--project", "alpha")
        harness.wait_until("the job to run", lambda: self.status(job)["state"] == "RUNNING")
        harness.wait_until("its model to be loaded", lambda: self.client(
            HERE / "openai_callers.py", self.base, job, tokens["ann"], "loaded").returncode == 0)
        for who, outcome in (("admin", "answers"), ("ann", "answers"), ("eve", "PermissionDeniedError"),
                             ("bob", "NotFoundError"), ("forged", "AuthenticationError"),
                             ("none", "AuthenticationError")):
            result = self.client(HERE / "openai_callers.py", self.base, job, tokens[who], outcome)
            self.assertEqual(result.returncode, 0, f"{who}: {result.stderr}")
        audit = admin("admin", "audit", "--json").stdout
        for secret in tokens.values():
            self.assertNotIn(secret, audit + (self.dir / "server.log").read_text())

    def secret(self, name, text):
        path = self.dir / f"{name}.token"
        path.write_text(text + "\n")
        path.chmod(0o600)

    def stream(self, job, **more):
        """A connection on which an answer is asked for, as a stream."""
        body = json.dumps({"model": job, "prompt": "hello", "stream": True, **more}).encode()
        connection = socket.create_connection(("127.0.0.1", self.http), timeout=harness.DEADLINE_S)
        self.addCleanup(connection.close)
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return connection

    def test_idle_connections_keep_nobody_out_and_half_closed_ones_are_told_so(self):
        self.start_all()
        job = self.submit_serving()
        said = self.said(job)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        idle = []
        for _ in range(140):
            connection = socket.create_connection(("127.0.0.1", self.http), timeout=harness.DEADLINE_S)
            self.addCleanup(connection.close)
            connection.sendall(head + b"Content-Length: 100\r\n\r\n")
            idle.append(connection)
        harness.wait_until("all places to be taken", lambda: self.openai_threads() >= 128)
        answer = self.stream(job, stream=False).recv(4096).decode()
        self.assertIn("HTTP/1.1 200 OK", answer)
        # The oldest of them had to go, and was told to come again.
        self.assertIn("HTTP/1.1 429 Too Many Requests", idle[0].recv(4096).decode())
        for connection in idle:
            connection.close()
        harness.wait_until("the server to forget them", lambda: self.openai_threads() == 0)
        with socket.create_connection(("127.0.0.1", self.http), timeout=harness.DEADLINE_S) as half:
            half.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            half.shutdown(socket.SHUT_WR)
            told = half.recv(4096).decode()
        self.assertTrue("HTTP/1.1 400 Bad Request" in told and "closed his half" in told or "HTTP/1.1 200 OK" in told, told)
        self.assertEqual(self.said(job), said)

    def test_one_who_asks_for_all_the_tokens_there_are_keeps_nobody_waiting(self):
        config = json.loads((self.model / "config.json").read_text())
        config["max_position_embeddings"] = 32768
        (self.model / "config.json").write_text(json.dumps(config))
        self.start_all()
        job = self.submit_serving()
        self.said(job)
        # Room for four conversations of 12 + 4096 tokens: as many answers are made side by side.
        streams = [self.stream(job, max_tokens=10 ** 6) for _ in range(4)]
        for stream in streams:
            self.assertIn("HTTP/1.1 200 OK", stream.recv(200).decode())
        for stream in streams:
            stream.setblocking(False)
            try:
                so_far = stream.recv(1 << 20)
            except BlockingIOError:
                so_far = b""  # no token yet
            self.assertNotIn(b"[DONE]", so_far, "they were made one behind the other")
            stream.close()
        # One that is longer than such a conversation gets as many tokens as the job's file says.
        answer = self.stream(job, prompt=[40] * 5000, max_tokens=10 ** 6, stream=False)
        usage = json.loads(answer.recv(1 << 16).split(b"\r\n\r\n")[1])["usage"]
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"]), (5000, 12), usage)

    def openai_threads(self):
        tasks = pathlib.Path(f"/proc/{self.processes['server'].pid}/task").glob("*/comm")
        return sum(self.name_of(path) == "openai" for path in tasks)

    @staticmethod
    def name_of(path):
        try:
            return path.read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            return ""  # a thread that has ended since it was listed

    def test_who_hangs_up_is_forgotten_and_a_dead_process_is_told_of(self):
        self.start_all()
        job = self.submit_serving()
        said = self.said(job)
        rank, = harness.processes_with(f"--launch {self.dir}/node-a")[-1:]
        os.kill(rank, signal.SIGSTOP)
        # As many questions as one job takes wait; the others are told to come again.
        waiting = [self.stream(job) for _ in range(64)]
        harness.wait_until("all of them to be asked", lambda: self.openai_threads() == 64)
        time.sleep(1)
        refused = self.stream(job).recv(4096).decode()
        self.assertIn("HTTP/1.1 429 Too Many Requests", refused)
        self.assertIn("\r\nRetry-After: 2\r\n", refused)
        self.assertIn("rate_limit_exceeded", refused)
        for connection in waiting:
            connection.close()
        harness.wait_until("the server to forget them", lambda: self.openai_threads() == 0)
        os.kill(rank, signal.SIGCONT)
        self.assertEqual(self.said(job), said)
        # One whose process dies.
        os.kill(rank, signal.SIGSTOP)
        cut = self.stream(job)
        harness.wait_until("it to be asked", lambda: self.openai_threads() == 1)
        time.sleep(1)
        os.kill(rank, signal.SIGKILL)
        self.assertIn("HTTP/1.1 503 Service Unavailable", cut.recv(4096).decode())
        # The job comes back, and says so meanwhile: the client's own retries are of no use for that long.
        self.assertEqual(self.said(job), said)
        # Requests that do not come, or are none.
        half = socket.create_connection(("127.0.0.1", self.http), timeout=harness.DEADLINE_S)
        self.addCleanup(half.close)
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 100\r\n\r\n{")
        for head, status in ((b"Content-Length: x", b"400"), (b"Content-Length: 5000000", b"413"),
                             (b"Content-Length: -1", b"400"), (b"Content-Length: 2\r\nContent-Length: 3", b"400"),
                             (b"Transfer-Encoding: chunked", b"400")):
            with socket.create_connection(("127.0.0.1", self.http), timeout=harness.DEADLINE_S) as other:
                other.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                              b"Content-Type: application/json\r\n" + head + b"\r\n\r\n{}")
                self.assertEqual(other.recv(4096).split(b" ")[1], status, head)
        # The server ends with the one that waits for its body, at once.
        self.processes["server"].send_signal(signal.SIGTERM)
        self.assertEqual(self.processes["server"].wait(20), 0)


if __name__ == "__main__":
    harness.run_tests()
