#!/usr/bin/env bash
# Packs the peer's Python packages (peer_packages.txt) for a machine without a package registry.
#
#   deploy/gpu/bench/pack_peer.sh OUT.tar.xz
#
# Made for Python 3.12 on x86-64 Linux that has torch 2.11 for CUDA 13.0, transformers and peft. Of
# bitsandbytes' libraries only that of CUDA 13.0 is kept. About 17 MB; bench.py --peer-packages takes
# the tarball or a folder of it.
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d' >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$(dirname "$1")"
out=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

wheels=(--no-deps --only-binary=:all: --implementation cp --python-version 3.12)
# pip compares platform tags as text: each glibc that a wheel may name has to be listed.
for tag in manylinux_2_{17,24,27,28}_x86_64 manylinux{1,2014}_x86_64; do wheels+=(--platform "$tag"); done
pip() { python3 -m pip --disable-pip-version-check -q "$@"; }

pip download "${wheels[@]}" --dest "$work/wheels" --requirement "$here/peer_packages.txt"
pip install "${wheels[@]}" --no-index --no-compile --target "$work/site" "$work"/wheels/*.whl
rm -rf "$work/site/studio" "$work/site/bin"  # Unsloth's desktop program
for library in "$work"/site/bitsandbytes/*.so; do
  case ${library##*/} in *cuda130*.so | *cpu*.so) ;; *) rm "$library" ;; esac
done
XZ_OPT=${XZ_OPT:--6} tar -C "$work/site" -cJf "$out.partial" .
mv "$out.partial" "$out"
du -h "$out" | sed 's/^/pack_peer: /'
