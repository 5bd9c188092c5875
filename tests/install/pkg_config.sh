#!/bin/sh
# Usage: pkg_config.sh PACKAGE LIBDIR SOURCE COMPILER...: builds SOURCE with what pkg-config says of
# the package in LIBDIR, and runs it as one rank.
set -eu
package=$1 libdir=$2 source=$3
shift 3
export PKG_CONFIG_PATH="$libdir/pkgconfig"
program=$(mktemp)
trap 'rm -f "$program"' EXIT
# shellcheck disable=SC2046  # flags are words
"$@" "$source" -o "$program" $(pkg-config --cflags --libs "$package") -Wl,-rpath,"$libdir"
"$program"
