#!/usr/bin/env bash
# Collects the GPU tests of a build into a folder that runs on another machine with torch's wheels.
#
#   deploy/gpu/pack_tests.sh BUILD_DIR OUT_DIR
#
# OUT_DIR gets tests/ (programs) and lib/ (the CUDA plugin and the tests' probe), stripped and without
# the paths of this machine: run_ops.sh gives them the libraries of the machine that they run on.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d' >&2; exit 2; }
build=$1 out=$2

mkdir -p "$out/tests" "$out/lib"
for file in tests/sft_gpu_test tests/sft_gpu_op_speed tests/sft_gpu_generation_speed tests/sft_gpu_product_table lib/libsft_cuda.so lib/libsft_gpu_probe.so; do
  [ -f "$build/$file" ] || { echo "pack_tests: $build/$file is not built (cmake -DSFT_CUDA=ON)" >&2; exit 1; }
  cp "$build/$file" "$out/$file"
  strip --strip-unneeded "$out/$file"
  patchelf --remove-rpath "$out/$file"
done
du -sh "$out" | sed 's/^/pack_tests: /'
