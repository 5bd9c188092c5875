#!/bin/sh
# Usage: headers.sh COMPILER INCLUDEDIR: compiles each public header alone, with all warnings, and
# looks at what it drags in. Those for a framework need it.
set -eu
for header in "$2"/guozhuang/*.hpp; do
  name=guozhuang/${header##*/}
  case $name in */dlib.hpp | */eigen.hpp | */torch.hpp) continue ;; esac
  dragged=$(echo "#include <$name>" | "$1" -std=c++20 -Wall -Wextra -Wpedantic -Wshadow \
    -Wconversion -Werror -I"$2" -x c++ -fsyntax-only -H - 2>&1) ||
    { echo "$name does not compile on its own:"; echo "$dragged"; exit 1; }
  if echo "$dragged" | grep -E '/(mpi|nccl|cuda[a-z_]*|hwloc)\.h$|/fmt/|/hwy/'; then
    echo "$name brings in the above, which users need not have"
    exit 1
  fi
done
