#!/bin/bash
# library_preset.sh SOURCE_DIRECTORY BUILD_DIRECTORY CMAKE COMPILER: the preset `library` builds the
# library and its tools, and nothing else.
set -euo pipefail
"$3" -S "$1" -B "$2" --preset library -DCMAKE_CXX_COMPILER="$4" -DGUOZHUANG_CUDA=OFF
steps=$("$3" --build "$2" -- -n)
for wanted in libguozhuang.so gz-info gz-timeline gzrun; do
  grep -q "Linking.*$wanted" <<<"$steps" ||
    { echo "$wanted would not be built:"; echo "$steps"; exit 1; }
done
if grep -E "object (tests|perf|examples)/" <<<"$steps"; then
  echo "the above would be built, which is no part of the library"
  exit 1
fi
