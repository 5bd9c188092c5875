#!/bin/sh
# refuse.sh CODE PATTERN COMMAND...: the command exits with that code, and says why once, not on every rank.
set -u
expected=$1
pattern=$2
shift 2
output=$("$@" 2>&1)
code=$?
echo "$output"
[ "$code" -eq "$expected" ] || { echo "exit code $code instead of $expected"; exit 1; }
lines=$(echo "$output" | grep -c -e "$pattern")
[ "$lines" -eq 1 ] || { echo "said $lines times instead of once"; exit 1; }
