#!/usr/bin/env bash
# Runs the GPU tests, the speed table of the operations and the NF4 goldens on a machine with a GPU.
#
#   deploy/gpu/run_ops.sh PACKED_DIR LOG_DIR
#
# PACKED_DIR is what pack_tests.sh made. Needs python3 with the torch 2.11 that they were built for;
# the goldens need bitsandbytes beside it and are left out, with a word, without it. Full logs go to
# LOG_DIR. Takes two to four minutes. Exit 0 when everything that ran passed.
set -uo pipefail
[ $# -eq 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d' >&2; exit 2; }
packed=$(cd "$1" && pwd) || exit 1
logs=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$logs"
. "$here/torch_env.sh"
failed=0

nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv,noheader | tee "$logs/gpus.txt"
python3 -c 'import torch; print("torch", torch.__version__)'

# step NAME SECONDS COMMAND...: runs it with a limit, its output in LOG_DIR/NAME.log.
step() {
  local name=$1 limit=$2 begin=$SECONDS code
  shift 2
  timeout --kill-after=10 "$limit" "$@" > "$logs/$name.log" 2>&1
  code=$?
  [ $code -eq 0 ] || failed=1
  echo "== $name: exit $code after $((SECONDS - begin)) s"
  return $code
}

chmod +x "$packed"/tests/*
"$here/run_tests.sh" "$packed" "$logs" || failed=1

step op_speed 120 "$packed/tests/sft_gpu_op_speed"
cat "$logs/op_speed.log"

if python3 -c 'import bitsandbytes' 2> /dev/null; then
  step nf4_goldens 120 python3 "$here/make_nf4_goldens.py" --out "$logs/nf4"
  tail -n 12 "$logs/nf4_goldens.log"
else
  echo "== nf4_goldens: not run, python3 has no bitsandbytes"
fi
exit $failed
