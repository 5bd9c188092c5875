#!/usr/bin/env bash
# Usage: unit_tests.sh asan|tsan: builds the unit tests under that preset and runs them.
set -euo pipefail
preset=$1
cmake --preset "$preset"
cmake --build --preset "$preset" --target guozhuang_unit
# Not vptr (in the preset): its check needs a descriptor, and some tests leave none.
# Not detect_stack_use_after_return: GCC 12 then puts the vectors of AVX-512 on misaligned fake stacks.
export ASAN_OPTIONS=detect_stack_use_after_return=0 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
# GCC 12's ThreadSanitizer cannot live with the address randomisation of newer kernels.
fixed_addresses=()
if [ "$preset" = tsan ] && setarch --addr-no-randomize true 2>/dev/null; then fixed_addresses=(setarch --addr-no-randomize); fi
"${fixed_addresses[@]}" ctest --test-dir "build/$preset" --label-regex unit --label-exclude slow --no-tests=error --output-on-failure --parallel "$(nproc)"
