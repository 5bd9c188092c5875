#!/usr/bin/env bash
# Usage: with_counts.sh WITH_COUNTS: what with_counts.py makes of the log of tests that count: sums,
# and a failure where one has passed in silence.
set -euo pipefail
with_counts=$1
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# passed NAME LINE: the log of a test that has passed, having printed this line.
passed() {
  printf '1/1 Testing: %s\nOutput:\n%s\nTest Passed.\n' "$1" "$2"
}

# expect CODE TEXT: what comes of the log.
expect() {
  local code=0 said
  said=$(echo "100% tests passed" | "$with_counts" "$log") || code=$?
  if [ "$code" != "$1" ] || ! grep -qF "$2" <<<"$said"; then
    echo "exit code $code instead of $1 with '$2': $said"
    exit 1
  fi
}

{ passed faults.quick "jobs: 3, hangs: 0"; passed faults.ends "jobs: 4, hangs: 0"
  passed unit.wait "all well"; } >"$log"
expect 0 "Done: jobs: 7"
passed faults.quick "" >"$log"
expect 1 "faults.quick has passed and does not say how much it has done"
passed faults.quick "jobs: 0, hangs: 0" >"$log"
expect 1 "faults.quick has passed and does not say how much it has done"
