#!/usr/bin/env python3
"""Makes a container image of a bundle, as an OCI layout, without a daemon, root or a network of its own.

  deploy/image/make_image.py BUNDLE.tar.xz OUT_DIR [--torch SITE_PACKAGES] [--debs DIR] [--tag TAG]

The image has three layers: the few packages of Debian that the programs need (C and C++ run time, certificates;
no shell and no package manager), the user sft (10001) with the bundle in /opt/sft, and with --torch the folder of
Python packages in which torch's wheels are (4.8 GB), as /opt/sft/site-packages. A server needs no torch; workers need
that layer or mount such a folder there.

Two runs with one bundle and the same packages give the same image, byte for byte: names are sorted, owners are root,
times are the bundle's. `apt-get download` fetches the packages, or --debs names a folder that has them; which they
were is in the image's label org.opencontainers.image.base.packages.

Then, for example:  skopeo copy oci:OUT_DIR:TAG docker://registry.example.org/sft:TAG
"""

import argparse
import gzip
import hashlib
import io
import json
import lzma
import os
import pathlib
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
import time

PACKAGES = ("base-files", "ca-certificates", "libc6", "libgcc-s1", "libstdc++6", "netbase", "tzdata")
# Of the packages, what nobody reads in a container.
LEFT_OUT = re.compile(r"^(usr/share/(doc|man|info|lintian|locale|bug|common-licenses/)|usr/share/zoneinfo/(right|posix)/|"
                      r"usr/lib/x86_64-linux-gnu/gconv/|usr/sbin/|etc/update-motd.d)")
USER, GROUP = 10001, 10001
ACCOUNTS = {
    "etc/passwd": f"root:x:0:0:root:/root:/sbin/nologin\nsft:x:{USER}:{GROUP}::/var/lib/sft:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nsft:x:{GROUP}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
# Folders that a mount or the programs fill, and whose they are.
FOLDERS = {"var/lib/sft-server": USER, "var/lib/sft-worker": USER, "srv/models": USER, "tmp": 0, "etc/sft": 0}


def fail(text):
    sys.exit(f"make_image: {text}")


class Layer:
    """Entries of a layer by their path, from whatever source; the later one of a path counts."""

    def __init__(self, mtime):
        self.mtime = mtime
        self.entries = {}

    def add(self, path, kind, mode, data=b"", link="", owner=0, source=None):
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.mtime, info.linkname = kind, mode, self.mtime, link
        info.uid = info.gid = owner
        info.size = len(data) if source is None else source.stat().st_size
        self.entries[path] = (info, data, source)

    def add_text(self, path, text):
        self.add(path, tarfile.REGTYPE, 0o644, text.encode())

    def add_folders(self, path, owner=0):
        for parent in reversed([str(parent) for parent in pathlib.PurePosixPath(path).parents][:-1]):
            if parent not in self.entries:
                self.add(parent, tarfile.DIRTYPE, 0o755)
        self.add(path, tarfile.DIRTYPE, 0o1777 if path == "tmp" else 0o755, owner=owner)

    def write(self, out):
        """The layer into a file of its hash: (digest, size, hash of what it is before gzip)."""
        plain = hashlib.sha256()
        with tempfile.NamedTemporaryFile(dir=out, delete=False) as file:
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:

                class Tee(io.RawIOBase):
                    def writable(self):
                        return True

                    def write(self, data):
                        plain.update(data)
                        return packed.write(data)

                with tarfile.open(fileobj=Tee(), mode="w|", format=tarfile.PAX_FORMAT) as tar:
                    for path in sorted(self.entries):
                        info, data, source = self.entries[path]
                        if source is None:
                            tar.addfile(info, io.BytesIO(data))
                        else:
                            with open(source, "rb") as content:
                                tar.addfile(info, content)
        digest, size = keep(pathlib.Path(file.name), out)
        return digest, size, plain.hexdigest()


def keep(path, out):
    """Names a file by its hash, as a blob of the layout: (digest, size)."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    path.chmod(0o644)
    size = path.stat().st_size
    path.rename(out / digest.hexdigest())
    return digest.hexdigest(), size


def keep_json(value, out):
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    with tempfile.NamedTemporaryFile(dir=out, delete=False) as file:
        file.write(text)
    return keep(pathlib.Path(file.name), out)


def fetch_packages(folder):
    # apt's own user may not write there, and warns.
    result = subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        fail(f"apt-get download: {result.stderr.strip()}")


def base_layer(debs, mtime):
    """(layer, "name=version" of each package) of the packages in a folder."""
    layer, versions, authorities = Layer(mtime), {}, []
    files = sorted(debs.glob("*.deb"))
    for deb in files:
        name, version = subprocess.run(["dpkg-deb", "-W", "--showformat=${Package}\n${Version}", deb], check=True,
                                       capture_output=True, text=True).stdout.split("\n")
        versions[name] = version
        content = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            for info in tar:
                path = info.name.removeprefix("./").rstrip("/")
                if not path or LEFT_OUT.search(path + "/"):
                    continue
                data = tar.extractfile(info).read() if info.isreg() else b""
                layer.add(path, info.type, info.mode, data, info.linkname)
                if path.startswith("usr/share/ca-certificates/") and path.endswith(".crt"):
                    authorities.append((path, data))
    missing = sorted(set(PACKAGES) - set(versions))
    if missing:
        fail(f"the packages {', '.join(missing)} are not in {debs}")
    # What the package's script makes of its certificates.
    layer.add_folders("etc/ssl/certs")
    layer.add("etc/ssl/certs/ca-certificates.crt", tarfile.REGTYPE, 0o644, b"".join(data for _, data in sorted(authorities)))
    for path, text in ACCOUNTS.items():
        layer.add_text(path, text)
    for path, owner in FOLDERS.items():
        layer.add_folders(path, owner)
    return layer, [f"{name}={versions[name]}" for name in sorted(versions)]


def bundle_layer(bundle):
    """(layer, version, newest time) of what the bundle has, in /opt/sft."""
    with tarfile.open(fileobj=io.BytesIO(lzma.open(bundle).read())) as tar:
        members = tar.getmembers()
        if not members or not re.fullmatch(r"sft-[^/]+-linux-x86_64", members[0].name):
            fail(f"{bundle} is no bundle: deploy/bundle/make_bundle.sh makes one")
        root = members[0].name
        # The bundle's own times are those of its build, which differ: the release names it.
        layer = Layer(int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
        layer.add_folders("opt/sft")
        for info in members[1:]:
            path = "opt/sft" + info.name.removeprefix(root)
            if not info.isreg() and not info.isdir() and not info.issym():
                fail(f"{bundle}: {info.name} is neither a file, a folder nor a link")
            mode = 0o755 if info.isdir() or info.mode & stat.S_IXUSR else 0o644
            layer.add(path, info.type, mode, tar.extractfile(info).read() if info.isreg() else b"", info.linkname)
    return layer, root.removeprefix("sft-").removesuffix("-linux-x86_64")


def torch_layer(folder, mtime):
    layer = Layer(mtime)
    layer.add_folders("opt/sft/site-packages")
    for path in sorted(folder.rglob("*")):
        inside = f"opt/sft/site-packages/{path.relative_to(folder)}"
        if "__pycache__" in path.parts:
            continue
        if path.is_symlink():
            layer.add(inside, tarfile.SYMTYPE, 0o777, link=os.readlink(path))
        elif path.is_dir():
            layer.add(inside, tarfile.DIRTYPE, 0o755)
        elif path.is_file():
            layer.add(inside, tarfile.REGTYPE, 0o755 if os.access(path, os.X_OK) else 0o644, source=path)
    return layer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=pathlib.Path, metavar="BUNDLE.tar.xz")
    parser.add_argument("out", type=pathlib.Path, metavar="OUT_DIR", help="a folder that is not there yet")
    parser.add_argument("--torch", type=pathlib.Path, metavar="SITE_PACKAGES")
    parser.add_argument("--debs", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--tag", help="the image's name in the layout [the bundle's version]")
    arguments = parser.parse_args()
    if arguments.out.exists():
        fail(f"{arguments.out} is there already: name another folder")
    if not arguments.bundle.is_file():
        fail(f"{arguments.bundle} is not there: `make bundle` makes dist/sft-VERSION-linux-x86_64.tar.xz")
    if arguments.torch and not (arguments.torch / "torch/lib").is_dir():
        fail(f"{arguments.torch} has no torch: give the folder in which pip has put it (site-packages)")
    program, version = bundle_layer(arguments.bundle)
    with tempfile.TemporaryDirectory() as fetched:
        debs = arguments.debs or pathlib.Path(fetched)
        if arguments.debs is None:
            fetch_packages(debs)
        base, packages = base_layer(debs, program.mtime)
    layers = [(base, "Debian's run time"), (program, f"sft {version}")]
    if arguments.torch:
        layers.append((torch_layer(arguments.torch, program.mtime), "torch"))
    # Made aside: a run that is broken off leaves nothing that looks like an image.
    partial = arguments.out.with_name(arguments.out.name + ".partial")
    blobs = partial / "blobs/sha256"
    blobs.mkdir(parents=True)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(program.mtime))
    written = [(layer.write(blobs), what) for layer, what in layers]
    labels = {"org.opencontainers.image.title": "sft", "org.opencontainers.image.version": version,
              "org.opencontainers.image.base.packages": " ".join(packages)}
    config = {
        "architecture": "amd64", "os": "linux", "created": when,
        "config": {"User": f"{USER}:{GROUP}", "Entrypoint": ["/opt/sft/bin/sft-server"], "WorkingDir": "/",
                   "Env": ["PATH=/opt/sft/bin:/usr/bin:/bin", "HOME=/tmp"], "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{plain}" for (_, _, plain), _ in written]},
        "history": [{"created": when, "created_by": what} for _, what in written]}
    kind = "application/vnd.oci.image"
    config_digest, config_size = keep_json(config, blobs)
    manifest = {
        "schemaVersion": 2, "mediaType": f"{kind}.manifest.v1+json",
        "config": {"mediaType": f"{kind}.config.v1+json", "digest": f"sha256:{config_digest}", "size": config_size},
        "layers": [{"mediaType": f"{kind}.layer.v1.tar+gzip", "digest": f"sha256:{digest}", "size": size}
                   for (digest, size, _), _ in written]}
    digest, size = keep_json(manifest, blobs)
    tag = arguments.tag or version
    (partial / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (partial / "index.json").write_text(json.dumps(
        {"schemaVersion": 2, "manifests": [
            {"mediaType": f"{kind}.manifest.v1+json", "digest": f"sha256:{digest}", "size": size,
             "annotations": {"org.opencontainers.image.ref.name": tag}}]}, separators=(",", ":")))
    partial.rename(arguments.out)
    for (layer_digest, layer_size, _), what in written:
        print(f"  {layer_size / 1e6:8.1f} MB  {what}, sha256:{layer_digest[:12]}")
    print(f"make_image: oci:{arguments.out}:{tag}, sha256:{digest}")


if __name__ == "__main__":
    main()
