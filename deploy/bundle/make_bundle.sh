#!/usr/bin/env bash
# Makes the relocatable tarball that operators unpack on a node: dist/sft-VERSION-linux-x86_64.tar.xz.
#
#   deploy/bundle/make_bundle.sh BUILD_DIR [OUT_DIR]
#
# It holds all programs, the CUDA plugin where the build has one, the shared libraries of theirs that
# the target need not have, configs, docs, proto, the license, systemd units, monitoring, manifests, what Slurm needs and the list of torch's wheels. It does
# not hold torch (4.8 GB): the worker finds the node's by --torch DIR, or in the bundle's folder site-packages
# (a link to where torch's wheels are, which sft-rank started by hand needs), or by asking python3.
#
# Refuses what would not start elsewhere: a library that is neither in the bundle nor the C and C++
# run time nor torch's, symbols newer than Ubuntu 24.04 has, a run path of this machine or one that would win
# over --torch, more than SFT_BUNDLE_MAX_MB (40) MB. For tests: SFT_BUNDLE_RANK is a program in the place of sft-rank,
# SFT_BUNDLE_LEVEL (9: its window of 64 MB sees what the programs have in common) xz's.
set -euo pipefail
[ $# -ge 1 ] && [ $# -le 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d' >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
out=${2:-$root/dist}

programs=(sft-server sft-worker sft-shim sftctl sft-data sft-rank)
# Every Linux with glibc has these; the newest symbol versions used are checked below.
base='^(libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|ld-linux-x86-64)\.so'
torch='^(libtorch|libtorch_cpu|libtorch_cuda|libc10|libc10_cuda|libcudart|libcublasLt|libcudnn|libnvrtc|libgomp)\b'
newest_glibc=2.39 newest_glibcxx=3.4.33  # Ubuntu 24.04

fail() { echo "make_bundle: $*" >&2; exit 1; }
needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }
runpath() { readelf -d "$1" | sed -n 's/.*(R\(UN\)\?PATH).*\[\(.*\)\]/\2/p'; }
cached() { sed -n "s/^$1:PATH=//p" "$build/CMakeCache.txt"; }
# What a file of the build finds in folders of torch's wheels, a file of the bundle finds below site-packages.
bundle_runpath() {
  local path part
  path=$2
  for part in $(runpath "$1" | tr : ' '); do
    part=${part/#"$torch_dir"\//\$ORIGIN/../site-packages/torch/}
    part=${part/#"$site_packages"\//\$ORIGIN/../site-packages/}
    [[ $part == \$ORIGIN/../site-packages/* && :$path: != *:"$part":* ]] && path+=:$part
  done
  echo "$path"
}
# The newest version of a symbol family (GLIBC, GLIBCXX) that a file asks for.
newest() { objdump -T "$2" | sed -n "s/.*[ (]$1_\([0-9.]*\).*/\1/p" | sort -Vu | tail -n 1; }
at_most() { [ -z "$1" ] || [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | tail -n 1)" = "$2" ]; }
library_file() { ldconfig -p | awk -v name="$1" '$1 == name && /x86-64/ {print $NF; exit}'; }

version=$(sed -n 's/.*kVersion\[\] = "\(.*\)".*/\1/p' "$build/generated/common/base/version.h")
[ -n "$version" ] || fail "$build has no generated version: is it a build folder?"
torch_dir=$(cached SFT_TORCH_DIR) site_packages=$(cached SFT_SITE_PACKAGES)
name=sft-$version-linux-x86_64
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/$name
mkdir -p "$stage/bin" "$stage/lib" "$out"

for program in "${programs[@]}"; do
  if [ "$program" = sft-rank ] && [ -n "${SFT_BUNDLE_RANK:-}" ]; then
    cp "$SFT_BUNDLE_RANK" "$stage/bin/sft-rank"
    continue
  fi
  [ -x "$build/bin/$program" ] || fail "$build/bin/$program is not built"
  cp "$build/bin/$program" "$stage/bin/"
done
if [ -f "$build/lib/libsft_cuda.so" ]; then
  cp "$build/lib/libsft_cuda.so" "$stage/lib/"
else
  echo "make_bundle: this build has no CUDA plugin: the bundle trains on CPUs alone"
fi

# Libraries that have no static archive in the distribution, and what those need in turn.
copy_libraries() {
  local file library source
  for file in "$@"; do
    for library in $(needed "$file"); do
      [[ $library =~ $base || $library =~ $torch ]] && continue
      [ -e "$stage/lib/$library" ] && continue
      source=$(library_file "$library")
      [ -n "$source" ] || fail "$(basename "$file") needs $library, which this machine has not"
      cp -L "$source" "$stage/lib/$library"
      copy_libraries "$stage/lib/$library"
    done
  done
}
copy_libraries "$stage"/bin/*

for file in "$stage"/bin/* "$stage"/lib/*; do
  [ -f "$file" ] || continue
  chmod u+w "$file"
  strip --strip-unneeded "$file"
  case $file in
    */bin/*) patchelf --set-rpath "$(bundle_runpath "$file" '$ORIGIN/../lib')" "$file" ;;
    *) patchelf --set-rpath "$(bundle_runpath "$file" '$ORIGIN')" "$file" ;;
  esac
done

glibc='' glibcxx=''
for file in "$stage"/bin/* "$stage"/lib/*; do
  [ -f "$file" ] || continue
  short=${file#"$stage"/}
  for library in $(needed "$file"); do
    [[ $library =~ $base || $library =~ $torch ]] || [ -e "$stage/lib/$library" ] \
      || fail "$short needs $library, which the bundle has not"
    case $short in bin/sft-rank | lib/libsft_cuda.so) ;; *)
      [[ $library =~ $torch ]] && fail "$short needs $library: only ranks may need torch" ;;
    esac
  done
  [[ $(runpath "$file") =~ (^|:)/ ]] && fail "$short has an absolute run path: $(runpath "$file")"
  # RUNPATH is searched after LD_LIBRARY_PATH, in which the worker names its torch; RPATH before.
  readelf -d "$file" | grep -q '(RPATH)' && fail "$short has an RPATH, which wins over the worker's --torch"
  file_glibc=$(newest GLIBC "$file") file_glibcxx=$(newest GLIBCXX "$file")
  at_most "$file_glibc" $newest_glibc || fail "$short needs GLIBC $file_glibc, newer than $newest_glibc"
  at_most "$file_glibcxx" $newest_glibcxx \
    || fail "$short needs GLIBCXX $file_glibcxx, newer than $newest_glibcxx"
  glibc=$(printf '%s\n%s\n' "$glibc" "$file_glibc" | sort -V | tail -n 1)
  glibcxx=$(printf '%s\n%s\n' "$glibcxx" "$file_glibcxx" | sort -V | tail -n 1)
done

cp -r "$root/configs" "$root/docs" "$root/proto" "$root/README.md" "$root/CHANGELOG.md" "$root/LICENSE" "$stage/"
# The rows that configs/demo.toml names.
mkdir -p "$stage/deploy/demo"
cp "$root"/deploy/demo/*.jsonl "$stage/deploy/demo/"
cp -r "$root/deploy/systemd" "$stage/systemd"
cp -r "$root/deploy/monitoring" "$stage/monitoring"
cp -r "$root/deploy/slurm" "$stage/slurm"
cp -r "$root/deploy/kubernetes" "$stage/kubernetes"
mkdir -p "$stage/requirements"
cp "$root"/deploy/requirements/torch-*.txt "$stage/requirements/"
find "$stage" -name CMakeLists.txt -delete
rmdir --ignore-fail-on-non-empty "$stage/lib"

# From here on as on a node: other folder, no environment. Ranks start once torch's folder is known.
for program in "${programs[@]}"; do
  [ "$program" = sft-rank ] && continue
  env -i PATH=/usr/bin:/bin "$stage/bin/$program" --version > "$work/version" 2>&1 \
    || fail "$program --version fails: $(head -n 5 "$work/version")"
  grep -qF "$version" "$work/version" \
    || fail "$program --version says \"$(head -n 1 "$work/version")\", not $version"
done
if [ -z "${SFT_BUNDLE_RANK:-}" ]; then
  env -i PATH=/usr/bin:/bin LD_LIBRARY_PATH="$torch_dir/lib" "$stage/bin/sft-rank" --version > "$work/version" 2>&1 \
    || fail "sft-rank --version fails with torch in $torch_dir/lib: $(head -n 5 "$work/version")"
  # By hand, with the link that the README names.
  mkdir "$work/wheels"
  ln -s "$site_packages"/* "$work/wheels/"
  ln -sfn "$torch_dir" "$work/wheels/torch"
  ln -s "$work/wheels" "$stage/site-packages"
  env -i PATH=/usr/bin:/bin "$stage/bin/sft-rank" --version > "$work/version" 2>&1 \
    || fail "sft-rank --version fails with the link site-packages: $(head -n 5 "$work/version")"
  if [ -f "$stage/lib/libsft_cuda.so" ]; then
    lacks=$(env -i PATH=/usr/bin:/bin ldd "$stage/lib/libsft_cuda.so" | grep 'not found' || true)
    [ -z "$lacks" ] || fail "lib/libsft_cuda.so, with the link site-packages, does not find $lacks"
  fi
  rm "$stage/site-packages"
fi

tarball=$out/$name.tar.xz
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner -c "$name" | xz -"${SFT_BUNDLE_LEVEL:-9}" -T0 > "$tarball"
bytes=$(stat -c %s "$tarball")
limit=${SFT_BUNDLE_MAX_MB:-40}
[ "$bytes" -le $((limit * 1000000)) ] || fail "$tarball has $bytes bytes, more than $limit MB"
(cd "$stage" && find bin $([ ! -d lib ] || echo lib) -type f -printf '%s %p\n' | sort -k 2 | awk '{printf "  %8.1f MB  %s\n", $1 / 1e6, $2}')
awk -v b="$bytes" -v t="$tarball" -v c="$glibc" -v x="$glibcxx" \
  'BEGIN {printf "make_bundle: %s, %.1f MB; needs GLIBC %s, GLIBCXX %s\n", t, b / 1e6, c, x}'
