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
  LD_LIBRARY_PATH=$packed/emulated/lib:$packed/lib:$packed/mpi/lib xargs -0 -n 1 ldd |
  grep '=>' | grep -v "=> $top" >"$top/foreign" || true
if grep -vE '/(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util))[.]so' "$top/foreign"; then
  echo "these libraries are not packed"
  exit 1
fi
cd "$top"

hide='
  set -e
  for hidden in "$2" /usr/lib/x86_64-linux-gnu/openmpi /usr/share/openmpi; do
    [ ! -d "$hidden" ] || mount --bind "$1/nothing" "$hidden"
  done
  mount --bind /dev/null "$(readlink -f "$(command -v mpirun)")"
  exec "$1/guozhuang-gpu/validate" --emulated --phase probe --phase kernels --phase copies \
    --phase direct_operations --phase direct_threads --phase staged_times --phase direct_beside \
    --phase trainer'
if unshare --mount true 2>/dev/null; then
  unshare --mount bash -c "$hide" prepared "$top" "$build"
else
  "$top/guozhuang-gpu/validate" --emulated
fi | tee "$top/said"
[ "$(grep -c '^PASS' "$top/said")" -ge 8 ]
