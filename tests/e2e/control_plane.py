"""A Kubernetes control plane of one's own: etcd, API server, controllers and scheduler as processes on loopback, and
nodes that are rows of it: what is placed on them is seen, and nothing runs."""

import json
import os
import pathlib
import secrets
import shutil
import subprocess

from harness import DEADLINE_S, free_port, wait_until

SOURCE = pathlib.Path(__file__).parents[2]
DEPS = pathlib.Path(os.environ.get("SFT_DEPS_DIR", SOURCE / "build/deps"))
PROGRAMS = DEPS / "kubernetes/bin"


def missing():
    """Why there can be none; empty: there can."""
    if not (PROGRAMS / "kube-apiserver").exists() or not (PROGRAMS / "kubectl").exists():
        return "there is no Kubernetes control plane: deploy/bootstrap --cluster builds it where Go is"
    if shutil.which("etcd") is None:
        return "there is no etcd: deploy/bootstrap --cluster installs it"
    return ""


class ControlPlane:
    """`start`: of the test, starts a process by name."""

    def __init__(self, folder, start):
        self.folder, self.start = folder, start
        folder.mkdir()
        self.port = free_port()
        self.token = secrets.token_hex(16)
        self.config = folder / "kubeconfig"

    def open(self):
        folder = self.folder
        client, peer = free_port(), free_port()
        subprocess.run(["openssl", "genrsa", "-out", folder / "sa.key", "2048"], check=True, capture_output=True)
        (folder / "tokens.csv").write_text(f"{self.token},admin,1,system:masters\n")
        self.config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": f"https://127.0.0.1:{self.port}",
                                                      "insecure-skip-tls-verify": True}}],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}]}))
        self.start("etcd", "etcd", "--data-dir", folder / "etcd", "--listen-client-urls", f"http://127.0.0.1:{client}",
                   "--advertise-client-urls", f"http://127.0.0.1:{client}", "--listen-peer-urls",
                   f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                   "--initial-cluster", f"default=http://127.0.0.1:{peer}")
        self.start("apiserver", PROGRAMS / "kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{client}",
                   "--cert-dir", folder / "certs", "--secure-port", self.port, "--bind-address", "127.0.0.1",
                   "--service-cluster-ip-range", "10.97.0.0/24", "--authorization-mode", "RBAC",
                   "--service-account-key-file", folder / "sa.key", "--service-account-signing-key-file",
                   folder / "sa.key", "--service-account-issuer", "https://test.local", "--token-auth-file",
                   folder / "tokens.csv")
        wait_until("the API server", lambda: self.kubectl("get", "--raw", "/readyz").returncode == 0)
        self.start("controllers", PROGRAMS / "kube-controller-manager", "--kubeconfig", self.config, "--leader-elect=false",
                   "--use-service-account-credentials", "--service-account-private-key-file", folder / "sa.key",
                   "--secure-port", free_port(), "--bind-address", "127.0.0.1", "--cert-dir", folder / "certs-c")
        self.start("scheduler", PROGRAMS / "kube-scheduler", "--kubeconfig", self.config, "--leader-elect=false",
                   "--secure-port", free_port(), "--bind-address", "127.0.0.1", "--cert-dir", folder / "certs-s")

    def kubectl(self, *arguments, stdin=None):
        return subprocess.run([PROGRAMS / "kubectl", "--kubeconfig", self.config, *map(str, arguments)], input=stdin,
                              capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    def apply(self, *arguments, stdin=None):
        result = self.kubectl("apply", *arguments, stdin=stdin)
        if result.returncode != 0:
            raise AssertionError(f"kubectl apply {arguments}: {result.stderr}")
        return result.stdout

    def get(self, kind, name="", namespace=""):
        """An object, or all of a kind."""
        result = self.kubectl("get", kind, *([name] if name else []), *(["-n", namespace] if namespace else []),
                              "-o", "json", "--ignore-not-found")
        if result.returncode != 0:
            raise AssertionError(result.stderr)
        found = json.loads(result.stdout or "{}")
        return found if name else found.get("items", [])

    def add_node(self, name, labels, resources):
        """A node that is ready and has these resources. Nothing that is placed there runs."""
        self.apply("-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Node",
                                                "metadata": {"name": name, "labels": labels}}))
        status = {"allocatable": resources, "capacity": resources,
                  "conditions": [{"type": "Ready", "status": "True", "reason": "Test", "message": "",
                                  "lastHeartbeatTime": "2100-01-01T00:00:00Z",
                                  "lastTransitionTime": "2020-01-01T00:00:00Z"}],
                  "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
        result = self.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p",
                              json.dumps({"status": status}))
        if result.returncode != 0:
            raise AssertionError(result.stderr)
        # A new node is tainted until its kubelet reports.
        self.kubectl("taint", "node", name, "node.kubernetes.io/not-ready-", "--overwrite")

    def placed(self, namespace):
        """{pod: node} of the pods that have one."""
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in self.get("pods", namespace=namespace)
                if pod["spec"].get("nodeName")}
