#!/bin/bash
# readme.sh SOURCE_DIRECTORY: the README shows the true difference between the two trainers, and the
# true hello.
set -euo pipefail
cd "$1"

# block LANGUAGE TEXT: the first fenced block of that language in the README that contains the text.
block() {
    awk -v fence="\`\`\`$1" -v wanted="$2" '
        $0 == fence { inside = 1; text = ""; next }
        inside && $0 == "```" { inside = 0; if (index(text, wanted)) { printf "%s", text; exit } }
        inside { text = text $0 "\n" }' README.md
}

difference() {
    cd examples/fashion_mnist
    diff -U1 train.cpp train_distributed.cpp | grep -v -e '^---' -e '^+++' -e '^@@'
}

diff <(difference) <(block diff guozhuang/guozhuang.hpp) ||
  { echo "README.md: the difference of the trainers is another"; exit 1; }
diff examples/hello.cpp <(block cpp 'int main') ||
  { echo "README.md: examples/hello.cpp is another"; exit 1; }
