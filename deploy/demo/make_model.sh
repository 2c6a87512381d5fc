#!/usr/bin/env bash
# Makes build/demo/model (see make_model.py) with the Python that deploy/bootstrap --demo prepared.
# Arguments go to make_model.py. SFT_DEPS_DIR as in deploy/bootstrap.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${SFT_DEPS_DIR:-$root/build/deps}/demo/bin/python
if [ ! -x "$python" ]; then
  echo "make_model.sh: $python is missing: run deploy/bootstrap --demo" >&2
  exit 1
fi
exec "$python" "$root/deploy/demo/make_model.py" "$@"
