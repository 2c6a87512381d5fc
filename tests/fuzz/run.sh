#!/usr/bin/env bash
# Fuzzes each target for MINUTES, one after the other, from its corpus; inputs that crash it are kept
# below the build folder and named. tests/fuzz/run.sh BUILD MINUTES [TARGET]...
set -euo pipefail
build=$1 minutes=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(job_file deepspeed_json json_text short_text data_rows safetensors_check chat_template worker_stream)
status=0
for target in "${targets[@]}"; do
  program=$build/tests/fuzz_$target
  [ -x "$program" ] || { echo "$target: not built here (its crate comes with the engine)"; continue; }
  found=$build/fuzz/$target
  mkdir -p "$found/corpus"
  # Long enough for what is deep or wide; a stream and a template are what they say, step by step.
  limit=65536
  case $target in worker_stream | chat_template) limit=16384 ;; esac
  echo "== $target: $minutes min"
  # A crash ends the target: the others are still run.
  if ! "$program" -max_total_time=$((minutes * 60)) -max_len=$limit -timeout=10 \
      -rss_limit_mb=1024 -malloc_limit_mb=512 \
      -print_final_stats=1 -artifact_prefix="$found/" "$found/corpus" "$here/corpus/$target" \
      > "$found/log" 2>&1; then
    echo "$target: CRASH, see $found"
    tail -n 40 "$found/log"
    status=1
  fi
  grep -aE 'stat::(number_of_executed_units|average_exec_per_sec|peak_rss_mb)' "$found/log" || true
done
exit $status
