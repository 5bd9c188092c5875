#!/usr/bin/env python3
"""How much there is to know: the house's figures, each with the limit that it must not pass.

    figures.py            prints them, and ends with 1 if one is above its limit
    figures.py self-test  the counting finds what it is there to find

A limit follows a figure down when that has shrunk, and is raised only with a reason. A type is a
class, struct, enum, concept or alias of the library, at namespace scope or inside another type;
types of the same name count once. A way is what a page's table of units names
(docs/way_of_a_gradient.md): the types that the code of these files and of their headers mentions,
comments and literals left out.
"""
import re
import sys
from pathlib import Path

from house import TOP, code_of, sources

LIBRARY = ("include/", "collectives/", "src/")
TYPE = re.compile(
    r"\b(?:struct|class|enum(?:\s+class)?)\s+(?:\w+\([^()]*(?:\([^()]*\))?\)\s+|GUOZHUANG_API\s+)*"
    r"(?:\w+::)*(\w+)(?:\s+final)?\s*(?::[^;{}()]*)?\{|\busing\s+(\w+)\s*=|\bconcept\s+(\w+)"
)
LIMITS = {
    "lines of the library": 43_260,
    "lines of tests for 100 of the library": 118,
    "names of types": 580,
    "names on the way of an allreduce on the host": 225,
    "names on the way of an allreduce on a GPU": 264,
    "units of the longer way": 27,
    "cases of operations in src": 0,
    "structs with an op or a scale": 6,
    "entries of the glossary": 150,
    "lines of libtorch's reducer": 150,
    "lines of PyTorch's gradients in Python": 640,
    "files of the library of 480 lines or more": 0,
}
LIBTORCH = ["bindings/torch/include/guozhuang/torch/reducer.hpp"]
PYTORCH = [f"bindings/python/src/guozhuang/torch/{name}.py"
           for name in ("gradients", "gradient", "reducer")]


def types_of(code):
    return {name for match in TYPE.finditer(code) for name in match.groups() if name}


def ways_of(page):
    """The files that each table of units names, without their folders and endings."""
    tables = re.findall(r"(?:^\|.*\|$\n?)+", page, re.MULTILINE)
    ways = [set(re.findall(r"`([\w/]+)\.(?:[hc]pp|cu)`", table)) for table in tables]
    return [way for way in ways if way]


def is_of(path, unit):
    """Whether the file is the unit's source or header; public headers lie in another folder."""
    stem = path.rsplit(".", 1)[0]
    return stem == unit or stem.endswith("/" + unit)


def names_met(way, library, names):
    code = "\n".join(text for path, text in library.items() if any(is_of(path, u) for u in way))
    return len(names & set(re.findall(r"\b\w+\b", code)))


def lines_of(files):
    return sum((TOP / path).read_text().count("\n") for path in files)


def holds_op(body):
    return re.search(r"\bReduceOp \w+ =|\bdouble (?:pre|post)?scale =", body)


def figures():
    every = dict(sources())
    library = {path: code_of(text) for path, text in every.items() if path.startswith(LIBRARY)}
    names = set().union(*(types_of(code) for code in library.values()))
    host, gpu = ways_of((TOP / "docs/way_of_a_gradient.md").read_text())
    lines = {
        folder: sum(text.count("\n") for path, text in every.items() if path.startswith(folder))
        for folder in (LIBRARY, "tests/")
    }
    bodies = [
        match[1]
        for path, code in library.items() if path.endswith(".hpp")
        for match in re.finditer(r"\b(?:struct|class) \w[^;{]*\{(.*?)\n\};", code, re.DOTALL)
    ]
    src = "\n".join(code for path, code in library.items() if path.startswith("src/"))
    glossary = (TOP / "docs/glossary.md").read_text()
    return {
        "lines of the library": lines[LIBRARY],
        "lines of tests for 100 of the library": round(100 * lines["tests/"] / lines[LIBRARY]),
        "names of types": len(names),
        "names on the way of an allreduce on the host": names_met(host, library, names),
        "names on the way of an allreduce on a GPU": names_met(gpu, library, names),
        "units of the longer way": max(len(host), len(gpu)),
        "cases of operations in src": len(re.findall(r"case [\w:]*OperationKind::", src)),
        "structs with an op or a scale": sum(bool(holds_op(body)) for body in bodies),
        "entries of the glossary": len(re.findall(r"^- \*\*", glossary, re.MULTILINE)),
        "lines of libtorch's reducer": lines_of(LIBTORCH),
        "lines of PyTorch's gradients in Python": lines_of(PYTORCH),
        "files of the library of 480 lines or more":
            sum(lines_of([path]) >= 480 for path in library),
    }


def self_test():
    code = "struct A {}; class Z::B final : public A { enum class C : int { x }; }; using D = int;"
    code += " template <class T> concept E = true; struct F; class alignas(64) G {};"
    page = "| a | `x.cpp` |\n| b | `y/z.hpp`, `w.cu` |\n\n| no unit |\n\n| `v.cpp` |\n"
    library = {"src/x.cpp": "A B", "src/y/z.hpp": "C", "src/z.hpp": "D", "include/p/v.hpp": "E"}
    names = set("ABCDE")
    return [
        text
        for text, is_right in {
            "types": types_of(code) == set("ABCDEG"),
            "tables": ways_of(page) == [{"x", "y/z", "w"}, {"v"}],
            "names": [names_met(w, library, names) for w in ways_of(page)] == [3, 1],
            "ops": holds_op("ReduceOp op = x;") and not holds_op("f(ReduceOp op);"),
        }.items() if not is_right
    ]


def main():
    if sys.argv[1:] == ["self-test"]:
        wrong = self_test()
        print("\n".join(f"wrong: {text}" for text in wrong))
        return 1 if wrong else 0
    above = 0
    for name, value in figures().items():
        above += value > LIMITS[name]
        print(f"{name}: {value} (at most {LIMITS[name]})" + " <--" * (value > LIMITS[name]))
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
