"""A Slurm of this machine's own: slurmctld and four nodes, each a slurmd in a network namespace."""

import os
import pathlib
import shutil
import socket
import subprocess
import time

NODES = ("n1", "n2", "n3", "n4")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "srun", "nsenter")

CONFIG = """
ClusterName=sfttest
SlurmctldHost={host}({server})
SlurmctldPort={port}
SlurmdPort={slurmd_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge/socket
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool/%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=10
SchedulerParameters=sched_interval=2,bf_interval=2,requeue_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=gpu Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=15
PartitionName=urgent Nodes=n[1-4] MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing():
    """Why this machine cannot have one; empty: it can."""
    if os.geteuid() != 0:
        return "a Slurm of its own needs root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)}: deploy/bootstrap --slurm installs Slurm"
    probe = subprocess.run(["ip", "netns", "add", f"sftprobe{os.getpid()}"], capture_output=True, text=True)
    if probe.returncode != 0:
        return f"network namespaces cannot be made here: {probe.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", f"sftprobe{os.getpid()}"], check=True)
    return ""


class Cluster:
    """`server` is the address at which nodes reach this machine."""

    def __init__(self, folder):
        self.dir = pathlib.Path(folder)
        number = os.getpid() % 250 + 1
        self.server = f"10.215.{number}.254"
        self.address = {node: f"10.215.{number}.{i + 1}" for i, node in enumerate(NODES)}
        self.bridge = f"sftbr{os.getpid() % 1000000}"
        self.namespace = {node: f"sft{os.getpid()}{node}" for node in NODES}
        self.link = {node: f"s{os.getpid() % 1000000}{node}" for node in NODES}
        self.environment = {**os.environ, "SLURM_CONF": str(self.dir / "slurm.conf")}
        self.processes = {}

    def open(self):
        for name in ("munge", "state", "spool"):
            (self.dir / name).mkdir(parents=True)
        self._make_network()
        self._write_config()
        self._start_munge()
        self._start("slurmctld", ["slurmctld", "-D", "-f", self.dir / "slurm.conf"])
        for node in NODES:
            self.start_node(node)
        self._wait("the nodes to be idle", lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() == "4")

    def close(self):
        for process in self.processes.values():
            process.kill()
            process.wait()
        for node in NODES:
            subprocess.run(["ip", "netns", "del", self.namespace[node]], check=False)
        subprocess.run(["ip", "link", "del", self.bridge], check=False)

    def run(self, *command):
        """A command of Slurm's."""
        return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60,
                              env=self.environment, check=False)

    def jobs(self):
        """Slurm's jobs that are not over: id to state."""
        lines = self.run("squeue", "-h", "-o", "%i %T").stdout.splitlines()
        return dict(line.split() for line in lines)

    def cut(self, node):
        subprocess.run(["ip", "link", "set", self.link[node], "down"], check=True)

    def mend(self, node):
        subprocess.run(["ip", "link", "set", self.link[node], "up"], check=True)

    def start_node(self, node):
        (self.dir / "spool" / node).mkdir(exist_ok=True)
        self._start(node, ["nsenter", f"--net=/run/netns/{self.namespace[node]}", "slurmd", "-D", "-N", node,
                           "-f", self.dir / "slurm.conf"])

    def _start(self, name, command):
        with open(self.dir / f"{name}.out", "ab") as log:
            self.processes[name] = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log,
                                                    stdin=subprocess.DEVNULL, env=self.environment)

    def _start_munge(self):
        folder = self.dir / "munge"
        os.chmod(folder, 0o755)
        key = folder / "key"
        key.write_bytes(os.urandom(128))
        os.chmod(key, 0o600)
        self._start("munged", ["munged", "--foreground", "--force", f"--socket={folder}/socket",
                               f"--key-file={key}", f"--pid-file={folder}/pid", f"--seed-file={folder}/seed",
                               f"--log-file={folder}/log"])
        self._wait("munged", lambda: (folder / "socket").exists())

    def _make_network(self):
        def ip(*arguments):
            subprocess.run(["ip", *arguments], check=True)
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.server}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        for node in NODES:
            space = self.namespace[node]
            ip("netns", "add", space)
            ip("link", "add", self.link[node], "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", self.link[node], "master", self.bridge, "up")
            ip("-n", space, "addr", "add", f"{self.address[node]}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")

    def _write_config(self):
        ports = []
        for _ in range(2):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                ports.append(probe.getsockname()[1])
        nodes = "\n".join(f"NodeName={node} NodeAddr={self.address[node]} CPUs=4 RealMemory=1000 State=UNKNOWN"
                          for node in NODES)
        (self.dir / "slurm.conf").write_text(CONFIG.format(
            host=socket.gethostname(), server=self.server, port=ports[0], slurmd_port=ports[1], dir=self.dir,
            nodes=nodes))
        (self.dir / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainCores=no\n"
                                              "ConstrainDevices=no\n")

    def _wait(self, what, condition, deadline_s=120):
        end = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"Slurm: after {deadline_s} s still waiting: {what}\n{self.logs()}")
            time.sleep(0.1)

    def logs(self):
        return "\n".join(f"---- {log.name}\n{log.read_text(errors='replace')[-2000:]}"
                         for log in sorted(self.dir.glob("*.log")) + sorted(self.dir.glob("*.out")))
