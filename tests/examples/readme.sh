#!/bin/bash
# readme.sh SOURCE_DIRECTORY: the README and docs/gpu.md show the true difference between the two
# trainers, on CPUs and on GPUs, and the README the true hello.
set -euo pipefail
cd "$1"

# block PAGE LANGUAGE TEXT: the page's first fenced block of that language that contains the text.
block() {
    awk -v fence="\`\`\`$2" -v wanted="$3" '
        $0 == fence { inside = 1; text = ""; next }
        inside && $0 == "```" { inside = 0; if (index(text, wanted)) { printf "%s", text; exit } }
        inside { text = text $0 "\n" }' "$1"
}

# difference EXAMPLE
difference() {
    cd "examples/$1"
    diff -U1 train.cpp train_distributed.cpp | grep -v -e '^---' -e '^+++' -e '^@@'
}

# shows PAGE EXAMPLE
shows() {
    diff <(difference "$2") <(block "$1" diff guozhuang/guozhuang.hpp) ||
      { echo "$1: the difference of the trainers in examples/$2 is another"; exit 1; }
}

shows README.md fashion_mnist
shows docs/gpu.md fashion_mnist_cuda
diff examples/hello.cpp <(block README.md cpp 'int main') ||
  { echo "README.md: examples/hello.cpp is another"; exit 1; }
