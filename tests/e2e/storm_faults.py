"""Two faults of the kill storm: processes that die young, and files that are damaged."""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import threading
import time

import harness

KINDS = {"sft-server ": "server", "sft-worker ": "worker", "sft-shim ": "shim", "rank prepare ": "prepare",
         "rank train ": "rank"}


def kind_of(command):
    """What a process of the service is, by its command line; empty for others."""
    return next((kind for part, kind in KINDS.items() if part in command), "")


class YoungKiller(threading.Thread):
    """Kills processes of a folder within their first `age` seconds, a part of them, each at a moment of its own."""

    def __init__(self, folder, seed, counts, part=0.4, age=3.0):
        super().__init__(daemon=True)
        self.folder, self.random, self.counts, self.part, self.age = str(folder), random.Random(seed), counts, part, age
        self.done = threading.Event()
        # Those that are there are old.
        self.known = set(harness.processes_with(self.folder))
        self.armed = {}

    def run(self):
        while not self.done.wait(0.02):
            for pid in harness.processes_with(self.folder):
                if pid not in self.known:
                    self.known.add(pid)
                    if kind_of(harness.command_of(pid)) and self.random.random() < self.part:
                        self.armed[pid] = time.monotonic() + self.random.uniform(0, self.age)
            for pid in [pid for pid, when in self.armed.items() if time.monotonic() >= when]:
                del self.armed[pid]
                self.kill(pid)

    def kill(self, pid):
        kind = kind_of(harness.command_of(pid))
        if not kind or self.folder not in harness.command_of(pid):
            return  # it has ended
        try:
            os.kill(pid, signal.SIGKILL)
            self.counts["young_kills"] += 1
            self.counts["young_" + kind] += 1
        except ProcessLookupError:
            pass

    def disarm(self):
        self.done.set()
        self.join()


class Damage:
    """Damages random files of data folders, and knows which."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.done = []  # (seconds since the epoch, what, path)

    @staticmethod
    def files(folder):
        """But for locks, sockets, and the database while a server uses it."""
        return sorted(path for path in pathlib.Path(folder).rglob("*")
                      if path.is_file() and not path.is_symlink() and path.suffix not in (".lock", ".sock")
                      and not path.name.startswith("server.db"))

    def spoil(self, path):
        """Flips a byte of it, cuts it, or removes it; what was done."""
        what = self.random.choice(("flip", "cut", "remove"))
        size = path.stat().st_size
        if what == "flip" and size:
            with open(path, "r+b") as file:
                file.seek(self.random.randrange(size))
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ (1 << self.random.randrange(8))]))
        elif what == "cut" and size:
            os.truncate(path, self.random.randrange(size))
        else:
            what = "remove"
            path.unlink()
        return what

    def one(self, folders):
        """Of a random folder; nothing where it has no file."""
        for _ in range(20):
            files = self.files(self.random.choice(folders))
            if not files:
                continue
            # Each folder of files alike is as likely as the one with the most files.
            folder = self.random.choice(sorted({path.parent for path in files}))
            path = self.random.choice([path for path in files if path.parent == folder])
            try:
                self.done.append((round(time.time(), 3), self.spoil(path), str(path)))
                return True
            except OSError:
                continue  # it went meanwhile
        return False

    def database(self, data_dir):
        """What `sft-server check` and a start say of a damaged copy of a stopped server's database: problems."""
        copy = pathlib.Path(str(data_dir) + "-damaged")
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for path in pathlib.Path(data_dir).glob("server.db*"):
            shutil.copy2(path, copy / path.name)
        path = copy / "server.db"
        size = path.stat().st_size
        with open(path, "r+b") as file:  # a page and its neighbours: one bit may lie where nothing is kept
            file.seek(self.random.randrange(4096, max(8192, size - 8192)) // 4096 * 4096)
            file.write(bytes(self.random.randrange(256) for _ in range(8192)))
        check = subprocess.run([harness.BUILD / "bin/sft-server", "check", "--data-dir", copy, "--http", "off",
                                "--listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=harness.DEADLINE_S,
                               check=False)
        start = subprocess.Popen([harness.BUILD / "bin/sft-server", "--data-dir", copy, "--http", "off", "--listen",
                                  "127.0.0.1:0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _, err = start.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            start.kill()
            _, err = start.communicate()
            err = "it started: " + err
        shutil.rmtree(copy)
        problems = []
        if check.returncode != 1 or "damaged" not in check.stdout:
            problems.append(f"check of a damaged database ended with {check.returncode}: {check.stdout}")
        if start.returncode == 0 or "server.db" not in err:
            problems.append(f"a start on a damaged database: {start.returncode} {err}")
        return problems
