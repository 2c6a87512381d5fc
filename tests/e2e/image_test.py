"""The container image: two builds of it are equal, it has what it needs and no more, and its programs run as the
manifests of deploy/kubernetes say, in containers with those users, rights, folders and arguments."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from control_plane import DEPS, SOURCE
from harness import BUILD, DEADLINE_S, ServiceCase, run_tests, wait_until

IMAGE = SOURCE / "deploy/image/make_image.py"
MANIFESTS = SOURCE / "deploy/kubernetes"
TO_JSON = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"
# Asks what a kubelet's probe asks; its answer's code.
PROBE = """
import http.client, json, ssl, sys
where, path, headers = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
connection = http.client.HTTPSConnection(where, timeout=60, context=ssl._create_unverified_context())
connection.putrequest("GET", path, skip_host="Host" in headers)
for name, value in headers.items():
    connection.putheader(name, value)
connection.endheaders()
print(connection.getresponse().status)
"""


class ImageTest(ServiceCase):

    def setUp(self):
        super().setUp()
        for program, why in (("runc", "--cluster"), ("umoci", "--cluster"), ("skopeo", "--cluster"), ("ip", "")):
            if shutil.which(program) is None:
                self.skipTest(f"there is no {program}: deploy/bootstrap {why} installs it")
        if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "--mount", "true"], check=False).returncode != 0:
            self.skipTest("containers need root and namespaces")

    def make_bundle(self):
        made = subprocess.run([SOURCE / "deploy/bundle/make_bundle.sh", BUILD, self.dir / "dist"], text=True,
                              capture_output=True, check=False,
                              env={**os.environ, "SFT_BUNDLE_LEVEL": "0", "SFT_BUNDLE_MAX_MB": "200",
                                   "SFT_BUNDLE_RANK": str(BUILD / "tests/sft-fake-rank")})
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        debs = self.dir / "debs"
        debs.mkdir()
        names = re.search(r"PACKAGES = \((.*?)\)", IMAGE.read_text(), re.DOTALL).group(1)
        got = subprocess.run(["apt-get", "download", *re.findall(r'"(.*?)"', names)], cwd=debs, capture_output=True,
                             text=True, check=False)
        if got.returncode != 0:
            self.skipTest(f"Debian's packages cannot be fetched: {got.stderr.strip()[-300:]}")
        return next((self.dir / "dist").glob("sft-*.tar.xz"))

    def make_image(self, bundle, name, *options):
        made = subprocess.run([sys.executable, IMAGE, bundle, self.dir / name, "--debs", self.dir / "debs", "--tag", "test",
                               *options], capture_output=True, text=True, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        return re.search(r"sha256:([0-9a-f]{64})$", made.stdout, re.M).group(1)

    def unpack(self, image):
        subprocess.run(["umoci", "unpack", "--image", f"{self.dir / image}:test", self.dir / "unpacked"], check=True,
                       capture_output=True)
        return self.dir / "unpacked/rootfs"

    def test_two_builds_are_equal_and_hold_no_more_than_they_need(self):
        bundle = self.make_bundle()
        first = self.make_image(bundle, "one")
        time.sleep(1.1)  # a time of today in it would differ
        self.assertEqual(self.make_image(bundle, "two"), first)
        subprocess.run(["diff", "-r", self.dir / "one", self.dir / "two"], check=True)
        torch = self.dir / "site-packages/torch/lib"
        torch.mkdir(parents=True)
        (torch / "libtorch.so").write_text("not really")
        (torch / "libtorch_link.so").symlink_to("libtorch.so")
        self.assertNotEqual(self.make_image(bundle, "three", "--torch", self.dir / "site-packages"), first)
        seen = json.loads(subprocess.run(["skopeo", "inspect", f"oci:{self.dir / 'three'}:test"], check=True,
                                         capture_output=True, text=True).stdout)
        self.assertEqual(len(seen["Layers"]), 3)
        self.assertIn("libc6=", seen["Labels"]["org.opencontainers.image.base.packages"])
        root = self.unpack("three")
        self.assertEqual(os.readlink(root / "opt/sft/site-packages/torch/lib/libtorch_link.so"), "libtorch.so")
        for gone in ("bin/sh", "usr/bin/apt-get", "usr/bin/dpkg", "usr/share/doc/libc6"):
            self.assertFalse(os.path.lexists(root / gone), gone)
        special = [path for path in root.rglob("*") if not path.is_symlink() and path.is_file() and path.stat().st_mode & 0o6000]
        self.assertEqual(special, [])
        authorities = (root / "etc/ssl/certs/ca-certificates.crt").read_text()
        self.assertGreater(authorities.count("BEGIN CERTIFICATE"), 100)
        for program in ("sft-server", "sft-worker", "sft-shim", "sftctl", "sft-data", "sft-rank"):
            self.assertTrue(os.access(root / "opt/sft/bin" / program, os.X_OK), program)
        # What is no bundle, and what is there already.
        for arguments, told in (([bundle, self.dir / "one"], "is there already"),
                                ([self.dir / "none", self.dir / "four"], "make bundle"),
                                ([bundle, self.dir / "four", "--torch", self.dir], "has no torch"),
                                ([bundle, self.dir / "four", "--debs", self.dir], "are not in")):
            refused = subprocess.run([sys.executable, IMAGE, *arguments], capture_output=True, text=True, check=False)
            self.assertEqual(refused.returncode, 1)
            self.assertIn(told, refused.stderr)
            self.assertFalse((self.dir / "four").exists())

    def container_of(self, manifest, kind):
        """The one container of an object, with its pod's security context in it."""
        python = DEPS / "cluster/bin/python"
        if not python.exists():
            self.skipTest("what reads the manifests is not there: deploy/bootstrap --cluster installs it")
        objects = json.loads(subprocess.run([python, "-c", TO_JSON], input=(MANIFESTS / manifest).read_text(), text=True,
                                            capture_output=True, check=True).stdout)
        pod = next(each for each in objects if each["kind"] == kind)["spec"]["template"]["spec"]
        container = pod["containers"][0]
        container["securityContext"] = {**pod["securityContext"], **container["securityContext"]}
        return container

    def open_network(self):
        """A network of its own for the containers: their ports are everybody's."""
        self.network = f"sft-{os.getpid()}"
        subprocess.run(["ip", "netns", "add", self.network], check=True)
        self.addCleanup(subprocess.run, ["ip", "netns", "delete", self.network], check=False)
        self.inside("ip", "link", "set", "lo", "up")
        (self.dir / "hosts").write_text("127.0.0.1 localhost sft-server.sft.svc\n")

    def inside(self, *command, check=True, **options):
        return subprocess.run(["ip", "netns", "exec", self.network, *map(str, command)], capture_output=True, text=True,
                              check=check, timeout=DEADLINE_S, **options)

    def run_container(self, name, container, fields, folders, more=()):
        """A container as a kubelet would run it. `folders`: of this machine, by their place; a volume that is not
        among them is empty. Its output is in NAME.log."""
        security = container["securityContext"]
        bundle = self.dir / f"c-{name}"
        bundle.mkdir()
        (bundle / "rootfs").symlink_to(self.dir / "unpacked/rootfs")
        spec = json.loads((self.dir / "unpacked/config.json").read_text())
        entry = container.get("command", ["/opt/sft/bin/sft-server"])
        arguments = [re.sub(r"\$\((\w+)\)", lambda found: fields[found[1]], word) for word in container["args"]]
        rights = [f"CAP_{right}" for right in security["capabilities"].get("add", [])]
        self.assertEqual(security["capabilities"]["drop"], ["ALL"])
        user = security.get("runAsUser", 10001)
        spec["process"] |= {
            "terminal": False, "args": [*entry, *arguments, *map(str, more)], "rlimits": [],
            "user": {"uid": user, "gid": security.get("runAsGroup", user)},
            "noNewPrivileges": not security["allowPrivilegeEscalation"],
            "capabilities": {kind: rights if kind != "ambient" else [] for kind in
                             ("bounding", "effective", "inheritable", "permitted", "ambient")}}
        spec["root"] = {"path": str(self.dir / "unpacked/rootfs"), "readonly": security["readOnlyRootFilesystem"]}
        spec["linux"]["resources"] = {}
        spec["linux"].pop("cgroupsPath", None)
        spec["linux"]["namespaces"] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")] + [
            {"type": "network", "path": f"/var/run/netns/{self.network}"}]
        spec["mounts"].append({"destination": "/etc/hosts", "type": "bind", "source": str(self.dir / "hosts"),
                               "options": ["bind", "ro"]})
        for mount in container["volumeMounts"]:
            place = mount["mountPath"]
            source = folders.get(place, bundle / mount["name"])
            source.mkdir(exist_ok=True, parents=True)
            if place not in folders:
                source.chmod(0o1777)
            spec["mounts"] = [each for each in spec["mounts"] if each["destination"] != place]
            spec["mounts"].append({"destination": place, "type": "bind", "source": str(source),
                                   "options": ["rbind", "ro" if mount.get("readOnly") else "rw"]})
        (bundle / "config.json").write_text(json.dumps(spec))
        runc = ["runc", "--root", str(self.dir / "runc")]
        self.addCleanup(subprocess.run, [*runc, "delete", "--force", f"{self.network}-{name}"], check=False,
                        capture_output=True)
        return self.start(name, *runc, "run", "--bundle", bundle, f"{self.network}-{name}")

    def log(self, name):
        return (self.dir / f"{name}.log").read_text(errors="replace")

    def probe(self, check):
        """The code of a kubelet's answer."""
        get = check["httpGet"]
        self.assertEqual((get["scheme"], get["port"]), ("HTTPS", "https"))
        headers = {each["name"]: each["value"] for each in get.get("httpHeaders", [])}
        result = self.inside(sys.executable, "-c", PROBE, "127.0.0.1:7443", get["path"], json.dumps(headers), check=False)
        return result.stdout.strip()

    def test_its_programs_run_as_the_manifests_say(self):
        self.make_image(self.make_bundle(), "image")
        self.dir.chmod(0o755)
        self.unpack("image")
        self.open_network()
        # Storage that its group may write to, as fsGroup makes it.
        disk = self.dir / "disk"
        disk.mkdir()
        os.chown(disk, 0, 10001)
        disk.chmod(0o2775)
        at = {"/var/lib/sft": disk}
        init = self.run_container("init", self.container_of("init/job.yaml", "Job"), {}, at)
        self.assertEqual(init.wait(timeout=DEADLINE_S), 0, self.log("init"))
        tokens = {name: re.search(rf"^{name} token +(\S+)", self.log("init"), re.M).group(1) for name in ("admin", "join")}
        server = self.container_of("fleet/server.yaml", "StatefulSet")
        self.run_container("server", server, {}, at)
        wait_until("the server's startup probe", lambda: self.probe(server["startupProbe"]) == "200")
        self.assertEqual([self.probe(server[each]) for each in ("readinessProbe", "livenessProbe")], ["200", "200"])
        pod = {**server["startupProbe"]["httpGet"], "httpHeaders": [{"name": "Host", "value": "10.1.2.3:7443"}]}
        self.assertEqual(self.probe({"httpGet": pod}), "421", "why the probe names the host")
        # A worker, with the rights that its manifest gives and no more.
        join = self.dir / "join"
        join.mkdir()
        (join / "token").write_text(tokens["join"] + "\n")
        (join / "token").chmod(0o400)
        node = self.dir / "node"
        self.run_container("worker", self.container_of("fleet/worker.yaml", "DaemonSet"),
                           {"NODE_NAME": "node-a", "NODE_IP": "127.0.0.1"},
                           {"/var/lib/sft-worker": node, "/etc/sft/join": join, "/srv/models": self.dir / "models"},
                           ("--simulate-gpus", "H100:8", "--grace", "1"))
        environment = {"HOME": str(self.dir), "SFT_CA": str(disk / "server/tls/ca.crt"), "SFT_TOKEN": tokens["admin"],
                       "PATH": os.environ["PATH"]}

        def ask(*arguments):
            return self.inside(BUILD / "bin/sftctl", "--server", "localhost:7070", *arguments, check=False, env=environment)

        wait_until("the worker to join", lambda: "UP" in ask("nodes").stdout)
        submitted = ask("submit", self.write_job("wait", ranks=4), "--json")
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        name = json.loads(submitted.stdout)["job"]
        wait_until("a step of it", lambda: (json.loads(ask("status", name, "--json").stdout).get("progress") or {})
                   .get("step", 0) >= 1)
        owners = [os.stat(f"/proc/{pid}").st_uid for pid in self.processes_of("sft-rank train")]
        self.assertEqual(set(owners), {10001}, "ranks are not root")
        self.assertEqual(ask("cancel", name).returncode, 0)
        wait_until("its end", lambda: json.loads(ask("status", name, "--json").stdout)["state"] == "CANCELLED")
        done = ask("submit", self.write_job("ok", ranks=8, name="whole"), "--follow")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        # As a kubelet ends them.
        for each in ("worker", "server"):
            subprocess.run(["runc", "--root", self.dir / "runc", "kill", f"{self.network}-{each}", "TERM"], check=True)
            self.assertEqual(self.processes[each].wait(timeout=DEADLINE_S), 0, self.log(each))

    def processes_of(self, text):
        """Those in the containers."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                network = os.readlink(path.parent / "ns/net")
            except OSError:
                continue
            if text in command and network == f"net:[{os.stat(f'/var/run/netns/{self.network}').st_ino}]":
                found.append(int(path.parent.name))
        return found


if __name__ == "__main__":
    run_tests()
