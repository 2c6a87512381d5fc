#!/usr/bin/env bash
# Runs the GPU tests in several processes that share one GPU: most of a test's time is its reference on the CPU.
#
#   deploy/gpu/run_tests.sh PACKED_DIR LOG_DIR [--shards N] [--filter PATTERNS] [--limit SECONDS] [--memcheck]
#
# PACKED_DIR is what pack_tests.sh made. Needs python3 with the torch 2.11 that they were built for. --filter is
# gtest's. --memcheck runs them under compute-sanitizer. Logs go to LOG_DIR/tests-K.log. Exit 0 when all passed.
set -uo pipefail
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d' >&2; exit 2; }
[ $# -ge 2 ] || usage
packed=$(cd "$1" && pwd) || exit 1
logs=$2 shards=4 filter='*' limit=270 checker=()
shift 2
while [ $# -gt 0 ]; do
  case $1 in
    --shards) shards=$2; shift 2 ;;
    --filter) filter=$2; shift 2 ;;
    --limit) limit=$2; shift 2 ;;
    # Where the machine refuses a kind of memory, the allocator asks for another: no error.
    --memcheck) checker=(compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9); shift ;;
    *) usage ;;
  esac
done
mkdir -p "$logs"
rm -f "$logs"/tests-*.log
. "$(dirname "${BASH_SOURCE[0]}")/torch_env.sh"
export LD_LIBRARY_PATH=$packed/lib:$LD_LIBRARY_PATH GTEST_TOTAL_SHARDS=$shards
threads=$(($(nproc) / shards))
export OMP_NUM_THREADS=$((threads > 0 ? threads : 1))

begin=$SECONDS children=()
for ((shard = 0; shard < shards; ++shard)); do
  # What a killed program has not written is lost, so each line is written at once.
  GTEST_SHARD_INDEX=$shard timeout --kill-after=10 "$limit" \
    stdbuf -oL "${checker[@]}" "$packed/tests/sft_gpu_test" --gtest_filter="$filter" > "$logs/tests-$shard.log" 2>&1 &
  children+=($!)
done
failed=0
for child in "${children[@]}"; do
  wait "$child"
  code=$?
  [ $code -eq 0 ] || { failed=1; echo "run_tests: a shard ended with $code"; }
done
of() { cat "$logs"/tests-*.log | grep -cE "$1"; }
echo "run_tests: $(of '^\[       OK \] .* ms\)$') passed, $(of '^\[  SKIPPED \] .* ms\)$') skipped," \
  "$(of '^\[  FAILED  \] .* ms\)$') failed, after $((SECONDS - begin)) s${checker:+, under ${checker[0]}}"
[ "$(of '^\[       OK \] .* ms\)$')" -gt 0 ] || { failed=1; echo "run_tests: no test of \"$filter\" passed"; }
[ ${#checker[@]} -eq 0 ] || grep -h 'ERROR SUMMARY' "$logs"/tests-*.log
if [ $failed -ne 0 ]; then
  # What was under way when a shard was ended is its last line.
  grep -h -E '^\[  FAILED  \] .* ms\)$' "$logs"/tests-*.log
  grep -h -E -A 8 'Failure$|error:|what\(\)|Invalid __' "$logs"/tests-*.log | head -n 60
  tail -q -n 1 "$logs"/tests-*.log
fi
exit $failed
