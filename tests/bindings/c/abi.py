#!/usr/bin/env python3
"""Compares the binary interface of guozhuang.h and libguozhuang_c.so with the record of it.

    abi.py HEADER LIBRARY RECORD COMPILER [--update]

The interface is what the compiler sees of the header (sizes of structs, offsets and sizes of their
fields, values of enumerators), the declarations of functions, and the symbols that the library
exports. A line of the record never changes, or programs that were compiled before break, but for
the sizes of structs that begin with theirs, or that the library alone makes. New lines come by
--update, which refuses anything else.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path


MAY_GROW = re.compile(r"sizeof Gz(\w*Options|Error) = ")


def read(header):
    """The header without comments and directives."""
    text = re.sub(r"//[^\n]*", "", Path(header).read_text())
    text = text.replace("\\\n", "")
    return re.sub(r"^\s*#.*", "", text, flags=re.MULTILINE)


def fields_of(body):
    for declaration in filter(str.strip, body.split(";")):
        function = re.search(r"\(\*(\w+)\)", declaration)
        yield function[1] if function else re.search(r"(\w+)\s*$", declaration)[1]


def layout_questions(text):
    """Pairs of a name for the record and a C expression that has its value."""
    structs = re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, re.DOTALL)
    for name, body in structs:
        yield f"sizeof {name}", f"sizeof({name})"
        for field in fields_of(body):
            yield f"{name}.{field} offset", f"offsetof({name}, {field})"
            yield f"{name}.{field} bytes", f"sizeof((({name}*)0)->{field})"
    for body in re.findall(r"^enum \{(.*?)\};", text, re.DOTALL | re.MULTILINE):
        for enumerator in re.findall(r"GZ_\w+", body):
            yield enumerator, enumerator
    for name in re.findall(r"^typedef \w+ (\w+);", text, re.MULTILINE):
        yield f"sizeof {name}", f"sizeof({name})"


def layout(header, text, compiler):
    questions = list(layout_questions(text))
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "layout"
        prints = "".join(
            f'printf("%s = %lld\\n", "{name}", (long long)({value}));\n'
            for name, value in questions
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
    return {line.split()[-1] for line in symbols.splitlines() if line.split()[-2] != "A"}


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
    print("\n".join([*(f"- {line}" for line in gone), *(f"+ {line}" for line in new)]))
    if gone:
        print("programs that were compiled before would break")
    elif new and sys.argv[5:] == ["--update"]:
        Path(record).write_text("\n".join(lines) + "\n")
        return 0
    elif new:
        print(f"to record what is new: {' '.join(sys.argv[:5])} --update")
    return 1 if gone or new else 0


if __name__ == "__main__":
    sys.exit(main())
