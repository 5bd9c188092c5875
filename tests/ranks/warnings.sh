#!/bin/sh
# warnings.sh COMMAND...: what every rank would warn about is said once, on a line that names the
# rank. The command is bound to one processor here, and runs rank 1 without shared memory.
set -u
export GUOZHUANG_FUSION_BYTE=1 OMP_NUM_THREADS=1000
processors=$(nproc --all)
first=$(taskset -pc $$ | sed 's/.*: //; s/[-,].*//')
output=$(taskset -c "$first" "$@" 2>&1 >/dev/null)
code=$?
echo "$output"
[ "$code" -eq 0 ] || { echo "exit code $code"; exit 1; }

# said PATTERN TIMES
said() {
    lines=$(echo "$output" | grep -c -e "$1")
    [ "$lines" -eq "$2" ] || { echo "said $lines times instead of $2: $1"; exit 1; }
}
said 'FUSION_BYTE ' 1
said '^guozhuang\[0\] warning: GUOZHUANG_FUSION_BYTE is not a variable of this version' 1
refusal='no memory shared by the ranks of this host (GUOZHUANG_SHARED_MEMORY=0 on rank 1)'
said "^guozhuang\[1\] warning: $refusal" 1
said 'no memory shared' 1
[ "$processors" -gt 1 ] || exit 0
said 'OMP_NUM_THREADS' 1
said '^guozhuang\[0\] warning: OMP_NUM_THREADS is 1000, but the process is bound to 1 of' 1
