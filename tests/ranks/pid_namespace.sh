#!/bin/sh
# pid_namespace.sh MPIRUN GZ_PERF: ranks in different containers, as far as process numbers go. They
# share no memory, one of them says so once, and what they compute is right.
set -u
# In a chroot the root is no mount, so it cannot be made private; /proc can.
apart="unshare -pf --propagation unchanged --mount-proc"
problem=$(LC_ALL=C $apart true 2>&1) || {
    echo "$apart: $problem"
    case $problem in *"not permitted"* | *"ermission denied"*) exit 77 ;; esac
    exit 1
}
allreduce="$2 allreduce --check --min-bytes 4 --max-bytes 1M --factor 512 --iterations 5"
output=$("$1" --oversubscribe --mca btl self,tcp -np 1 $allreduce : -np 1 $apart $allreduce 2>&1)
code=$?
echo "$output"
[ "$code" -eq 0 ] || { echo "exit code $code"; exit 1; }
[ "$(echo "$output" | grep -c 'warning: no memory shared by the ranks of this host (.*/fd/')" \
  -eq 1 ] || { echo "not said once"; exit 1; }
