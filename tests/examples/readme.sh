#!/bin/bash
# readme.sh SOURCE_DIRECTORY: README and pages show the true difference between the two trainers of
# each example, and README and docs/c.md the true hello.
set -euo pipefail
cd "$1"

# block PAGE LANGUAGE TEXT: the page's first fenced block of that language that contains the text.
block() {
    awk -v fence="\`\`\`$2" -v wanted="$3" '
        $0 == fence { inside = 1; text = ""; next }
        inside && $0 == "```" { inside = 0; if (index(text, wanted)) { printf "%s", text; exit } }
        inside { text = text $0 "\n" }' "$1"
}

# difference EXAMPLE SUFFIX
difference() {
    cd "examples/$1"
    diff -U1 "train.$2" "train_distributed.$2" | grep -v -e '^---' -e '^+++' -e '^@@'
}

# shows PAGE EXAMPLE SUFFIX [TEXT]: by the text, if the page has several.
shows() {
    diff <(difference "$2" "$3") <(block "$1" diff "${4:-include <guozhuang}") ||
      { echo "$1: the difference of the trainers in examples/$2 is another"; exit 1; }
}

# says_hello PAGE LANGUAGE FILE
says_hello() {
    diff "$3" <(block "$1" "$2" 'int main') || { echo "$1: $3 is another"; exit 1; }
}

shows README.md fashion_mnist cpp
shows docs/gpu.md fashion_mnist_cuda cpp
shows docs/c.md c c
shows docs/libtorch.md torch cpp
shows docs/integrations.md dlib cpp DistributedSolver
shows docs/integrations.md eigen cpp parameters_of
says_hello README.md cpp examples/hello.cpp
says_hello docs/c.md c examples/c/hello.c
