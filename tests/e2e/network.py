"""A network between a server and one worker that can be cut: a namespace of the kernel's with one
link, and a forwarder at each end, so that both programs see the loopback address."""

import os
import pathlib
import subprocess
import sys
import textwrap
import time

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


class CutNetwork:
    """`port` of the loopback inside the namespace reaches the server's port outside."""

    def __init__(self, server_port, relay_port):
        number = os.getpid() % 250 + 1
        self.name = f"sft{os.getpid()}"
        self.outside, self.inside = f"10.213.{number}.1", f"10.213.{number}.2"
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
        veth = self.name + "v"
        for command in (
                ["netns", "add", self.name],
                ["link", "add", veth, "type", "veth", "peer", "name", "uplink", "netns", self.name],
                ["addr", "add", f"{self.outside}/30", "dev", veth],
                ["link", "set", veth, "up"],
                ["-n", self.name, "addr", "add", f"{self.inside}/30", "dev", "uplink"],
                ["-n", self.name, "link", "set", "uplink", "up"],
                ["-n", self.name, "link", "set", "lo", "up"]):
            subprocess.run(["ip", *command], check=True)
        self._forward([], f"{self.outside}:{self.relay}", f"127.0.0.1:{self.port}")
        self._forward(self.prefix(), f"127.0.0.1:{self.port}", f"{self.outside}:{self.relay}")

    def _forward(self, prefix, listen, to):
        process = subprocess.Popen([*prefix, sys.executable, "-c", FORWARDER, listen, to],
                                   stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        assert process.stdout.readline() == "ready\n"

    def prefix(self):
        """What to put before a command that shall run inside."""
        return ["ip", "netns", "exec", self.name]

    def cut(self):
        subprocess.run(["ip", "link", "set", self.name + "v", "down"], check=True)

    def mend(self):
        subprocess.run(["ip", "link", "set", self.name + "v", "up"], check=True)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()
        subprocess.run(["ip", "netns", "del", self.name], check=False)
