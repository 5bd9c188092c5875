#!/bin/sh
# missing_data.sh COMMAND...: without its data set the trainer exits with 1 and says once, not on every rank, what to install or give.
set -u
output=$("$@" --data /nonexistent 2>&1)
code=$?
echo "$output"
[ "$code" -eq 1 ] || { echo "exit code $code instead of 1"; exit 1; }
lines=$(echo "$output" | grep -c -e 'dataset-fashion-mnist.*--data')
[ "$lines" -eq 1 ] || { echo "said $lines times instead of once"; exit 1; }
