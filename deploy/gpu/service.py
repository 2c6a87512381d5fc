"""A dev server with its worker on this machine, from a bundle, for the scripts beside: jobs, their steps, ranks."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ADDRESS = "127.0.0.1:7172"
LIMIT_S = 280.0

JOB = """
[job]
model = "{model}"
data = "{rows}"
[compute]
gpu_type = "{type}"
gpu_count = {gpus}
[training]
mode = "{mode}"
[data]
loss_on = "all"
[hyperparameters]
sequence_length = {tokens}
per_device_batch = 1
gradient_accumulation_steps = {accumulation}
max_steps = {steps}
n_epochs = 10
learning_rate = 1e-5
[hyperparameters.parallelism]
activation_checkpointing = true
{sharding}
[checkpoint]
save_strategy = "steps"
save_steps = {save}
"""


class Failure(Exception):
    pass


def gpu_memory_mb(cpu):
    """Used memory of each GPU."""
    if cpu:
        return []
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                         check=True, capture_output=True, text=True).stdout
    return [int(line) for line in out.split()]


def rank_pids():
    """Training ranks of this machine, in rank order."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if words[0].endswith(b"sft-rank") and b"train" in words and b"--rank" in words and state != "Z":
            found.append((int(words[words.index(b"--rank") + 1]), int(entry.name)))
    return [pid for _, pid in sorted(found)]


def kill_last_rank(gpus):
    """The ranks that ran, the killed one last."""
    pids = rank_pids()
    if len(pids) != gpus:
        raise Failure(f"{len(pids)} ranks run, not {gpus}")
    os.kill(pids[-1], signal.SIGKILL)
    return pids


class Service:
    """A dev server with its worker, and sftctl against it."""

    def __init__(self, args, work, logs):
        self.args, self.work, self.logs = args, work, logs
        self.bin = args.bundle.resolve() / "bin"
        (work / "shared").mkdir()
        # NVLink multicast stays off unless the caller asks for it: on shared hosts it can leave GPUs unusable.
        environment = {**os.environ, "NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0")}
        self.log = open(logs / "server.log", "wb")
        self.process = subprocess.Popen(
            [self.bin / "sft-server", "--dev", "--listen", ADDRESS, "--data-dir", work / "data", "--models",
             work / "models", "--shared", work / "shared", "--disk-full", "off"], stdout=self.log, stderr=self.log, env=environment)

    def ctl(self, *words, check=True):
        done = subprocess.run([self.bin / "sftctl", "--server", ADDRESS, *map(str, words)],
                              capture_output=True, text=True, timeout=60)
        if check and done.returncode:
            raise Failure(f"sftctl {words[0]}: exit {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def gpu_type(self):
        """What the worker registered."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            nodes = self.ctl("nodes", "--json", check=False)
            types = {slot["gpu_type"] for node in json.loads(nodes or "[]") for slot in node["slots"]}
            wanted = types & {"CPU"} if self.args.cpu else types - {"CPU"}
            if wanted:
                return wanted.pop()
            time.sleep(0.5)
        raise Failure(f"no GPU was registered: {self.logs / 'server.log'}")

    def submit(self, name, *words, **values):
        path = self.logs / f"{name}.toml"
        path.write_text(JOB.format(**values))
        return json.loads(self.ctl("submit", path, *words, "--json"))["job"]

    def status(self, job):
        return json.loads(self.ctl("status", job, "--json"))

    def steps(self, job):
        """Training steps of all attempts, in the order they were run."""
        lines = self.ctl("metrics", job, "--all-attempts", "--json", check=False).splitlines()
        return [metric for metric in map(json.loads, lines) if metric.get("loss") is not None]

    def wait(self, job):
        """Its state at the end."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            state = self.status(job)["state"]
            if state in ("SUCCEEDED", "FAILED", "CANCELLED"):
                return state
            time.sleep(0.5)
        raise Failure(f"{job} did not end in {LIMIT_S:.0f} s")

    def keep_logs(self, name, job):
        (self.logs / f"{name}.events.txt").write_text(self.ctl("events", job))
        (self.logs / f"{name}.metrics.jsonl").write_text(self.ctl("metrics", job, "--all-attempts", "--json"))
        (self.logs / f"{name}.rank0.log").write_text(self.ctl("logs", job, "--rank", 0))

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()


def make_model(args, work, size, tokens):
    command = [sys.executable, HERE / "make_random_model.py", size, work / "models" / size, "--rows",
               work / f"{size}.jsonl", "--count", "64", "--tokens", str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"no model: {done.stderr[-500:]}")
    print("  " + done.stdout.strip().splitlines()[-1], flush=True)


def wait_for(what, condition):
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    raise Failure(f"{what}: not within {LIMIT_S:.0f} s")


def wait_for_step(service, job, step):
    def made():
        status = service.status(job)
        if status["state"] == "FAILED":
            raise Failure(f"{job}: {status['reason']}")
        return any(metric["step"] >= step for metric in service.steps(job))
    wait_for(f"step {step} of {job}", made)


def has_checkpoint(service, job, step=None):
    """True when the server has one: of that step, or any."""
    lines = map(json.loads, service.ctl("events", job, "--json").splitlines())
    return any(event["type"] == "checkpoint" and "committed" in event["message"]
               and (step is None or re.search(rf"\bstep {step}\b", event["message"])) for event in lines)


def wait_for_checkpoint(service, job, step=None):
    """Small steps are faster than a checkpoint is written."""
    wait_for(f"a checkpoint of {job}", lambda: has_checkpoint(service, job, step))


def split_attempts(steps):
    """Losses by step of the first attempt and of the second, from (step, loss) in the order they were run."""
    turn = next((i for i in range(1, len(steps)) if steps[i][0] <= steps[i - 1][0]), len(steps))
    return dict(steps[:turn]), dict(steps[turn:])


def add_arguments(parser):
    """Those that every script has."""
    parser.add_argument("bundle", type=pathlib.Path, help="an unpacked bundle")
    parser.add_argument("logs", type=pathlib.Path)
    parser.add_argument("--work", type=pathlib.Path, help="room for models and checkpoints (default: a new folder)")
    parser.add_argument("--cpu", action="store_true", help="CPU slots and a tiny model")


def run(name, args, models, tokens, check):
    """Makes the models, with rows of so many tokens, starts a service and calls check(service), which says whether all of
    it holds. The script's exit status."""
    args.logs.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(dir=args.work))
    service = None
    try:
        for size in models:
            make_model(args, work, size, tokens)
        service = Service(args, work, args.logs)
        held = check(service)
        print("all of it holds" if held else "NOT all of it holds", flush=True)
        return 0 if held else 1
    except Failure as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        return 1
    finally:
        if service:
            service.stop()
        shutil.rmtree(work, ignore_errors=True)
