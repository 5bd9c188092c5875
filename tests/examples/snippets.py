#!/usr/bin/env python3
"""snippets.py SOURCE_DIRECTORY COMPILER...: compiles every C++ snippet of README.md,
CONTRIBUTING.md and docs/, as what it is: a program, members of a class, or statements among the
things that a trainer has (snippets.hpp). Errors name the page and its line."""
import subprocess
import sys
from pathlib import Path

source, compiler = Path(sys.argv[1]), sys.argv[2:]
HERE = Path(__file__).resolve().parent


def snippets_of(page):
    """Each with the number of its first line."""
    inside = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if inside is None:
            inside = (number + 1, []) if line == "```cpp" else None
        elif line == "```":
            yield inside[0], "\n".join(inside[1])
            inside = None
        else:
            inside[1].append(line)
    assert inside is None, f"{page}:{inside[0]}: the snippet has no end"


def placed(name, text, line):
    if "int main(" in text:
        frame = f"namespace {name} {{", "}"
    elif text.startswith("template"):
        frame = f"struct {name} : Kept {{", f"}};\nstatic_assert(gz::StatefulOptimizer<{name}>);"
    else:
        frame = f"void {name}(int argc, char** argv) {{ (void)argc, (void)argv;", "}"
    return f"{frame[0]}\n{line}\n{text}\n{frame[1]}\n"


program, count = '#include "snippets.hpp"\n', 0
for page in [
    source / "README.md", source / "CONTRIBUTING.md", *sorted((source / "docs").rglob("*.md"))
]:
    for number, text in snippets_of(page):
        count += 1
        program += placed(f"snippet{count}", text, f'#line {number} "{page.relative_to(source)}"')
assert count >= 10, f"only {count} snippets found: where are they?"
command = [
    *compiler, "-std=c++20", "-Wall", "-Wextra", "-Wno-unused", "-Werror", "-Wno-return-type",
    "-fsyntax-only", f"-I{source}/include", f"-I{HERE}", "-x", "c++", "-",
]
sys.exit(subprocess.run(command, input=program, text=True).returncode)
