#!/usr/bin/env python3
"""Compares the binary interface of guozhuang.h and libguozhuang_c.so with the record of it.

    abi.py HEADER LIBRARY RECORD COMPILER [--update]

The interface is what the compiler sees of the header (sizes of structs, types, offsets and sizes of
their fields, values of enumerators), the declarations of functions, and the symbols that the
library exports, except private ones. A line of the record never changes, or programs that were
compiled before break, but for the sizes of structs that begin with theirs. These grow at their end:
a field in what was padding would not be seen by their size. New lines come by --update, which
refuses anything else.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path


MAY_GROW = re.compile(r"sizeof (Gz\w*Options|GzError) = (\d+)")
FIELD = re.compile(r"(Gz\w+)\.\w+: .* at (\d+), (\d+) bytes")


def read(header):
    """The header, and those beside it that it includes, without comments and directives."""
    headers = sorted(Path(header).parent.glob("guozhuang*.h"))
    text = re.sub(r"//[^\n]*", "", "".join(each.read_text() for each in headers))
    text = text.replace("\\\n", "")
    return re.sub(r"^\s*#.*", "", text, flags=re.MULTILINE)


def fields_of(body):
    """Pairs of a field's name and its declaration."""
    for declaration in filter(str.strip, body.split(";")):
        function = re.search(r"\(\*(\w+)\)", declaration)
        name = function or re.search(r"(\w+)\s*$", declaration)
        yield name[1], " ".join(declaration.split())


def layout_questions(text):
    """Pairs of a format for a line of the record and the C expressions that are its values."""
    structs = re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.DOTALL)
    for name, body in structs:
        yield f"sizeof {name} = %lld", [f"sizeof({name})"]
        for field, declaration in fields_of(body):
            yield (f"{name}.{field}: {declaration} at %lld, %lld bytes",
                   [f"offsetof({name}, {field})", f"sizeof((({name}*)0)->{field})"])
    for body in re.findall(r"^enum \{(.*?)\};", text, re.DOTALL | re.MULTILINE):
        for enumerator in re.findall(r"GZ_\w+", body):
            yield f"{enumerator} = %lld", [enumerator]
    for type_, name in re.findall(r"^typedef (\w+) (\w+);", text, re.MULTILINE):
        yield f"{name}: {type_}, %lld bytes", [f"sizeof({name})"]


def layout(header, text, compiler):
    questions = list(layout_questions(text))
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "layout"
        prints = "".join(
            f'printf("{line}\\n", {", ".join(f"(long long)({value})" for value in values)});\n'
            for line, values in questions
        )
        program.with_suffix(".c").write_text(
            f'#include "{Path(header).resolve()}"\n#include <stdio.h>\n'
            f"int main(void) {{\n{prints}return 0;\n}}\n"
        )
        subprocess.run(
            [compiler, "-std=c99", program.with_suffix(".c"), "-o", program], check=True
        )
        return subprocess.run(
            [program], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.splitlines()


def functions(text):
    return {
        re.search(r"(\w+)\(", declaration)[1]: " ".join(declaration.split())
        for declaration in re.findall(r"^GZ_API (.*?);", text, re.DOTALL | re.MULTILINE)
    }


def exported(library):
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return {line.split()[-1] for line in symbols.splitlines()
            if line.split()[-2] != "A" and not line.endswith("@@GUOZHUANG_C_PRIVATE")}


def misplaced(lines, known):
    """Fields that a program's size of a struct does not tell from what it has: those in what was
    padding, and any that would be followed by padding at the end."""
    sizes = {match[1]: int(match[2]) for match in map(MAY_GROW.match, lines) if match}
    sizes_before = {match[1]: int(match[2]) for match in map(MAY_GROW.match, known) if match}
    ends = {}
    for match in filter(None, map(FIELD.match, lines)):
        offset, size = int(match[2]), int(match[3])
        ends[match[1]] = offset + size
        if match[0] not in known and offset < sizes_before.get(match[1], 0):
            yield f"{match[0]}: in what was padding"
    for name, size in sizes.items():
        if ends[name] != size:
            yield f"{name}: padding at its end"


def main():
    header, library, record, compiler = sys.argv[1:5]
    text = read(header)
    declared = functions(text)
    versioned = {symbol.split("@")[0]: symbol for symbol in exported(library)}
    lines = layout(header, text, compiler)
    lines += sorted(f"{declaration};" for declaration in declared.values())
    lines += sorted(f"exported {symbol}" for symbol in versioned.values())
    if set(versioned) != set(declared):
        print("declared or exported, but not both:", sorted(set(versioned) ^ set(declared)))
        return 1
    known = Path(record).read_text().splitlines() if Path(record).exists() else []
    gone = [line for line in known if line not in lines and not MAY_GROW.match(line)]
    new = [line for line in lines if line not in known]
    wrong = list(misplaced(lines, known))
    print("\n".join([*(f"- {line}" for line in gone), *(f"+ {line}" for line in new), *wrong]))
    if wrong:
        print("a struct grows at its end")
    elif gone:
        print("programs that were compiled before would break")
    elif new and sys.argv[5:] == ["--update"]:
        Path(record).write_text("\n".join(lines) + "\n")
        return 0
    elif new:
        print(f"to record what is new: {' '.join(sys.argv[:5])} --update")
    return 1 if gone or new or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
