#!/usr/bin/env bash
# prepared.sh SOURCE_DIRECTORY BUILD_DIRECTORY: what tools/gpu/prepare packs is complete. It is
# unpacked elsewhere and run on the emulation, where the machine's Open MPI and the build are
# hidden, if this user may hide them.
set -euo pipefail
source=$1
build=$2
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
"$source/tools/gpu/prepare" --emulated --build "$build" "$top/packed.tar.gz"
tar -C "$top" -xzf "$top/packed.tar.gz"
mkdir "$top/nothing"

# Libraries that are found on this machine only, other than glibc's.
packed=$top/guozhuang-gpu
find "$packed" -type f \( -name '*.so*' -o -path '*/bin/*' \) -print0 |
  LD_LIBRARY_PATH=$(printf '%s:' "$packed"/{emulated/lib,lib,mpi/lib,mpi/compiler}) \
    xargs -0 -n 1 ldd |
  grep '=>' | grep -v "=> $top" >"$top/foreign" || true
if grep -vE '/(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util))[.]so' "$top/foreign"; then
  echo "these libraries are not packed"
  exit 1
fi
cd "$top"

hide='
  set -e
  for hidden in "$2" /etc/openmpi /usr/share/openmpi \
      /usr/lib/x86_64-linux-gnu/{openmpi,pmix2,hwloc}; do
    [ ! -d "$hidden" ] || mount --bind "$1/nothing" "$hidden"
  done
  for hidden in mpirun ssh rsh; do
    ! found=$(command -v $hidden) || mount --bind /dev/null "$(readlink -f "$found")"
  done
  # As one that is older than the compiler.
  mount --bind /dev/null "$(readlink -f /usr/lib/x86_64-linux-gnu/libstdc++.so.6)"
  exec "$1/guozhuang-gpu/validate" "${@:3}"'
phases=(preflight probe kernels direct_threads nccl_operations direct_operations trainer
  staged_times direct_beside)
arguments=(--emulated --json "$top/said.json" "${phases[@]/#/--phase=}")
if unshare --mount true 2>/dev/null; then
  unshare --mount bash -c "$hide" prepared "$top" "$build" "${arguments[@]}"
else
  "$top/guozhuang-gpu/validate" "${arguments[@]}"
fi | tee "$top/said"
[ "$(grep -c '^PASS' "$top/said")" = ${#phases[@]} ]
