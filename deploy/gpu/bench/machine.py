"""The machine of a run: GPUs, versions, folders, environments of the processes, models on disk."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PACKAGES = ("torch", "transformers", "triton", "peft", "unsloth", "bitsandbytes")
LOG_BYTES = 200_000  # kept of each process


def output_of(*command, **options):
    """Standard output of a command; "" when it fails or does not exist."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def unpack(source, folder):
    """A folder is used as it is, a tarball is unpacked below `folder`."""
    source = pathlib.Path(source).resolve()
    if source.is_dir():
        return source
    if not source.exists():
        raise SystemExit(f"bench: {source} does not exist")
    folder.mkdir(parents=True, exist_ok=True)
    # tar knows gz and, where xz-utils are installed, the xz of a bundle.
    if subprocess.run(["tar", "-C", folder, "-xf", source], check=False).returncode:
        raise SystemExit(f"bench: {source} could not be unpacked")
    return folder


class Context:
    """Everything that the runs of one invocation share."""

    def __init__(self, options, wanted_cuda):
        self.begin = time.monotonic()
        self.options = options
        self.out = pathlib.Path(options.out).resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self.own_work = options.work is None
        self.work = pathlib.Path(options.work or tempfile.mkdtemp(prefix="sft-bench-")).resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.cores = os.cpu_count() or 1
        self.runs = 0
        self.peer_records = {}  # of this invocation
        self.bin = self._find_programs(options.bin)
        self.environment = self._torch_environment(wanted_cuda)
        self.peer_environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1",
                                 "NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0")}
        if options.peer_packages:
            site = unpack(options.peer_packages, self.work / "peer_packages")
            paths = [str(site), os.environ.get("PYTHONPATH", "")]
            self.peer_environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        self.machine = self._describe()

    def _find_programs(self, path):
        folder = unpack(path, self.work / "bundle")
        found = [folder, folder / "bin", *folder.glob("sft-*/bin")]
        programs = next((entry for entry in found if (entry / "sft-rank").is_file()), None)
        if programs is None:
            raise SystemExit(f"bench: no sft-rank in {path}: give the bin folder of a build or bundle, or a bundle")
        return programs

    def _torch_environment(self, wanted_cuda):
        if not wanted_cuda:
            return dict(os.environ)
        script = f'. "{HERE.parent}/torch_env.sh" && python3 -c "import json, os; print(json.dumps(dict(os.environ)))"'
        env = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        found = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=False)
        if found.returncode:
            raise SystemExit(f"bench: {found.stderr.strip() or 'torch_env.sh failed'}")
        return json.loads(found.stdout.strip().split("\n")[-1])

    def _describe(self):
        script = ("import importlib.metadata as m, json\n"
                  "found = {}\n"
                  f"for name in {PACKAGES!r}:\n"
                  "    try: found[name] = m.version(name)\n"
                  "    except m.PackageNotFoundError: pass\n"
                  "print(json.dumps(found))\n")
        gpus = output_of("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
        return {
            "gpus": gpus.split("\n") if gpus else [], "cores": self.cores, "python": sys.version.split()[0],
            "kernel": os.uname().release,
            "versions": json.loads(output_of(sys.executable, "-c", script, env=self.peer_environment) or "{}"),
            "sft_rank": output_of(self.bin / "sft-rank", "--version", env=self.environment),
            "revision": output_of("git", "-C", ROOT, "rev-parse", "HEAD") or "not known",
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        }

    def say(self, text):
        print(f"[{time.monotonic() - self.begin:6.1f} s] {text}", flush=True)

    def left(self):
        return self.options.stop_after - (time.monotonic() - self.begin)

    def limit(self):
        """Seconds that the next process may take."""
        return max(1.0, min(self.options.limit, self.left()))

    def gpu_type(self, device):
        if device == "cpu" or not self.machine["gpus"]:
            return "CPU"
        name = self.machine["gpus"][0].split(",")[0]
        return next((kind for kind in ("H100", "H200", "A100", "L40S") if kind in name), name)

    def rank_prefix(self, rank):
        """Words before a rank's command. With share_gpus ranks may be more than the GPUs: NCCL refuses two of one
        host on one GPU, so those that share it say that they are of different hosts, and meet on the loopback."""
        gpus = len(self.machine["gpus"])
        if not gpus or not getattr(self.options, "share_gpus", False):
            return []
        return ["env", f"LOCAL_RANK={rank % gpus}", f"NCCL_HOSTID=host-{rank // gpus}", "NCCL_SOCKET_IFNAME=lo",
                "NCCL_IB_DISABLE=1"]

    def new_folder(self):
        self.runs += 1
        folder = self.work / f"run-{os.getpid()}-{self.runs}"
        folder.mkdir()
        return folder

    def keep_logs(self, title, paths):
        with open(self.out / "log.txt", "ab") as log:
            for path in paths:
                if path.exists():
                    log.write(f"==== {title} / {path.name}\n".encode() + path.read_bytes()[-LOG_BYTES:] + b"\n")

    def model_dir(self, name):
        if name == "demo":
            return pathlib.Path(self.options.demo_model).resolve()
        return self.work / "models" / name

    def make_model(self, name):
        folder = self.model_dir(name)
        if name == "demo":
            if not (folder / "config.json").exists():
                raise SystemExit(f"bench: no demo model in {folder}: run deploy/demo/make_model.sh, or give --demo-model")
            return
        if (folder / "complete").exists():
            return
        result = subprocess.run([sys.executable, HERE.parent / "make_random_model.py", name, folder, "--threads",
                                 str(min(16, self.cores))], capture_output=True, text=True, check=False)
        if result.returncode:
            raise SystemExit(f"bench: the model {name} could not be written to {folder} "
                             f"(free: {shutil.disk_usage(self.work).free / 1e9:.0f} GB):\n{result.stderr[-1500:]}")
        (folder / "complete").touch()
        self.say(result.stdout.strip().split("\n")[-1])

    def drop_models(self, keep):
        """Removes written models that no later row needs: a 32B model takes 65 GB."""
        if self.options.keep:
            return
        for folder in (self.work / "models").glob("*"):
            if folder.name not in keep and (folder / "complete").exists():
                shutil.rmtree(folder)

    def close(self):
        if self.own_work and not self.options.keep:
            shutil.rmtree(self.work, ignore_errors=True)
