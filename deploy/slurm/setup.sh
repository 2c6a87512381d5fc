#!/usr/bin/env bash
# Writes the settings that worker.sbatch reads, after it has looked whether workers would start with
# them. Run it where sbatch works, as the user whose Slurm jobs the workers shall be: docs/slurm.md.
#
#   deploy/slurm/setup.sh --server HOST:PORT --join-token-file FILE --models DIR [--models DIR]... [more]
#
#   --home DIR       the unpacked bundle, in a folder that all nodes see (default: the one this script is in)
#   --settings FILE  where the settings go (default: ~/.config/sft/slurm.env), in a folder that all nodes see
#   --scratch DIR    a folder of each node for what a worker needs while it runs (default: $TMPDIR or /tmp there)
#   --shared DIR     a folder that all nodes see, for checkpoints and full models
#   --lead TIME      before the end of an allocation, for checkpoints and their upload (default: 5m)
#   --sbatch 'OPTIONS'  with which `sbatch --test-only` is asked whether such a job could run
#   -- OPTIONS       more options of sft-worker
set -euo pipefail
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d'; }
fail() { echo "setup.sh: $*" >&2; exit 1; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=$(cd "$here/.." && pwd)
settings=$HOME/.config/sft/slurm.env
server='' token='' scratch='' shared='' lead=5m sbatch_options='' models=() more=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --) shift; more=("$@"); break ;;
    --server | --join-token-file | --models | --home | --settings | --scratch | --shared | --lead | --sbatch)
      [ $# -ge 2 ] || fail "$1 needs a value" ;;&
    --server) server=$2 ;;
    --join-token-file) token=$2 ;;
    --models) models+=("$2") ;;
    --home) home=$2 ;;
    --settings) settings=$2 ;;
    --scratch) scratch=$2 ;;
    --shared) shared=$2 ;;
    --lead) lead=$2 ;;
    --sbatch) sbatch_options=$2 ;;
    *) fail "unknown option $1 (see setup.sh --help)" ;;
  esac
  shift 2
done

[ -n "$server" ] || fail "--server HOST:PORT is missing"
[[ $lead =~ ^[0-9]+[smhd]?$ ]] || fail "--lead $lead: not a time such as 5m"
for program in sbatch squeue scontrol; do
  command -v "$program" > /dev/null || fail "there is no $program here: run this where Slurm jobs are submitted"
done
home=$(realpath -e "$home") || fail "--home: no such folder"
for program in sft-worker sft-shim sft-rank; do
  [ -x "$home/bin/$program" ] || fail "$home/bin/$program is missing: --home is the folder of the unpacked bundle"
done
if [ -n "$token" ]; then
  token=$(realpath -e "$token") || fail "--join-token-file: no such file"
  mode=$(stat -c %a "$token")
  [[ $mode == [46]00 ]] || fail "others may read $token (mode $mode): chmod 600 $token"
fi
options=()
for folder in "${models[@]}"; do
  folder=$(realpath -e "$folder") || fail "a folder of --models is not there"
  options+=(--models "$folder")
done
if [ -n "$shared" ]; then
  [ -w "$shared" ] || fail "--shared $shared cannot be written to"
  options+=(--shared "$(realpath -e "$shared")")
fi
options+=(${more[@]+"${more[@]}"})
for option in ${options[@]+"${options[@]}"}; do
  [[ $option != *[[:space:]\'\"\\\$\`*?[]* ]] || fail "\"$option\": spaces and quotes cannot be passed on to the workers"
done
if ! said=$(sbatch --test-only --time=60 $sbatch_options "$here/worker.sbatch" 2>&1); then
  fail "Slurm would not take the job (change it with --sbatch): $said"
fi

mkdir -p "$(dirname "$settings")"
umask 077
{
  echo "# Written by setup.sh; read by worker.sbatch."
  printf '%s=%q\n' SFT_HOME "$home" SFT_SERVER "$server" SFT_JOIN_TOKEN_FILE "$token" SFT_LEAVE_LEAD "$lead" \
    SFT_WORKER_OPTIONS "${options[*]}"
  [ -z "$scratch" ] || printf '%s=%q\n' SFT_SCRATCH "$scratch"
} > "$settings.new"
mv "$settings.new" "$settings"
echo "setup.sh: wrote $settings"
if [ "$settings" != "$HOME/.config/sft/slurm.env" ]; then
  echo "setup.sh: set SFT_SLURM_ENV=$settings where you call sbatch or autoscale.py"
fi
