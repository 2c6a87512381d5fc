"""A server, workers and sftctl as real processes, in a temporary folder.

Everything is waited for through the programs' own interfaces, with a deadline; what a test started
is ended with it, ranks included.
"""

import contextlib
import errno
import json
import math
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = pathlib.Path(os.environ.get("SFT_BUILD_DIR", pathlib.Path(__file__).parents[2] / "build/release"))
# Programs with sanitizers take several times the time, and the memory that the sanitizers like.
SANITIZED = b"__asan_init" in (BUILD / "bin/sft-shim").read_bytes()
# Of each wait. What a test waits for comes within seconds; a busy machine is no failure.
DEADLINE_S = 600

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "vocab_size": 256, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}


def tensors(config):
    """Names and shapes of a tied Llama's weights."""
    hidden, middle, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    keys = hidden // heads * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        shapes |= {block + f"{norm}_layernorm.weight": [hidden] for norm in ("input", "post_attention")}
        shapes |= {block + f"self_attn.{name}_proj.weight": [rows, columns] for name, rows, columns in (
            ("q", hidden, hidden), ("k", keys, hidden), ("v", keys, hidden), ("o", hidden, hidden))}
        shapes |= {block + f"mlp.{name}_proj.weight": [rows, columns] for name, rows, columns in (
            ("gate", middle, hidden), ("up", middle, hidden), ("down", hidden, middle))}
    return shapes


def safetensors(shapes, extra=b""):
    """A file of these tensors, all zero. `extra`: the bytes of a head that a tied model may have beside them."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    if extra:
        header["lm_head.weight"] = {"dtype": "U8", "shape": [len(extra)], "data_offsets": [end, end + len(extra)]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end) + extra


def write_model(folder):
    """A folder that passes the checks of a worker; its weights are of no use."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(safetensors(tensors(CONFIG)))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def quiet_port(count=1):
    """A port, with others after it for `count`, that nobody gets without asking for it, as anybody may that of free_port:
    for programs that take seconds to start, or take a port by themselves."""
    for port in random.sample(range(20000, 32000), 1000):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for each in range(port, port + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", each))
            return port
    raise AssertionError("no port is free")


def wait_until(what, condition, deadline_s=DEADLINE_S):
    """Looks until `condition()` is true and returns its value."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"after {deadline_s} s still waiting: {what}")
        time.sleep(0.05)


def command_of(pid):
    """The command line of a process; empty for one that has ended."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def processes_with(text):
    """Pids whose command line contains `text`."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and text in command_of(pid)]


def run_tests():
    """Runs the file's tests; exit code 77 and the reason where this machine cannot run them."""
    result = unittest.main(module="__main__", verbosity=2, exit=False).result
    if result.skipped and len(result.skipped) == result.testsRun and result.wasSuccessful():
        print(result.skipped[0][1])
        sys.exit(77)
    sys.exit(0 if result.wasSuccessful() else 1)


class ServiceCase(unittest.TestCase):
    """Sets up the folder, a model and an address; a test starts what it needs."""

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="sft-e2e-"))
        write_model(self.dir / "models/tiny")
        self.port = free_port()
        self.processes = {}
        self.disks = []
        self.addCleanup(self._clean_up)

    def _clean_up(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        # Shims outlive their worker: they and their ranks are found by the folder they run in.
        for pid in processes_with(str(self.dir)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        wait_until("the last processes to go", lambda: not processes_with(str(self.dir)))
        if self._outcome_failed():
            for log in sorted(self.dir.glob("*.log")):
                print(f"---- {log.name}\n{log.read_text(errors='replace')[-4000:]}")
        for disk in self.disks:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
        shutil.rmtree(self.dir)

    def _outcome_failed(self):
        result = self._outcome.result
        return any(test is self for test, _ in result.failures + result.errors)

    def small_disk(self, name, megabytes):
        """A file system of its own below the test's folder; skips where this user may not make one."""
        path = self.dir / name
        path.mkdir()
        result = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)],
                                capture_output=True, text=True, check=False)
        if result.returncode != 0:
            self.skipTest(f"a small disk cannot be mounted here: {result.stderr.strip()}")
        self.disks.append(path)
        return path

    def fill(self, disk, leave=0):
        """Fills a small disk but for `leave` bytes; to be emptied by unlink() of what it returns."""
        ballast = disk / "ballast"
        with open(ballast, "wb", buffering=0) as out:
            for chunk in (1 << 20, 1 << 12, 1):
                try:
                    while out.write(b"x" * chunk) == chunk:
                        pass
                except OSError as error:
                    self.assertEqual(error.errno, errno.ENOSPC)
            out.truncate(max(0, out.tell() - leave))
        return ballast

    def disk_marks(self, *paths):
        """Options with which a server or a worker does not mind how full this machine's disk is; none where a path
        lies on a disk of the test's own (small_disk)."""
        own = tuple(map(str, self.disks))
        return [] if any(path.startswith(own) for path in paths) else ["--disk-full", "off"]

    def start(self, name, *command):
        """Starts a program; its output goes to NAME.log, appended over restarts. Servers and workers have disk_marks."""
        words = [str(part) for part in command]
        programs = {str(BUILD / "bin/sft-server"), str(BUILD / "bin/sft-worker")}
        if programs & set(words) and "--disk-full" not in words:
            command = (*command, *self.disk_marks(*words))
        with open(self.dir / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(part) for part in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        return self.processes[name]

    def kill(self, name):
        """As a power switch would."""
        self.processes[name].kill()
        self.processes[name].wait()

    def start_server(self, *options, data_dir=None, http="off"):
        self.start("server", BUILD / "bin/sft-server", "--listen", f"127.0.0.1:{self.port}", "--http", http,
                   "--data-dir", data_dir or self.dir / "server", *(options or ["--restart-delay", "0s"]))
        wait_until("the server to answer", lambda: self.sftctl("nodes", "--json").returncode == 0)

    def start_worker(self, node="node-a", gpus="H100:8", models=None, engine=False, options=(), prefix=(), grace=1):
        """With `engine` its ranks really train; else they are the stand-in of fake_rank.cc."""
        rank = [] if engine else ["--rank-binary", BUILD / "tests/sft-fake-rank"]
        self.start(node, *prefix, BUILD / "bin/sft-worker", "--dev", "--server", f"127.0.0.1:{self.port}",
                   "--data-dir", self.dir / node, "--node", node,
                   "--models", models or self.dir / "models",
                   "--simulate-gpus", gpus, "--cpu-slots", 0, "--grace", grace, *rank, *options)
        wait_until(f"{node} to register", lambda: f'"{node}"' in self.sftctl("nodes", "--json").stdout)

    def sftctl(self, *arguments, timeout=DEADLINE_S):
        return subprocess.run(
            [str(BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}", *map(str, arguments)],
            capture_output=True, text=True, timeout=timeout, check=False)

    def write_job(self, mode="ok", ranks=4, per_node=None, name="job", rows=1, compute="", tables=""):
        """The file of a job whose ranks do what `mode` says (fake_rank.cc), with its data; `compute`
        and `tables` are more lines of it."""
        per_node = per_node or ranks
        job = self.dir / f"{name}.toml"
        data = self.dir / f"{name}.jsonl"
        data.write_text((json.dumps({"text": f"fake:{mode}"}) + "\n") * rows)
        job.write_text(f"""
[job]
model = "tiny"
data = "{data.name}"
[compute]
gpu_type = "H100"
gpu_count = {ranks}
variant = "H100-{per_node}x"
nodes = {ranks // per_node}
gpus_per_node = {per_node}
{compute}
[training]
mode = "lora"
[hyperparameters]
per_device_batch = 1
gradient_accumulation_steps = 1
sequence_length = 64
{tables}
""")
        return job

    def submit(self, *arguments, **options):
        """Submits the job that write_job makes; its id."""
        result = self.sftctl("submit", self.write_job(*arguments, **options), "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["job"]

    def submit_serving(self, *arguments, compute="", generate=""):
        """Submits a job that serves the model "small" with the adapter in models/mine; its id."""
        path = self.dir / "serve.toml"
        path.write_text(f"""
[job]
kind = "serve"
model = "small"
adapter = "{self.dir}/models/mine"
[compute]
gpu_type = "H100"
{compute}
[scheduling]
time_limit = "1h"
[generate]
max_new_tokens = 12
batch = 4
{generate}
""")
        result = self.sftctl("submit", path, "--json", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["job"]

    def status(self, job):
        result = self.sftctl("status", job, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def wait_for_state(self, job, state, deadline_s=DEADLINE_S):
        return wait_until(f"{job} to be {state}, it is {self.status(job)}",
                          lambda: self.status(job)["state"] == state, deadline_s)

    def wait_for_step(self, job, step=1, deadline_s=DEADLINE_S):
        wait_until(f"step {step} of {job}",
                   lambda: (self.status(job).get("progress") or {}).get("step", 0) >= step, deadline_s)

    def assert_ends(self, job, exit_code, deadline_s=DEADLINE_S):
        result = self.sftctl("wait", job, "--timeout", f"{int(deadline_s)}s", timeout=deadline_s + 30)
        self.assertEqual(result.returncode, exit_code, f"{result.stdout}{result.stderr}{self.status(job)}")

    def follow(self, job, *arguments):
        """`sftctl logs --follow` in the background; its output is in follow.out and follow.err."""
        with open(self.dir / "follow.out", "wb") as out, open(self.dir / "follow.err", "wb") as err:
            self.processes["follow"] = subprocess.Popen(
                [str(BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}", "logs", job, "--follow",
                 *arguments], stdout=out, stderr=err, stdin=subprocess.DEVNULL)
        return self.processes["follow"]

    def followed(self):
        return (self.dir / "follow.out").read_bytes()

    def assert_followed_whole(self, job, lines):
        """The follower has ended with all that a rank of "lines" wrote, and what the server has."""
        self.assertEqual(self.processes["follow"].wait(timeout=DEADLINE_S), 0, (self.dir / "follow.err").read_text())
        log = self.followed()
        expected = b"".join(b"line %08d of rank 0\n" % number for number in range(1, lines + 1))
        self.assertEqual(log[log.index(b"line 00000001"):log.index(b"rank 0 done")], expected)
        self.assertEqual(log, self.sftctl("logs", job).stdout.encode())

    def shims(self):
        return processes_with("sft-shim --launch " + str(self.dir))

    def wait_for_ranks(self, count):
        """Rank 0 may be at its first step before the last rank was started."""
        wait_until(f"{count} rank processes", lambda: len(self.ranks()) == count)
        return self.ranks()

    def ranks(self):
        return processes_with("sft-fake-rank train --launch " + str(self.dir))
