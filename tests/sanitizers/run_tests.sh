#!/usr/bin/env bash
# Usage: run_tests.sh asan|tsan: builds the tests of one process, and of how ranks begin, talk and
# end, under that preset, and runs them, but for the slow ones; under asan those of tensors on
# emulated GPUs too, where CUDA's headers are. What else runs under mpirun, unit tests do as well,
# with ranks that are threads.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
preset=$1
cmake --preset "$preset"
rm -f "build/$preset/lib/libguozhuang_cuda.so"  # of an earlier build: device_test skips it
targets=(guozhuang_unit guozhuang_transport mpi_lifecycle session_lifecycle start_and_stop)
emulated='^emulation\.ranks\.(operations\.small|nccl)\.np3$'
has_emulation() {
  [[ $(ctest --test-dir "build/$preset" --show-only --tests-regex "$emulated") == *small.np3* ]]
}
if has_emulation; then targets+=(guozhuang_cuda_ranks); fi
cmake --build --preset "$preset" --target "${targets[@]}"
# Not out_of_memory: what the sanitizers cannot allocate, they end the process for. Not
# fork_under_load, whose forks take a second each. Not the walks and the simulated hosts, which
# compute for minutes. Three ranks where there is a choice (see rank_counts() too): more or fewer
# show little that is new, but take their time.
excluded='np[1247]$|hosts|out_of_memory|fork_under_load|negotiator_walk'
under=()
case $preset in
  asan)
    # Not what lets go of objects for good: children of fork() leave their parent's alone. Not
    # thousand_cycles, which looks for memory that grows: what is freed is kept for a while here.
    # Not vptr (in the preset): its check needs a descriptor, and some tests leave none. Nor
    # function: CUDA hands out its functions as void*.
    excluded+='|child_|forgotten|thousand_cycles'
    export UBSAN_OPTIONS=print_stacktrace=1
    export LSAN_OPTIONS=print_suppressions=0:suppressions=$here/leaks.supp
    ;;
  tsan)
    # Not where one thread calls MPI beside the library's: MPI's own synchronisation is not
    # instrumented.
    excluded+='|mpi_multiple'
    # With the names of functions, which suppressions are of: addr2line comes with every compiler.
    export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$here/threads.supp
    TSAN_OPTIONS+=:external_symbolizer_path=$(command -v addr2line)
    # Clang 16's ThreadSanitizer cannot live with the address randomisation of newer kernels.
    if setarch --addr-no-randomize true 2>/dev/null; then under=(setarch --addr-no-randomize); fi
    ;;
esac
# Two for each core: tests that are ranks wait more than they compute.
run() {
  "${under[@]}" ctest --test-dir "build/$preset" --label-exclude slow --exclude-regex "$excluded" \
    --no-tests=error --output-on-failure \
    --parallel $((2 * $(nproc))) "$@"
}
run --label-regex unit
# Leaks are MPI's where its libraries are anywhere in the stack, which only the slow unwinder sees
# whole.
ASAN_OPTIONS=fast_unwind_on_malloc=0 run \
  --tests-regex '^ranks\.(transport|mpi_lifecycle|session_lifecycle|start_and_stop)\.'
if has_emulation; then ASAN_OPTIONS=fast_unwind_on_malloc=0 run --tests-regex "$emulated"; fi
