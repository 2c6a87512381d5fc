#!/usr/bin/env bash
# `make parity`: makes the goldens anew, compares them with those kept, and runs the engine's parity
# tests against the new ones. Run deploy/bootstrap --demo --parity first (`make parity` does).
#
#   tests/parity/run.sh BUILD_FOLDER
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${1:?"usage: tests/parity/run.sh BUILD_FOLDER"}
python=${SFT_DEPS_DIR:-$root/build/deps}/parity/bin/python
goldens=$root/build/parity/goldens
if [ ! -x "$python" ]; then
  echo "run.sh: $python is missing: run deploy/bootstrap --parity" >&2
  exit 1
fi

"$root/deploy/demo/make_model.sh"
"$python" "$root/tests/parity/nf4_test.py"
"$python" "$root/tests/parity/data/make_goldens.py" --check
"$python" "$root/tests/parity/tokenizers/make_goldens.py" --check
"$python" "$root/tests/parity/scores/make_goldens.py" --check
"$python" "$root/tests/parity/int8_test.py"
"$python" "$root/tests/parity/make_goldens.py" --out "$goldens" --check
# The CUDA kernels' goldens are kept, not made: there may be no GPU here.
rm -rf "$goldens/nf4_cuda"
cp -r "$root/tests/parity/goldens/nf4_cuda" "$goldens/nf4_cuda"

# The tests have the goldens' place compiled in: point them at the new ones, and back afterwards.
use_goldens() {
  cmake -S "$root" -B "$build" -DSFT_PARITY_GOLDENS="$1" > /dev/null
  cmake --build "$build" -j "$(nproc)"
}
trap 'use_goldens "$root/tests/parity/goldens" > /dev/null' EXIT
use_goldens "$goldens"
SFT_SERIES_STEPS=20 ctest --test-dir "$build" -L parity --output-on-failure --no-tests=error
# Adapters of the service read by PEFT, and folders by huggingface_hub.
ctest --test-dir "$build" -R 'e2e\.test_.*(read_by_peft|huggingface_hub|stock_client)' --output-on-failure --no-tests=error
"$python" "$root/tests/parity/forms.py" --bin "$build/bin"
"$python" "$root/tests/parity/delivery.py" --bin "$build/bin"
"$python" "$root/tests/parity/merged.py" --bin "$build/bin"
"$python" "$root/tests/parity/gguf.py" --bin "$build/bin" || [ $? -eq 77 ]  # there is no Node
"$python" "$root/tests/parity/resume.py" --bin "$build/bin"
