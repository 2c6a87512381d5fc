"""A server with TLS and tokens, as it serves other machines."""

import json
import os
import re
import subprocess

from harness import BUILD, DEADLINE_S, ServiceCase, wait_until


class RemoteCase(ServiceCase):
    """Its server listens on all addresses; a worker joins with join.token, the admin is let in."""

    def init(self, *names):
        """sft-server init; its words by what they are called."""
        result = subprocess.run([str(BUILD / "bin/sft-server"), "init", "--data-dir", str(self.dir / "server"),
                                 *[part for name in names for part in ("--name", name)]],
                                capture_output=True, text=True, check=True)
        found = {key: re.search(rf"^{key} +(\S+)", result.stdout, re.M).group(1)
                 for key in ("fingerprint", "admin token", "join token")}
        for name in ("admin token", "join token"):
            self.secret(name.split()[0], found[name])
        return found

    def secret(self, name, text):
        path = self.dir / f"{name}.token"
        path.write_text(text.strip() + "\n")
        path.chmod(0o600)
        return path

    def serve(self, *names):
        """Starts a server whose certificate is for these addresses, and lets the admin in."""
        self.fingerprint = self.init(*names)["fingerprint"]
        self.start_server()
        wait_until("the admin to be let in",
                   lambda: self.login(None, "admin", "admin").returncode == 0)

    def start_server(self):
        self.start("server", BUILD / "bin/sft-server", "--listen", f"0.0.0.0:{self.port}", "--http", "off",
                   "--data-dir", self.dir / "server", "--restart-delay", "0s")

    def at(self, site, who, *arguments, **environment):
        """sftctl of somebody at a site; None: on the server's machine."""
        prefix = site.prefix() if site else []
        server = f"{site.outside if site else '127.0.0.1'}:{self.port}"
        return subprocess.run([*prefix, str(BUILD / "bin/sftctl"), "--server", server, *map(str, arguments)],
                              capture_output=True, text=True, timeout=DEADLINE_S, check=False,
                              env={**os.environ, "XDG_CONFIG_HOME": str(self.dir / f"home-{who}"), **environment})

    def login(self, site, who, token):
        return self.at(site, who, "login", "--fingerprint", self.fingerprint,
                       "--token-file", self.dir / f"{token}.token")

    def node(self, name):
        nodes = json.loads(self.at(None, "admin", "nodes", "--json").stdout or "[]")
        return next((node for node in nodes if node["node"] == name), {})
