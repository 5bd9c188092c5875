#!/bin/sh
# expect.sh CODE COUNT PATTERN COMMAND...: the command exits with that code, and exactly so many
# lines of its output match the extended regular expression. COUNT "some" is one or more: when the
# first rank has failed, mpirun kills those that have not printed theirs. A command that is skipped
# (code 77) is skipped here.
set -u
expected=$1
count=$2
pattern=$3
shift 3
output=$("$@" 2>&1)
code=$?
printf '%s\n' "$output"
[ "$code" -ne 77 ] || exit 77
[ "$code" -eq "$expected" ] || { echo "exit code $code instead of $expected"; exit 1; }
found=$(printf '%s\n' "$output" | grep -c -E -e "$pattern")
case $count in
  some) [ "$found" -gt 0 ] ;;
  *) [ "$found" -eq "$count" ] ;;
esac || { echo "$found lines instead of $count like: $pattern"; exit 1; }
