#!/usr/bin/env bash
# The demo: builds what it runs, starts a server with one worker on this machine, fine-tunes a small
# model on two CPU ranks (configs/demo.toml), downloads the adapter, and asks questions before and
# after. The job can be watched on the server's web page, whose address is printed; on a terminal the
# page stays until Enter is pressed. Stops what it started, whatever happens. Run deploy/bootstrap --demo
# first (`make demo` does).
#
#   deploy/demo/run.sh [--bin FOLDER]
#
#   --bin             use these binaries and build nothing
#   SFT_DEMO_ADDRESS  where the server listens (default: 127.0.0.1:7171)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/deploy/progress.sh"
demo=$root/deploy/demo
work=$root/build/demo
run=$work/run
bin=
address=${SFT_DEMO_ADDRESS:-127.0.0.1:7171}
server_pid=
job=  # while it runs
page=  # its page
step=
failed=  # said why

while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$(cd "${2:?--bin needs a folder}" && pwd); shift 2 ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d'; exit 0 ;;
    *) echo "run.sh: unknown option $1 (see deploy/demo/run.sh --help)" >&2; exit 2 ;;
  esac
done

say() {
  step=$*
  printf '\n== %s\n' "$*"
}
fail() {
  failed=1
  echo "demo: $*" >&2
  exit 1
}

# A job that still runs is cancelled first: ranks outlive the server and its worker. The server is
# asked to stop, and killed if it does not.
stop_server() {
  [ -n "$server_pid" ] || return 0
  if [ -n "$job" ]; then
    "$bin/sftctl" cancel "$job" --reason "the demo was interrupted" > /dev/null 2>&1 || true
    "$bin/sftctl" wait "$job" --timeout 30s > /dev/null 2>&1 || true
  fi
  kill -TERM "$server_pid" 2> /dev/null || true
  for _ in $(seq 60); do
    kill -0 "$server_pid" 2> /dev/null || break
    sleep 0.5
  done
  if kill -KILL "$server_pid" 2> /dev/null; then
    echo "demo: the server did not stop within 30 s and was killed" >&2
  fi
  wait "$server_pid" 2> /dev/null || true
  server_pid=
}
end() {
  local status=$?
  stop_server
  [ $status -eq 0 ] || [ $status -eq 130 ] || [ -n "$failed" ] \
    || echo "demo: this step failed: $step; its error is above, the logs are in $run" >&2
}
trap end EXIT
trap 'exit 130' INT TERM

configure_and_build() {
  cmake -S "$root" --preset release \
    && cmake --build "$root/build/release" -j "$(nproc)" \
      --target sft-server sft-worker sft-shim sft-rank sftctl
}

build() {
  say "building the programs (output in $run/build.log)"
  : > "$run/build.log"
  with_progress "$run/build.log" "building" configure_and_build \
    || { tail -n 30 "$run/build.log" >&2; fail "the build failed: read $run/build.log"; }
  bin=$root/build/release/bin
}

start_server() {
  say "starting a server with one worker on $address"
  # In a session of its own: Ctrl-C must not stop it before the job is cancelled.
  setsid "$bin/sft-server" --dev --listen "$address" --data-dir "$run/server" --models "$work" \
    > "$run/server.log" 2>&1 &
  server_pid=$!
  # The worker has registered when its variants are there.
  for _ in $(seq 60); do
    kill -0 "$server_pid" 2> /dev/null \
      || { tail -n 20 "$run/server.log" >&2; fail "the server did not start: read $run/server.log"; }
    if "$bin/sftctl" variants 2> /dev/null | grep -q CPU-2x; then return; fi
    sleep 0.5
  done
  tail -n 20 "$run/server.log" >&2
  fail "no worker with two CPU slots has registered within 30 s; see $run/server.log"
}

train() {
  say "submitting configs/demo.toml"
  job=$("$bin/sftctl" submit "$root/configs/demo.toml")
  page=$("$bin/sftctl" web --no-open)jobs/$job
  printf 'watch it in a browser: %s\n' "$page"
  # Its exit code is the job's verdict.
  "$bin/sftctl" status "$job" --watch || {
    "$bin/sftctl" logs "$job" >&2
    fail "the job failed: its log is above; the server's is $run/server.log"
  }
  local done_job=$job
  job=
  "$bin/sftctl" metrics "$done_job" --json > "$run/metrics.jsonl"
  "$bin/sftctl" download "$done_job" -o "$run/adapter"
}

ask() {
  local answers=$1
  shift
  "$bin/sft-rank" generate --model "$work/model" "$@" --prompts "$run/prompts.txt" \
    --max-new-tokens 32 --json > "$answers"
}

rm -rf "$run"
mkdir -p "$run"
[ -n "$bin" ] || build
export SFT_SERVER=$address
say "making the model"
"$demo/make_model.sh"
python3 "$demo/check.py" data
python3 "$demo/check.py" prompts "$run/prompts.txt"

say "asking the model as it is"
ask "$run/before.jsonl"
start_server
started=$SECONDS
train
say "the job took $((SECONDS - started)) s; asking again, with the adapter"
ask "$run/after.jsonl" --adapter "$run/adapter"
python3 "$demo/check.py" result --before "$run/before.jsonl" --after "$run/after.jsonl" \
  --metrics "$run/metrics.jsonl"
say "done; the adapter is in $run/adapter"
if [ -t 0 ] && [ -t 1 ]; then
  read -r -p "$page shows curves and log until you press Enter "
fi
