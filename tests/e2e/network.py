"""A network between a server and one worker that can be cut: a namespace of the kernel's with one
link, and a forwarder at each end, so that both programs see the loopback address."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import harness

FORWARDER = textwrap.dedent("""
    import asyncio, sys
    listen, to = (value.rsplit(":", 1) for value in sys.argv[1:3])
    async def copy(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
    async def serve(reader, writer):
        try:
            far = await asyncio.open_connection(*to)
        except OSError:
            return writer.close()
        await asyncio.gather(copy(reader, far[1]), copy(far[0], writer))
    async def main():
        server = await asyncio.start_server(serve, *listen)
        print("ready", flush=True)
        await server.serve_forever()
    asyncio.run(main())
""")


def run_tests():
    """As harness.run_tests, in a network of their own: what these tests make and take away would be a change of the
    machine's networks, at which a browser of another test gives up what it loads."""
    inside = "SFT_OWN_NETWORK"
    apart = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if inside not in os.environ and subprocess.run([*apart, "true"], capture_output=True, check=False).returncode == 0:
        os.execvpe(apart[0], [*apart, sys.executable, *sys.argv], os.environ | {inside: "1"})
    harness.run_tests()


class Namespace:
    """A network of its own with one link to this machine: what runs inside reaches it at `outside`, and
    it sees what is inside as `inside`."""

    def __init__(self, name, link, outside, inside):
        self.name, self.link, self.outside, self.inside = name, link, outside, inside

    def open(self):
        for command in (
                ["netns", "add", self.name],
                ["link", "add", self.link, "type", "veth", "peer", "name", "uplink", "netns", self.name],
                ["addr", "add", f"{self.outside}/30", "dev", self.link],
                ["link", "set", self.link, "up"],
                ["-n", self.name, "addr", "add", f"{self.inside}/30", "dev", "uplink"],
                ["-n", self.name, "link", "set", "uplink", "up"],
                ["-n", self.name, "link", "set", "lo", "up"]):
            subprocess.run(["ip", *command], check=True)

    def prefix(self):
        """What to put before a command that shall run inside."""
        return ["ip", "netns", "exec", self.name]

    def close(self):
        subprocess.run(["ip", "netns", "del", self.name], check=False)


class CutNetwork(Namespace):
    """`port` of the loopback inside the namespace reaches the server's port outside."""

    def __init__(self, server_port, relay_port):
        number = os.getpid() % 250 + 1
        name = f"sft{os.getpid()}"
        super().__init__(name, name + "v", f"10.213.{number}.1", f"10.213.{number}.2")
        self.port = server_port
        self.relay = relay_port
        self.processes = []

    @staticmethod
    def missing():
        """Why this machine cannot do it; empty: it can."""
        if os.geteuid() != 0:
            return "network namespaces need root"
        probe = subprocess.run(["ip", "netns", "add", f"sftprobe{os.getpid()}"], capture_output=True, text=True)
        if probe.returncode != 0:
            return f"network namespaces cannot be made here: {probe.stderr.strip()}"
        subprocess.run(["ip", "netns", "del", f"sftprobe{os.getpid()}"], check=True)
        return ""

    def open(self):
        super().open()
        self._forward([], f"{self.outside}:{self.relay}", f"127.0.0.1:{self.port}")
        self._forward(self.prefix(), f"127.0.0.1:{self.port}", f"{self.outside}:{self.relay}")

    def _forward(self, prefix, listen, to):
        process = subprocess.Popen([*prefix, sys.executable, "-c", FORWARDER, listen, to],
                                   stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        assert process.stdout.readline() == "ready\n"

    def cut(self):
        subprocess.run(["ip", "link", "set", self.link, "down"], check=True)

    def mend(self):
        subprocess.run(["ip", "link", "set", self.link, "up"], check=True)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()
        super().close()


class Site(Namespace):
    """A place from which several programs reach the server."""

    def __init__(self, number):
        link = f"sft{os.getpid() % 100000}v{number}"
        super().__init__(f"sft{os.getpid()}s{number}", link, f"10.214.{number}.1", f"10.214.{number}.2")


class Machine(Namespace):
    """One of a Switch's: it has an address at which the others reach it, and the server's machine too."""

    def __init__(self, switch, number):
        super().__init__(f"{switch.name}m{number}", f"{switch.name}m{number}", switch.address, switch.prefix + str(number))
        self.switch = switch

    def open(self):
        for command in (
                ["netns", "add", self.name],
                ["link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.name],
                ["link", "set", self.link, "master", self.switch.name, "up"],
                ["-n", self.name, "addr", "add", f"{self.inside}/24", "dev", "eth0"],
                ["-n", self.name, "link", "set", "eth0", "up"],
                ["-n", self.name, "link", "set", "lo", "up"]):
            subprocess.run(["ip", *command], check=True)

    def prefix(self):
        # ip netns exec would mount /sys anew, and with it the control groups.
        return ["nsenter", f"--net=/run/netns/{self.name}"]

    def cut(self):
        """As if the cable were pulled: nobody is told."""
        subprocess.run(["ip", "link", "set", self.link, "down"], check=True)

    def mend(self):
        subprocess.run(["ip", "link", "set", self.link, "up"], check=True)

    def slow(self, rate):
        """Lets no more out than so much ("8mbit")."""
        subprocess.run(["tc", "-n", self.name, "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate,
                        "burst", "64kb", "latency", "200ms"], check=True)

    def lose(self, other):
        """What this machine sends to the other is lost without a word, as behind a firewall that drops it."""
        subprocess.run(["ip", "-n", self.name, "neigh", "replace", other.inside, "lladdr", "02:00:00:00:00:99",
                        "dev", "eth0", "nud", "permanent"], check=True)

    def kill(self):
        """Ends all that runs inside at once, as a power failure would."""
        pids = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=True)
        for pid in pids.stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass


class Switch:
    """Machines on one network, with this one at `address`."""

    def __init__(self, machines):
        self.name = f"sw{os.getpid() % 1000000}"
        self.prefix = f"10.{216 + os.getpid() % 32}.{os.getpid() // 32 % 250}."
        self.address = self.prefix + "254"
        self.machines = [Machine(self, 1 + number) for number in range(machines)]

    def open(self):
        for command in (["link", "add", self.name, "type", "bridge"],
                        ["addr", "add", f"{self.address}/24", "dev", self.name],
                        ["link", "set", self.name, "up"]):
            subprocess.run(["ip", *command], check=True)
        for machine in self.machines:
            machine.open()

    def close(self):
        for machine in self.machines:
            machine.close()
        subprocess.run(["ip", "link", "del", self.name], check=False)
