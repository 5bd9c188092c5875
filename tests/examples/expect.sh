#!/bin/sh
# expect.sh COUNT PATTERN COMMAND...: the command succeeds, and exactly so many lines of its output match the extended regular expression.
set -u
count=$1
pattern=$2
shift 2
output=$("$@")
code=$?
echo "$output"
[ "$code" -eq 0 ] || { echo "exit code $code"; exit 1; }
found=$(echo "$output" | grep -c -E -e "$pattern")
[ "$found" -eq "$count" ] || { echo "$found lines instead of $count like: $pattern"; exit 1; }
