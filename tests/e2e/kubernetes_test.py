"""The manifests of deploy/kubernetes: held against Kubernetes' schemas, then taken and placed by a real API server with
its controllers and scheduler, on nodes that are pretended. What the pods then run is image_test.py's."""

import json
import re
import subprocess

from control_plane import DEPS, SOURCE, ControlPlane, missing
from harness import ServiceCase, run_tests, wait_until

MANIFESTS = SOURCE / "deploy/kubernetes"
SCHEMA = "1.33"
VALIDATE = """
import sys, yaml, kubernetes_validate
for each in yaml.safe_load_all(sys.stdin):
    kubernetes_validate.validate(each, sys.argv[1], strict=True)
    print(each["kind"], each["metadata"]["name"])
"""
MACHINE = {"cpu": "192", "memory": "2000Gi", "pods": "110", "ephemeral-storage": "8Ti"}
GPU_LABEL = {"nvidia.com/gpu.present": "true"}


class KubernetesTest(ServiceCase):

    def validate(self, text):
        python = DEPS / "cluster/bin/python"
        if not python.exists():
            self.skipTest("Kubernetes' schemas are not there: deploy/bootstrap --cluster installs them")
        return subprocess.run([python, "-c", VALIDATE, SCHEMA], input=text, capture_output=True, text=True, check=False)

    def test_the_manifests_fit_the_schemas(self):
        files = sorted(MANIFESTS.glob("*/*.yaml"))
        kinds = []
        for path in files:
            if path.name == "kustomization.yaml":
                continue
            result = self.validate(path.read_text())
            self.assertEqual(result.returncode, 0, f"{path.name}: {result.stderr[-1000:]}")
            kinds += result.stdout.splitlines()
        self.assertEqual(len(kinds), 8, kinds)
        # A misspelt key and a wrong type are told.
        server = (MANIFESTS / "fleet/server.yaml").read_text()
        for right, wrong in (("readOnlyRootFilesystem", "readOnlyRootFileSystem"), ("replicas: 1", "replicas: one")):
            self.assertIn(right, server)
            self.assertNotEqual(self.validate(server.replace(right, wrong)).returncode, 0, wrong)

    def cluster(self):
        why = missing()
        if why:
            self.skipTest(why)
        plane = ControlPlane(self.dir / "plane", self.start)
        plane.open()
        return plane

    def test_a_real_api_server_takes_and_places_them(self):
        plane = self.cluster()
        for node in ("gpu-a", "gpu-b"):
            plane.add_node(node, {**GPU_LABEL, "kubernetes.io/hostname": node}, {**MACHINE, "nvidia.com/gpu": "8"})
        plane.add_node("plain", {"kubernetes.io/hostname": "plain"}, MACHINE)
        # Storage as a cluster has it; the claim names no class.
        plane.apply("-f", "-", stdin=json.dumps({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
            "spec": {"capacity": {"storage": "500Gi"}, "accessModes": ["ReadWriteOncePod"],
                     "csi": {"driver": "disk.test.local", "volumeHandle": "disk"}}}))
        # As docs/kubernetes.md says. The Job that makes the keys is let into the strict namespace, too.
        plane.apply("-k", MANIFESTS / "base")
        plane.apply("-k", MANIFESTS / "init")
        made = wait_until("the Job's pod to be placed", lambda: plane.placed("sft"))
        self.assertIn("sft-init", next(iter(made)))
        image = plane.get("job", "sft-init", "sft")["spec"]["template"]["spec"]["containers"][0]["image"]
        self.assertRegex(image, r"^registry\.example\.org/sft:\d")
        # While its pod has the disk, the server's would wait.
        self.assertEqual(plane.kubectl("delete", "-k", MANIFESTS / "init").returncode, 0)
        for pod in made:
            plane.kubectl("delete", "pod", "-n", "sft", pod, "--force", "--grace-period=0")
        told = plane.apply("-k", MANIFESTS / "fleet")
        for each in ("service/sft-server", "statefulset.apps/sft-server", "daemonset.apps/sft-worker"):
            self.assertIn(f"{each} created", told)
        # The server, with its disk.
        wait_until("the server's pod to be placed", lambda: "sft-server-0" in plane.placed("sft"))
        claim = plane.get("persistentvolumeclaim", "sft-server", "sft")
        self.assertEqual((claim["status"]["phase"], claim["status"]["accessModes"]), ("Bound", ["ReadWriteOncePod"]))
        # A worker on each machine with GPUs, and on no other.
        wait_until("the workers to be placed", lambda: len(plane.placed("sft-workers")) == 2)
        self.assertEqual(sorted(plane.placed("sft-workers").values()), ["gpu-a", "gpu-b"])
        # Their GPUs are taken: a pool waits, and says for what.
        plane.apply("-k", MANIFESTS / "pool")
        pool = wait_until("the pool's pods", lambda: [
            pod for pod in plane.get("pods", namespace="sft-workers") if "sft-pool" in pod["metadata"]["name"]
            and any(word["type"] == "PodScheduled" for word in pod["status"].get("conditions", []))])
        self.assertTrue(all("Insufficient nvidia.com/gpu" in pod["status"]["conditions"][0]["message"] for pod in pool))
        # Once a machine with GPUs comes, it is a worker's of the DaemonSet; without that, the pool's.
        plane.kubectl("delete", "daemonset", "-n", "sft-workers", "sft-worker", "--wait=false")
        for pod in list(plane.placed("sft-workers")):
            plane.kubectl("delete", "pod", "-n", "sft-workers", pod, "--force", "--grace-period=0")
        wait_until("the pool to be placed", lambda: sorted(
            node for pod, node in plane.placed("sft-workers").items() if "sft-pool" in pod) == ["gpu-a", "gpu-b"])
        # Two servers never have one disk: the second pod waits, on the same node as on another.
        plane.kubectl("scale", "statefulset", "-n", "sft", "sft-server", "--replicas=2")
        plane.kubectl("patch", "pod", "sft-server-0", "-n", "sft", "--subresource=status", "-p", json.dumps(
            {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}))
        waits = wait_until("the second pod to wait", lambda: [
            word["message"] for word in plane.get("pod", "sft-server-1", "sft").get("status", {}).get("conditions", [])
            if word["type"] == "PodScheduled" and word["status"] == "False"])
        self.assertRegex(waits[0], "ReadWriteOncePod")

    def test_a_real_api_server_refuses_what_is_wrong(self):
        plane = self.cluster()
        plane.apply("-k", MANIFESTS / "base")
        server = (MANIFESTS / "fleet/server.yaml").read_text()
        strict = ["--validate=strict", "-f", "-"]
        misspelt = plane.kubectl("apply", *strict, stdin=server.replace("fsGroup:", "fsgroup:"))
        self.assertNotEqual(misspelt.returncode, 0)
        self.assertIn("fsgroup", misspelt.stderr)
        self.assertEqual(plane.kubectl("apply", *strict, stdin=server).returncode, 0)
        # A server with root's rights is made, and its pods are kept out of the namespace.
        loose = re.sub("runAsNonRoot: true", "runAsNonRoot: false", server).replace("name: sft-server\n", "name: loose\n", 2)
        plane.kubectl("delete", "statefulset", "-n", "sft", "sft-server")
        plane.apply("-f", "-", stdin=loose)
        wait_until("the pods to be refused", lambda: any(
            "violates PodSecurity" in event.get("message", "") for event in plane.get("events", namespace="sft")))


if __name__ == "__main__":
    run_tests()
