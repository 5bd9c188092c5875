#!/bin/sh
# Usage: pkg_config.sh COMPILER LIBDIR SOURCE: builds SOURCE with what pkg-config says of the
# library in LIBDIR, and runs it as one rank.
set -eu
export PKG_CONFIG_PATH="$2/pkgconfig"
program=$(mktemp)
trap 'rm -f "$program"' EXIT
# shellcheck disable=SC2046  # flags are words
"$1" -std=c++20 "$3" -o "$program" $(pkg-config --cflags --libs guozhuang) -Wl,-rpath,"$2"
"$program"
