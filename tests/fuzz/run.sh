#!/usr/bin/env bash
# Fuzzes each target for MINUTES, one after the other, from its corpus; inputs that crash it are kept
# below the build folder and named. tests/fuzz/run.sh BUILD MINUTES [TARGET]...
set -euo pipefail
build=$1 minutes=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(job_file deepspeed_json json_text short_text data_rows safetensors_check chat_template tokenizer_files http_request id_token worker_stream)
status=0
for target in "${targets[@]}"; do
  program=$build/tests/fuzz_$target
  [ -x "$program" ] || { echo "$target: not built here (its crate comes with the engine)"; continue; }
  found=$build/fuzz/$target
  mkdir -p "$found/corpus"
  # Most of the time on short inputs, of which many run in a second; then on inputs that are long
  # enough to be deep or wide. A stream and a template are what they say, step by step.
  long=65536
  case $target in worker_stream | chat_template) long=16384 ;; esac
  echo "== $target: $minutes min"
  for phase in "2048 $((minutes * 45))" "$long $((minutes * 15))"; do
    read -r length seconds <<< "$phase"
    log=$found/log.$length
    # A crash ends the target: the others are still run.
    if ! "$program" -max_total_time="$seconds" -max_len="$length" -timeout=10 \
        -rss_limit_mb=1024 -malloc_limit_mb=512 \
        -print_final_stats=1 -artifact_prefix="$found/" "$found/corpus" "$here/corpus/$target" \
        > "$log" 2>&1; then
      echo "$target: CRASH, see $found"
      tail -n 40 "$log"
      status=1
      break
    fi
    stat() { grep -aoE "stat::$1: *[0-9]+" "$log" | grep -oE '[0-9]+$' || echo '?'; }
    echo "up to $length bytes, $seconds s: $(stat number_of_executed_units) runs," \
      "$(stat average_exec_per_sec)/s, at most $(stat peak_rss_mb) MB"
  done
done
exit $status
