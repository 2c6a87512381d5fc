"""docs/operations.md, typed as written: a server and two nodes from the bundle, one of them drained and
upgraded while a job runs on the other, a backup and its restore.

Each machine has mounts, a host name and processes of its own (namespaces); they share the loopback network.
systemd is fake_systemctl.py. What the pages cannot know is named in SUBSTITUTES.

SFT_TEST_TORCH, a folder of Python's torch, makes it train with the bundle's own ranks, on the CPU; without it
a stand-in does that needs no torch.
"""

import os
import pathlib
import re
import shutil
import subprocess
import time

from harness import BUILD, ServiceCase, run_tests, wait_until
from tiny_model import write_tiny_model

SOURCE = pathlib.Path(__file__).parents[2]
# What differs here from the machines of the page: ports that are free, and GPUs that are pretended.
TORCH = os.environ.get("SFT_TEST_TORCH")
SUBSTITUTES = {"--models /srv/models": "--models /srv/models --simulate-gpus H100:1 --grace 1"
               + (f" --torch {TORCH}" if TORCH else "")}


def blocks(page):
    """(machine, step, commands) of each block that names its machine."""
    found = re.findall(r"<!-- on: (\w+)((?:; \w+: \w+)*) -->\n```sh\n(.*?)```", page, re.DOTALL)
    for machine, attributes, text in found:
        keys = dict(re.findall(r"; (\w+): (\w+)", attributes))
        yield machine, keys.get("step", "install"), text


class Machine:
    """A shell that stays open in namespaces of its own; all that it started ends with it."""

    def __init__(self, folder, name, shares=()):
        self.folder = folder
        folder.mkdir(parents=True)
        for part in ("opt", "local", "srv", "run", "etc", "etc-work", "home"):
            (folder / part).mkdir()
        (folder / "local/bin").mkdir()
        shutil.copy(SOURCE / "tests/e2e/fake_systemctl.py", folder / "local/bin/systemctl")
        for path in shares:
            shutil.copytree(path, folder / "srv/models")
        self.shell = subprocess.Popen(
            ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "bash"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"})
        self.run(f"""
            hostname {name}
            mount -t overlay overlay -o lowerdir=/etc,upperdir={folder}/etc,workdir={folder}/etc-work /etc
            mount --bind {folder}/srv /srv
            mount -t tmpfs -o size=64g tmpfs /var/lib  # a disk that is empty, however full this machine's is
            mount --bind {folder}/local /usr/local && mount --bind {folder}/run /run
            mount --bind {folder}/opt /opt
            mkdir -p /etc/systemd/system /etc/sft
            echo "127.0.0.1 localhost {name}" > /etc/hosts""")
        self.shell.stdin.write(f"cd {folder}/home\n")

    def run(self, commands, check=True):
        """Types the commands one after the other; the output. The first that fails ends it."""
        mark = f"--done-{time.monotonic_ns()}--"
        self.shell.stdin.write(f"( set -e\n{commands}\n) </dev/null; echo {mark} $?\n")
        self.shell.stdin.flush()
        output = ""
        while True:
            line = self.shell.stdout.readline()
            if not line:
                raise AssertionError(f"the machine's shell has ended:\n{output}")
            if line.startswith(mark):
                code = int(line.split()[1])
                break
            output += line
        if check and code != 0:
            raise AssertionError(f"exit code {code} of\n{commands}\n{output}\n{self.logs()}")
        return output

    def logs(self):
        return "\n".join(f"---- {log.name}\n{log.read_text(errors='replace')[-3000:]}"
                         for log in sorted((self.folder / "run").rglob("*.log")))

    def end(self):
        self.shell.stdin.close()
        self.shell.stdout.close()
        self.shell.kill()
        self.shell.wait()


class OperationsTest(ServiceCase):

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "--uts", "--pid", "--fork", "true"],
                                               check=False, capture_output=True).returncode != 0:
            self.skipTest("machines of one's own need root and namespaces")
        self.dir.chmod(0o755)
        if TORCH:
            shutil.rmtree(self.dir / "models/tiny")
            write_tiny_model(self.dir / "models/tiny")
        self.machines = {}
        self.addCleanup(lambda: [machine.end() for machine in self.machines.values()])

    def make_bundles(self):
        """The bundle of this build, but for TORCH with ranks that need none and train as a test says, and the
        same as a later version."""
        out = self.dir / "dist"
        rank = {} if TORCH else {"SFT_BUNDLE_RANK": str(BUILD / "tests/sft-fake-rank")}
        made = subprocess.run([SOURCE / "deploy/bundle/make_bundle.sh", BUILD, out], capture_output=True, text=True,
                              env={**os.environ, "SFT_BUNDLE_LEVEL": "0", "SFT_BUNDLE_MAX_MB": "200", **rank},
                              check=False)
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        bundle = next(out.glob("sft-*.tar.xz"))
        work = self.dir / "later"
        work.mkdir()
        subprocess.run(["tar", "-xf", bundle, "-C", work], check=True)
        unpacked = next(work.iterdir())
        later = unpacked.with_name(unpacked.name.replace("-linux", ".1-linux"))
        unpacked.rename(later)
        newer = work / f"{later.name}.tar.xz"
        subprocess.run(["tar", "-C", work, "-I", "xz -0", "-cf", newer, later.name], check=True)
        return bundle, newer

    def machine(self, name):
        if name not in self.machines:
            self.machines[name] = Machine(self.dir / name, name, [self.dir / "models"])
        return self.machines[name]

    def give(self, name, bundle):
        """Beside those that it was given before: nobody removes them."""
        shutil.copy(bundle, self.machine(name).folder / "home")

    def type(self, name, kind, step):
        """What was said."""
        output = ""
        for machine, when, text in self.page:
            if machine != kind or when != step:
                continue
            for old, new in self.substitutes.items():
                text = text.replace(old, new)
            output += self.machine(name).run(text)
            if kind == "server" and step != "tls":  # "when it runs"
                wait_until("the server", lambda: self.sftctl("nodes").returncode == 0)
        return output

    def test_the_page_is_typed_as_written(self):
        self.page = list(blocks((SOURCE / "docs/operations.md").read_text()))
        self.assertEqual({(machine, step) for machine, step, _ in self.page},
                         {("server", "install"), ("node", "install"), ("server", "upgrade"), ("node", "upgrade"),
                          ("server", "backup"), ("server", "restore"), ("server", "tls")})
        self.substitutes = {**SUBSTITUTES, "127.0.0.1:7070": f"127.0.0.1:{self.port}",
                            "0.0.0.0:7070": f"0.0.0.0:{self.port}"}
        first, later = self.make_bundles()
        for name in ("server", "node-a", "node-b"):
            self.give(name, first)
            # A person's own setting, so that commands need no --server.
            self.machine(name).shell.stdin.write(f"export SFT_SERVER=127.0.0.1:{self.port}\n")
        self.type("server", "server", "install")
        for name in ("node-a", "node-b"):
            self.type(name, "node", "install")
        wait_until("both nodes", lambda: self.sftctl("nodes").stdout.count(" UP ") == 2)
        # A job on each node; the one whose node is upgraded moves, the other does not notice.
        jobs = {}
        for number in range(2):
            job = self.submit("train steps=100000 pace=5", ranks=1, name=f"job-{number}",
                              tables="max_steps = 100000" if TORCH else "")
            self.wait_for_step(job, 3)
            jobs[self.status(job)["nodes"][0]] = job
        self.assertEqual(set(jobs), {"node-a", "node-b"})
        self.type("server", "server", "backup")
        self.give("node-a", later)
        self.type("node-a", "node", "upgrade")
        nodes = self.sftctl("nodes").stdout
        self.assertIn("node-a", nodes)
        wait_until("node-a to take jobs", lambda: self.sftctl("nodes").stdout.count(" UP ") == 2)
        link = os.readlink(self.machine("node-a").folder / "opt/sft/current")
        self.assertIn(".1-linux", link)
        moved, kept = self.status(jobs["node-a"]), self.status(jobs["node-b"])
        self.assertEqual(moved["attempts"][0]["verdict"]["code"], "moved")
        self.assertEqual((kept["state"], kept["attempt"]), ("RUNNING", 1))
        wait_until("the moved job to go on", lambda: self.status(jobs["node-a"])["state"] == "RUNNING")
        self.assertGreaterEqual(self.status(jobs["node-a"])["attempts"][1]["first_step"], 3)
        # The server's upgrade, and a worker that is killed, cost the job nothing.
        self.give("server", later)
        self.type("server", "server", "upgrade")
        step = self.status(jobs["node-b"])["progress"]["step"]
        self.machine("node-b").run("kill -9 $(cat /run/sft-systemctl/sft-worker.main)")
        self.wait_for_step(jobs["node-b"], step + 10)
        self.assertEqual(self.status(jobs["node-b"])["attempt"], 1)
        for job in jobs.values():
            self.assertEqual(self.sftctl("cancel", job).returncode, 0)
            self.assert_ends(job, 12)
        self.type("server", "server", "restore")
        wait_until("the restored server", lambda: self.sftctl("list").returncode == 0)
        self.assertIn("job-0", self.sftctl("list").stdout)
        # The same server for others: an admin logs in with what init has said.
        said = self.type("server", "server", "tls")
        self.assertRegex(said, r"ok +security +TLS and tokens")
        fingerprint = re.search(r"fingerprint +(\S+)", said)[1]
        token = self.dir / "server/home/admin.token"
        token.write_text(re.search(r"admin token +(\S+)", said)[1])
        token.chmod(0o600)
        jobs = self.machine("server").run(f"""
            export HOME=$PWD
            sftctl login localhost:{self.port} --fingerprint {fingerprint} --token-file admin.token
            SFT_SERVER=localhost:{self.port} sftctl list""")
        self.assertIn("job-0", jobs)


if __name__ == "__main__":
    run_tests()
