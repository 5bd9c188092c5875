#!/bin/sh
# expect.sh PATTERN COMMAND...: the command succeeds, and a line of its output matches the extended regular expression.
set -u
pattern=$1
shift
output=$("$@")
code=$?
echo "$output"
[ "$code" -eq 0 ] || { echo "exit code $code"; exit 1; }
echo "$output" | grep -q -E -e "$pattern" || { echo "no line like: $pattern"; exit 1; }
