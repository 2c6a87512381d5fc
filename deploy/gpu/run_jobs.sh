#!/usr/bin/env bash
# From a bundle alone: a dev server and worker on this machine's GPUs, then QLoRA jobs on random-weight
# models of the real size. Prints GPUs found, memory, loss, tokens/s and exit codes.
#
#   deploy/gpu/run_jobs.sh BUNDLE LOG_DIR [WORK_DIR]
#
# BUNDLE is an unpacked bundle or a tarball of one. One GPU trains Qwen3-8B; with four there are
# Qwen3-8B on one and Qwen3-32B on all four over NCCL. WORK_DIR (default: a new folder below /tmp, then
# removed) takes 18 GB for 8B and 85 GB with 32B. Needs python3 with torch 2.11; finishes in eight
# minutes. Exit 0 when every job succeeded.
set -uo pipefail
[ $# -ge 2 ] && [ $# -le 3 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d' >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bundle=$1 logs=$2
mkdir -p "$logs"
logs=$(cd "$logs" && pwd)
if [ $# -eq 3 ]; then work=$3; mkdir -p "$work"; else work=$(mktemp -d); fi
deadline=$((SECONDS + 465))
server_pid='' monitor_pid='' maker_pid=''

finish() {
  [ -n "$maker_pid" ] && pkill -P "$maker_pid"
  for pid in $maker_pid $monitor_pid $server_pid; do kill "$pid" 2> /dev/null; done
  [ -n "$server_pid" ] && wait "$server_pid" 2> /dev/null
  [ $# -eq 3 ] || rm -rf "$work"
}
trap 'finish "$@"' EXIT
fail() { echo "run_jobs: $*" >&2; exit 1; }
left() { echo $((deadline - SECONDS)); }

if [ -d "$bundle" ]; then
  bin=$(cd "$bundle/bin" && pwd)
else
  tar -C "$work" -xf "$bundle" || fail "cannot unpack $bundle"
  bin=$(echo "$work"/sft-*/bin)
fi
[ -x "$bin/sft-server" ] || fail "no sft-server in $bin"
export SFT_SERVER=127.0.0.1:7171
# NVLink multicast stays off unless the caller asks for it: on shared hosts it can leave GPUs unusable.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
ctl() { timeout 30 "$bin/sftctl" "$@"; }

gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)
echo "== machine: $gpus x $(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1), $(nproc) cores"
nvidia-smi --query-gpu=timestamp,index,memory.used,utilization.gpu --format=csv -l 2 > "$logs/nvidia_smi.csv" 2>&1 &
monitor_pid=$!

make_model() { # SIZE ROWS TOKENS: the last GPU, which the first job leaves alone
  CUDA_VISIBLE_DEVICES=$((gpus - 1)) python3 "$here/make_random_model.py" "$1" "$work/models/$1" \
    --rows "$work/$1.jsonl" --count "$2" --tokens "$3" > "$logs/make_$1.log" 2>&1
}
make_model qwen3-8b 64 2048 || { cat "$logs/make_qwen3-8b.log"; fail "no model"; }
tail -n 1 "$logs/make_qwen3-8b.log"
if [ "$gpus" -ge 4 ]; then
  make_model qwen3-32b 80 4096 &
  maker_pid=$!
fi

mkdir -p "$work/shared"
"$bin/sft-server" --dev --listen "$SFT_SERVER" --data-dir "$work/data" --models "$work/models" \
  --shared "$work/shared" > "$logs/server.log" 2>&1 &
server_pid=$!
type=''
for _ in $(seq 60); do
  kill -0 $server_pid 2> /dev/null || { tail -n 20 "$logs/server.log"; fail "the server has ended"; }
  type=$(ctl nodes --json 2> "$logs/nodes.err" | python3 -c 'import json, sys
print(next((s["gpu_type"] for n in json.load(sys.stdin) for s in n["slots"] if s["gpu_type"] != "CPU"), ""))' 2> /dev/null)
  [ -n "$type" ] && break
  sleep 0.5
done
ctl nodes | tee "$logs/nodes.txt"
ctl variants > "$logs/variants.txt"
ctl models > "$logs/models.txt" 2>&1
[ -n "$type" ] || { tail -n 30 "$logs/server.log"; fail "the worker shows no GPU"; }

# run_job NAME GPUS TOKENS BATCH ACCUMULATION STEPS LIMIT
run_job() {
  local name=$1 count=$2 job code begin=$SECONDS
  cat > "$logs/$name.toml" << TOML
[job]
model = "$work/models/$name"
data = "$work/$name.jsonl"
[compute]
gpu_type = "$type"
gpu_count = $count
[training]
mode = "qlora"
[data]
loss_on = "all"
[hyperparameters]
sequence_length = $3
per_device_batch = $4
gradient_accumulation_steps = $5
max_steps = $6
n_epochs = 1
learning_rate = 1e-4
[hyperparameters.parallelism]
activation_checkpointing = true
[lora]
r = 16
alpha = 32
TOML
  echo "== $name on $count x $type, sequence $3, batch $4, accumulation $5"
  ctl submit "$logs/$name.toml" --dry-run > "$logs/$name.plan.txt" 2>&1
  job=$(ctl submit "$logs/$name.toml" --json 2> "$logs/$name.submit.err" \
    | python3 -c 'import json, sys; print(json.load(sys.stdin)["job"])') \
    || { cat "$logs/$name.submit.err"; return 1; }
  timeout "$7" "$bin/sftctl" metrics "$job" --follow > "$logs/$name.metrics.txt" 2>&1 &
  local follower=$!
  timeout $(($7 + 10)) "$bin/sftctl" wait "$job" --timeout "$7s" > "$logs/$name.wait.txt" 2>&1
  code=$?
  kill $follower 2> /dev/null
  ctl metrics "$job" --json > "$logs/$name.metrics.jsonl" 2> "$logs/$name.metrics.err"
  ctl events "$job" > "$logs/$name.events.txt" 2>&1
  for ((rank = 0; rank < count; ++rank)); do
    ctl logs "$job" --rank $rank > "$logs/$name.rank$rank.log" 2>&1
  done
  ctl logs "$job" --prepare > "$logs/$name.prepare.log" 2>&1
  ctl status "$job" --json > "$logs/$name.status.json" 2>&1
  cat "$logs/$name.metrics.txt"
  python3 "$here/summarise_metrics.py" "$logs/$name.metrics.jsonl" "$count"
  echo "-- $job: sftctl wait exit $code after $((SECONDS - begin)) s"
  if [ $code -eq 0 ]; then
    ctl download "$job" -o "$work/$name.adapter" > "$logs/$name.download.txt" 2>&1 \
      && find "$work/$name.adapter" -type f -printf '   %f %s bytes\n'
  else
    cat "$logs/$name.wait.txt"
    tail -n 15 "$logs/$name.events.txt" "$logs/$name.prepare.log" "$logs/$name.rank0.log"
    ctl cancel "$job" > /dev/null 2>&1
  fi
  return $code
}

failed=0
run_job qwen3-8b 1 2048 2 4 8 $(($(left) > 200 ? 200 : $(left))) || failed=1
if [ -n "$maker_pid" ]; then
  wait $maker_pid || { tail -n 3 "$logs/make_qwen3-32b.log"; fail "no 32B model"; }
  maker_pid=''
  tail -n 1 "$logs/make_qwen3-32b.log"
  run_job qwen3-32b 4 4096 1 4 5 "$(left)" || failed=1
fi
exit $failed
