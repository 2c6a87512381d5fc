#!/usr/bin/env python3
"""OpenAI's files and fine-tuning jobs: the real `openai` client against a whole service, over answers that are lost, over
projects, and with the real engine from a file to a model that answers."""

import json
import os
import pathlib
import re
import socket
import subprocess
import threading

import harness
from families_test import copy_small_model

DEPS = pathlib.Path(os.environ.get("SFT_DEPS_DIR", pathlib.Path(__file__).parents[2] / "build/deps"))
PYTHON = DEPS / "clients/bin/python"
CLIENT = pathlib.Path(__file__).parent / "openai_tuning_client.py"


class Dropper:
    """Passes requests on to a server, and of those that make something drops the first answers: their connection is cut
    once the server has answered."""

    def __init__(self, port, drops):
        self.port, self.drops, self.dropped = port, drops, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        """One request of each connection: both sides are told that no other follows."""
        with connection, socket.create_connection(("127.0.0.1", self.port)) as server:
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(65536)
                if not piece:
                    return
                head += piece
            lines, _, body = head.partition(b"\r\n\r\n")
            length = int((re.search(rb"content-length: *(\d+)", lines, re.I) or [0, b"0"])[1])
            lines = re.sub(rb"(?im)^connection:.*\r\n", b"", lines + b"\r\n") + b"Connection: close\r\n"
            server.sendall(lines + b"\r\n" + body)
            left = length - len(body)
            while left > 0:
                piece = connection.recv(65536)
                if not piece:
                    return
                left -= len(piece)
                server.sendall(piece)
            answer = b""
            while piece := server.recv(65536):
                answer += piece
            request = lines.split(b"\r\n")[0].decode()
            if request.startswith("POST") and self.dropped.count(request) < self.drops:
                self.dropped.append(request)
                return
            connection.sendall(answer)


class OpenAiTuningTest(harness.ServiceCase):
    def setUp(self):
        if not PYTHON.exists():
            self.skipTest(f"{PYTHON} is missing: deploy/bootstrap --clients installs openai")
        super().setUp()
        self.http = harness.free_port()
        self.base = f"http://127.0.0.1:{self.http}/v1"
        self.rows = self.dir / "rows.jsonl"

    def client(self, what, *arguments, base=None, key="none"):
        result = subprocess.run([str(PYTHON), str(CLIENT), what, base or self.base, key, *map(str, arguments)],
                                capture_output=True, text=True, timeout=2 * harness.DEADLINE_S, check=False, cwd=self.dir)
        self.assertEqual(result.returncode, 0, f"{what}: {result.stderr}")
        return result.stdout

    def write_chat_model(self):
        model = self.dir / "models/small"
        copy_small_model(model)
        config = json.loads((model / "tokenizer_config.json").read_text())
        config["chat_template"] = "{% for message in messages %}{{ message.content }}{% endfor %}"
        (model / "tokenizer_config.json").write_text(json.dumps(config))

    def start_with_engine(self):
        self.start_server(http=f"127.0.0.1:{self.http}")
        self.start("node-a", harness.BUILD / "bin/sft-worker", "--dev", "--server", f"127.0.0.1:{self.port}", "--data-dir",
                   self.dir / "node-a", "--node", "node-a", "--models", self.dir / "models", "--cpu-slots", 2, "--grace", 1)
        harness.wait_until("node-a to register", lambda: '"node-a"' in self.sftctl("nodes", "--json").stdout)

    def test_a_job_lives_from_its_file_to_a_model_that_answers(self):
        self.write_chat_model()
        for name, count in (("rows", 8), ("check", 2)):
            (self.dir / f"{name}.jsonl").write_text("".join(json.dumps({"messages": [
                {"role": "user", "content": "hello"}, {"role": "assistant", "content": f"world{number}"}]}) + "\n"
                for number in range(count)))
        self.start_with_engine()
        made = json.loads(self.client("life", self.dir).splitlines()[-1])
        self.assertEqual(self.status(made["job"])["state"], "SUCCEEDED")
        serve = self.dir / "serve.json"
        serve.write_text(json.dumps({
            "job": {"kind": "serve", "model": "small", "adapter": made["job"]}, "compute": {"gpu_type": "CPU"},
            "scheduling": {"time_limit": "1h"}, "generate": {"max_new_tokens": 8}}))
        result = self.sftctl("submit", serve, "--json")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        serving = json.loads(result.stdout)["job"]
        self.client("chat", made["model"])
        self.sftctl("cancel", serving)
        self.wait_for_state(serving, "CANCELLED")
        self.client("delete", made["model"])

    def test_a_job_learns_from_preferences_by_method_dpo(self):
        self.write_chat_model()
        (self.dir / "rows.jsonl").write_text(json.dumps({"messages": [
            {"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]}) + "\n")
        answer = lambda text: [{"role": "assistant", "content": text}]
        (self.dir / "pairs.jsonl").write_text("".join(json.dumps({
            "input": {"messages": [{"role": "user", "content": f"say{number}"}]},
            "preferred_output": answer(f"yes{number}"), "non_preferred_output": answer(f"never{number}")}) + "\n"
            for number in range(8)))
        self.start_with_engine()
        made = json.loads(self.client("dpo", self.dir).splitlines()[-1])
        status = self.status(made["job"])
        self.assertEqual((status["state"], status["resolved"]["training"]["loss"], status["resolved"]["training"]["preference"]["beta"]),
                         ("SUCCEEDED", "dpo", 0.3))
        self.assertEqual(self.sftctl("download", made["job"], "-o", self.dir / "adapter").returncode, 0)
        self.assertTrue((self.dir / "adapter/adapter_model.safetensors").stat().st_size)

    def test_what_a_client_asks_again_because_its_answer_was_lost_is_made_once(self):
        self.rows.write_text(json.dumps({"text": f"fake:train steps=5 until={self.dir}/go"}) + "\n")
        self.start_server(http=f"127.0.0.1:{self.http}")
        self.start_worker()
        dropper = Dropper(self.http, drops=2)
        self.addCleanup(dropper.listener.close)
        self.client("once", self.dir, base=f"http://127.0.0.1:{dropper.listener.getsockname()[1]}/v1")
        self.assertEqual(sorted(dropper.dropped), sorted(["POST /v1/files HTTP/1.1"] * 2
                                                         + ["POST /v1/fine_tuning/jobs HTTP/1.1"] * 2))

    def test_a_job_that_runs_is_paused_and_resumed_by_its_client(self):
        gate = self.dir / "gate"
        self.rows.write_text(json.dumps({"text": f"fake:train steps=300 pace=100 fast={gate}"}) + "\n")
        self.start_server(http=f"127.0.0.1:{self.http}")
        self.start_worker(gpus="H100:1")
        self.client("pause", self.rows, gate)

    def test_what_another_project_has_is_not_there_over_any_path(self):
        self.rows.write_text(json.dumps({"text": "fake:train steps=3 save=1 pace=1"}) + "\n")
        made = subprocess.run([str(harness.BUILD / "bin/sft-server"), "init", "--data-dir", str(self.dir / "server"),
                               "--name", "127.0.0.1"], capture_output=True, text=True, check=True).stdout
        found = {key: re.search(rf"^{key} +(\S+)", made, re.M).group(1)
                 for key in ("fingerprint", "admin token", "join token")}
        for name in ("admin", "join"):
            path = self.dir / f"{name}.token"
            path.write_text(found[f"{name} token"] + "\n")
            path.chmod(0o600)
        self.start("server", harness.BUILD / "bin/sft-server", "--listen", f"127.0.0.1:{self.port}", "--require-token",
                   "--http", f"127.0.0.1:{self.http}", "--data-dir", self.dir / "server")

        def admin(*arguments):
            return subprocess.run([str(harness.BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}",
                                   *map(str, arguments)], capture_output=True, text=True, check=False,
                                  env={**os.environ, "XDG_CONFIG_HOME": str(self.dir / "home")})
        harness.wait_until("the admin to be let in", lambda: admin(
            "login", "--fingerprint", found["fingerprint"], "--token-file", self.dir / "admin.token").returncode == 0)
        tokens = {}
        for name, role in (("ann", "alpha=submitter"), ("eve", "alpha=viewer"), ("bob", "beta=submitter")):
            self.assertEqual(admin("admin", "user", "set", name, "--project", role).returncode, 0)
            tokens[name] = admin("admin", "token", "create", name).stdout.strip()
        self.start("node-a", harness.BUILD / "bin/sft-worker", "--dev", "--server", f"127.0.0.1:{self.port}",
                   "--data-dir", self.dir / "node-a", "--node", "node-a", "--models", self.dir / "models",
                   "--simulate-gpus", "H100:1", "--cpu-slots", 0, "--grace", 1, "--rank-binary",
                   harness.BUILD / "tests/sft-fake-rank", "--join-token-file", self.dir / "join.token")
        harness.wait_until("the node", lambda: '"node-a"' in admin("nodes", "--json").stdout)
        file, job, model = json.loads(self.client("owner", self.rows, key=tokens["ann"]))
        self.client("stranger", file, job, model, key=tokens["bob"])
        self.client("viewer", self.rows, job, key=tokens["eve"])
        audit = [json.loads(line) for line in admin("admin", "audit", "--json").stdout.splitlines()]
        self.assertIn(("ann", "FileService.CreateFile", f"files/{file}"),
                      [(each["principal"], each["method"], each["object"]) for each in audit])


if __name__ == "__main__":
    harness.run_tests()
