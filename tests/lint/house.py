#!/usr/bin/env python3
"""The rules of the house that no compiler enforces.

    house.py includes     no file includes a room that docs/decisions/001-rooms.md does not give it,
                          and CMake agrees with that table
    house.py confined     what belongs into one place (mpi.h, getenv, waiting ...) appears nowhere
                          else
    house.py sizes        functions have at most 60 lines, and nine in ten at most 20; files have at
                          most 500; classes at most 20 data members; lines of code, comments and
                          Markdown at most 100 columns
    house.py words        no name, comment or page has a word that the house has given up, no
                         sentence of them opens without its subject, and none has a stream "of the
                         user's"
    house.py links        every relative link of a Markdown file leads somewhere, and every page of
                          docs is linked
    house.py self-test    each rule finds what it is there to find

Prints `file:line: what is wrong` and ends with 1 if there is anything to print.
"""
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
ROOM_TABLE = "docs/decisions/001-rooms.md"
SOURCE_FOLDERS = ("include", "collectives", "src", "bindings", "examples", "perf", "tests", "tools")
SOURCE_SUFFIXES = (".hpp", ".cpp", ".cu", ".cuh", ".h", ".c")
C_SUFFIXES = (*SOURCE_SUFFIXES, ".pml")  # with the comments and literals of C++
LARGEST_FUNCTION, LARGEST_USUAL_FUNCTION, LARGEST_FILE, WIDEST_LINE = 60, 20, 500, 100
MOST_MEMBERS = 20
# What has lines of its own width: data, pictures, and what programs wrote.
NO_TEXT_SUFFIXES = (
    ".svg", ".json", ".jsonl", ".dict", ".map", ".supp", ".pyc", ".txt.in", ".abi"
)


def sources():
    for folder in SOURCE_FOLDERS:
        for path in sorted((TOP / folder).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES:
                yield str(path.relative_to(TOP)), path.read_text()


def texts():
    """All that people write, and its text: sources, scripts, CMake files, models and Markdown."""
    for folder in ("", *SOURCE_FOLDERS, "cmake", "docs"):
        for path in sorted((TOP / folder).glob("**/*" if folder else "*")):
            if not path.is_file() or path.suffix in NO_TEXT_SUFFIXES:
                continue
            if "gradient_sets" in path.parts:
                continue
            try:
                yield str(path.relative_to(TOP)), path.read_text()
            except UnicodeDecodeError:
                continue


NOT_CODE = re.compile(
    r'(?P<prose>//[^\n]*|/\*.*?\*/)|R"(?P<end>\w*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"'
    r'|(?<![0-9a-fA-F])\'(?:\\.[^\']*|[^\'\\])\'',
    re.DOTALL,
)


def code_of(text):
    """The text with comments and literals blanked, line by line where they were."""
    return NOT_CODE.sub(lambda match: "\n" * match[0].count("\n") or " ", text)


def line_at(text, position):
    return text.count("\n", 0, position) + 1


# --- includes -------------------------------------------------------------------------------------


class Rooms:
    """The table of rooms: `| room | folder | may include | public headers |`, names in
    backquotes."""

    def __init__(self, markdown, cmake):
        self.may_use, self.folders, self.public = {}, {}, {}
        for row in re.findall(r"^\|(.*`.*)\|$", markdown, re.MULTILINE):
            room, folder, may_use, public = (
                re.findall(r"`([^`]+)`", cell) for cell in row.split("|")
            )
            self.may_use[room[0]] = set(may_use)
            self.folders[folder[0].rstrip("/") + "/"] = room[0]
            self.public[room[0]] = set(public)  # empty: all
        self.corridors = {
            name: paths.split()
            for name, paths in re.findall(
                r"^guozhuang_corridor\((\w+) ([^)]+)\)", cmake, re.MULTILINE
            )
        }

    def of(self, path):
        inside = [folder for folder in self.folders if path.startswith(folder)]
        return self.folders[max(inside, key=len)] if inside else None

    def allows(self, room, header):
        if header.startswith("guozhuang/"):
            return not self.public[room] or header.removeprefix("guozhuang/") in self.public[room]
        return any(
            header == path or header.startswith(path + "/")
            for corridor in self.may_use[room]
            for path in self.corridors[corridor]
        )

    def is_ours(self, header):
        return header.startswith("guozhuang/") or any(
            header.startswith(folder.removeprefix("src/")) for folder in self.folders
        )


def check_includes(rooms, path, text):
    room = rooms.of(path)
    if room is None:
        return
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', text, re.MULTILINE):
        header = match[1]
        if ".." in header.split("/"):
            yield (
                line_at(text, match.start()),
                f"{header} leaves the room by the window: name it from the top",
            )
        elif rooms.is_ours(header) and not rooms.allows(room, header):
            yield (
                line_at(text, match.start()),
                f"room {room} may not include {header} ({ROOM_TABLE})",
            )


def check_cmake_agrees(rooms, path, text):
    for match in re.finditer(r"guozhuang_room\((\w+)(.*?)\)", text, re.DOTALL):
        may_use = re.search(r"MAY_USE([^A-Z]*)", match[2])
        given = set(may_use[1].split()) if may_use else set()
        expected = rooms.may_use.get(match[1])
        if given != expected:
            yield (
                line_at(text, match.start()),
                f"room {match[1]} MAY_USE {sorted(given)}, "
                f"but {ROOM_TABLE} says {sorted(expected or [])}",
            )


def includes():
    rooms = Rooms((TOP / ROOM_TABLE).read_text(), (TOP / "cmake/rooms.cmake").read_text())
    for path, text in sources():
        yield from ((path, *finding) for finding in check_includes(rooms, path, text))
    for lists in sorted(
        [TOP / "collectives/CMakeLists.txt", *(TOP / "src").rglob("CMakeLists.txt")]
    ):
        path = str(lists.relative_to(TOP))
        yield from (
            (path, *finding) for finding in check_cmake_agrees(rooms, path, lists.read_text())
        )


# --- confined -------------------------------------------------------------------------------------

LIBRARY = ("include/", "collectives/", "src/", "bindings/", "tools/", "examples/")
BLOCKING_MPI = (
    r"\bMPI_(Wait(all|any|some)?|M?[Rr]ecv|[SBR]?[Ss]end|Sendrecv(_replace)?|M?[Pp]robe|Barrier"
    r"|Bcast|(All)?[Rr]educe|Reduce_scatter(_block)?|Scan|Exscan|(All)?[Gg]atherv?|Scatterv?"
    r"|Alltoall[vw]?|Comm_split(_type)?|Comm_create(_group)?)\s*\("
)
# What, where it is looked for, where it is allowed, what to do instead.
CONFINED = [
    (r"#\s*include\s*<mpi\.h>", LIBRARY, ("src/wire/mpi/", "include/guozhuang/interop/mpi.hpp"),
     "mpi.h stays in src/wire/mpi and the interop header"),
    (r"#\s*include\s*<(atomic|chrono|condition_variable|ctime|future|mutex|thread)>",
     ("src/protocol/", "collectives/"), (),
     "algorithms and the protocol know no clock and no thread"),
    (r"#\s*include\s*<nccl\.h>", ("",), ("src/device/cuda/", "tests/support/emulated_nccl/",
                                             "tests/emulation/nccl_rules_test.cpp"),
     "nccl.h stays in src/device/cuda and the emulation"),
    (r"#\s*include\s*<cuda[\w/]*\.h(pp)?>", ("",),
     ("src/device/cuda/", "tests/support/emulated_cuda/", "tests/support/emulated_nccl/",
      "tests/emulation/", "tests/gpu/", "examples/fashion_mnist_cuda/"),
     "CUDA headers stay in src/device/cuda, the CUDA example, the emulation and tests/gpu"),
    (r"\b(secure_)?getenv\s*\(", LIBRARY, ("src/base/config.cpp",),
     "the environment is read in src/base/config.cpp"),
    (BLOCKING_MPI, LIBRARY, ("src/wire/mpi/hosts.cpp", "src/wire/mpi/survivors.cpp"),
     "after init MPI is entered with calls that do not block"),
    (r"\b(sleep_for|sleep_until|u?sleep|nanosleep|clock_nanosleep)\s*\(", LIBRARY, (),
     "sleeping synchronises nothing: use base/wait"),
    (r"\b(sched_yield|this_thread::yield|SYS_futex|_mm_pause|__builtin_ia32_pause)\b", LIBRARY,
     ("src/base/wait.cpp",), "base/wait waits"),
    (r"\bcondition_variable", LIBRARY, (), "base/wait waits"),
    (r"\bstd::(mutex|lock_guard|unique_lock|scoped_lock)\b", LIBRARY, ("src/base/mutex.hpp",),
     "base::Mutex says what it guards"),
    (r"\bstd::j?thread\s*[({]", ("src/",), ("src/base/process.hpp", "src/api/session.cpp"),
     "base::start_thread() starts threads, which take no signals of the program's"),
    (r"\bwhile\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*(;|\{\s*\})", LIBRARY, (),
     "a loop with nothing in it: use base/wait"),
    (r"\bcase\s+(?:\w+::)*OperationKind::\w+", ("src/",), (),
     "an operation has a row (collectives/operation_kind.hpp) and a file (collectives/operations)"),
]


def check_confined(path, text):
    code = code_of(text)
    for pattern, looked_for, allowed, instead in CONFINED:
        if path.startswith(looked_for) and not path.startswith(allowed or ("\0",)):
            for match in re.finditer(pattern, code):
                # Not the end of a do-while.
                if (
                    not re.search(r"\}[ \t]*\Z", code[: match.start()])
                    or not match[0].endswith(";")
                ):
                    yield line_at(code, match.start()), f"{match[0].strip()}: {instead}"


def confined():
    for path, text in sources():
        yield from ((path, *finding) for finding in check_confined(path, text))


# --- sizes ----------------------------------------------------------------------------------------


def functions(text):
    """(first line, last line) of every function that is not inside another, found by its braces."""
    code = re.sub(r"^[ \t]*#.*", "", code_of(text), flags=re.MULTILINE)
    # Where the text before the next brace begins; (kind, first line) of each.
    header, open_braces = 0, []
    for match in re.finditer(r"[{};]", code):
        before = code[header : match.start()]
        kinds = [kind for kind, _ in open_braces]
        if match[0] == "{":
            if not before[-1:].isspace():
                kind = "initialiser"  # value{}: what is before it goes on after it
            elif "function" not in kinds and re.search(r"\)[\w\s:>&*,<(){}.\-]*$", before):
                kind = "function"
            else:
                kind = "scope"
            open_braces.append((kind, line_at(code, match.start() - len(before.lstrip()))))
        elif match[0] == "}" and open_braces:
            kind, first = open_braces.pop()
            if kind == "function":
                yield first, line_at(code, match.start())
        if "initialiser" not in kinds and (match[0] != "{" or kind != "initialiser"):
            header = match.end()


def check_sizes(path, text):
    lines = text.count("\n")
    if lines > LARGEST_FILE:
        yield 1, f"{lines} lines: a file has at most {LARGEST_FILE}"
    for first, last in functions(text):
        if last - first + 1 > LARGEST_FUNCTION:
            yield first, f"{last - first + 1} lines: a function has at most {LARGEST_FUNCTION}"
    for line, name, count in classes(text):
        if count > MOST_MEMBERS:
            yield line, f"{name}: {count} data members: a class has at most {MOST_MEMBERS}"


CLASS = re.compile(
    r"\b(?:class|struct)\s+(?:alignas\([^)]*\)\s*)?(?:GUOZHUANG_API\s+)?([\w:]+)[^;{}()]*\{"
)
NO_MEMBER = re.compile(
    r"(using|friend|static|typedef|template|enum|class|struct|union|explicit|virtual|requires)\b"
)


def data_members(body):
    """How many data members a class with this body has: of its own, not of classes within it."""
    body = re.sub(r"\bGUOZHUANG_\w+\s*\([^()]*\)|\balignas\s*\([^()]*\)", "", body)
    depth, statement, count = 0, "", 0
    for character in re.sub(r"\b(public|private|protected)\s*:", "", body):
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0 and "(" in re.sub(r"<[^;]*>", "", statement):
                statement = ""  # a function
        elif character == ";" and depth == 0:
            while re.search(r"<[^<>]*>", statement):
                statement = re.sub(r"<[^<>]*>", "", statement)
            declared = re.split(r"=|\{", statement, maxsplit=1)[0].strip()
            if declared and "(" not in declared and not NO_MEMBER.match(declared):
                names = re.sub(r"=[^,]*", "", re.sub(r"\([^()]*\)", "", statement))
                count += 1 + names.count(",")
            statement = ""
        elif depth == 0:
            statement += character
    return count


def classes(text):
    """Line, name and number of data members of every class."""
    code = code_of(text)
    for match in CLASS.finditer(code):
        if re.search(r"\benum\s+$", code[: match.start()]):
            continue
        depth, at = 1, match.end()
        while depth > 0 and at < len(code):
            depth += {"{": 1, "}": -1}.get(code[at], 0)
            at += 1
        yield line_at(code, match.start()), match[1], data_members(code[match.end() : at - 1])


def lines_held(path, text):
    """The lines that have a width to hold, by number. Tables of Markdown cannot be broken, nor what
    programs have said (```text)."""
    inside = None
    for number, line in enumerate(text.splitlines(), 1):
        if path.endswith(".md"):
            fence = re.match(r"\s*```(\w*)", line)
            if fence:
                inside = fence[1] if inside is None else None
            if line.lstrip().startswith("|") or inside == "text":
                continue
        yield number, line


def check_width(path, text):
    for number, line in lines_held(path, text):
        if len(line) > WIDEST_LINE:
            yield number, f"{len(line)} columns: a line has at most {WIDEST_LINE}"


def sizes():
    widest = 0
    for path, text in texts():
        yield from ((path, *finding) for finding in check_width(path, text))
        widest = max([widest, *(len(line) for _, line in lines_held(path, text))])
    lengths, longest_file, most_members = [], (0, ""), (0, "")
    for path, text in sources():
        yield from ((path, *finding) for finding in check_sizes(path, text))
        lengths += [last - first + 1 for first, last in functions(text)]
        longest_file = max(longest_file, (text.count("\n"), path))
        for _, name, count in classes(text):
            most_members = max(most_members, (count, name))
    usual = sorted(lengths)[len(lengths) * 9 // 10]
    print(
        f"{len(lengths)} functions: nine in ten with at most {usual} lines, the longest with "
        f"{max(lengths)}; the longest file has {longest_file[0]} lines ({longest_file[1]}), the "
        f"largest class {most_members[0]} data members ({most_members[1]}), the widest line "
        f"{widest} columns"
    )
    if usual > LARGEST_USUAL_FUNCTION:
        yield (
            "all files", 0,
            f"nine in ten functions have at most {usual} lines: "
            f"they should have {LARGEST_USUAL_FUNCTION}",
        )


# --- words ----------------------------------------------------------------------------------------

# Words that are gone, and what to say now: docs/glossary.md has those that hold. To add one when
# its last use goes:
# - A word that nothing may be called any more has a row in GONE: in lower case and the singular,
#   blanks between the words of a name. "old name" is refused in old_name, OldName and old-name, and
#   within longer names, in code, comments and pages, but not as two words of a sentence.
# - A word with an ordinary meaning besides has a row in GONE_NAMES for each name that is gone,
#   written as it was. It is refused as a whole name in code, and in the `code` of pages; comments
#   and sentences may have it.
# Neither table has exceptions. What is said in string literals is for users and stays out of this
# (but titles of test cases), and so does the changelog: what it tells of had its name then.
GONE = {
    "allreduce plan": "allreduce args", "ballot": "tally", "baton": "turn scheduler",
    "broadcast plan": "broadcast args", "debt": "stalled operation", "depart": "shut down, or quit",
    "departing": "shutting down", "departure": "shutdown, or quit",
    "draft": "operation spec", "faction": "submission group",
    "fleet": "process sets", "goodbye": "answer all", "in children": "fork child handler",
    "meet host": "discover host", "meet neighbours": "connect host ranks",
    "member peers": "shared memory group", "member wire": "group wire",
    "obituary": "describe_death", "owed": "overdue", "patience": "wait loop",
    "reduce scatter plan": "reduce scatter args", "retreat": "unshare",
    "see off": "drain before exit", "seen off": "is drained", "set member": "set runtime",
    "set stages": "set staging buffers", "shake hands": "run handshake", "sighting": "observation",
    "stall scene": "set snapshot", "stall settings": "stall limits",
    "stand in": "neutral contribution", "stands in": "contributes neutrally",
    "thread peers": "thread group", "traffic plan": "traffic schedule", "untold": "unlisted",
}
GONE_NAMES = {
    "Departure": "Shutdown", "Letter": "Request", "Levels": "Hierarchy",
    "Meeting": "Exchange", "Members": "GroupRanks", "Neighbour": "HostRank",
    "Notice": "AbortNotice", "Part": "RecordType, FusedTensors or LocalRegion",
    "Peer": "HostRank, WatchedProcess or Baseline", "Peers": "PairwiseExchange",
    "Piece": "BundleEntry", "Place": "RegionRef", "Places": "TensorRegions",
    "Settings": "Config, Options or Policy", "Shared": "RankResources",
    "Sight": "RankSnapshot or ProcessSnapshot", "Stretch": "ByteRange", "Waiting": "WaitingSlot",
    "Watched": "WatchedProcess", "attend": "poll_briefly or yield_to_others",
    "departed_": "shutdowns_", "departure_": "shutdown_reason_", "letters_": "p2p_operations_",
    "members": "tensors or group_ranks", "members_": "tensors_ or group_ranks_", "obey": "accept",
    "piece": "entry or fragment", "pieces": "entries or fragments", "place": "ref, slot or index",
    "place_": "node_ or slot_", "places": "refs, slots or destinations",
    "treat": "report",
}
GONE_PATTERN = re.compile(r"\b(" + "|".join(GONE) + r")s?\b")


# What of CMake, Python and the shell is not code, and what of Markdown is not prose. Texts for
# users are neither: strings, here-documents, and what programs have said (```, ```text, ```diff).
NOT_SCRIPT = re.compile(
    r'(?P<prose>(?<!\S)#[^\n]*|""".*?""")|<<\'?(?P<end>\w+)\'?\n.*?\n(?P=end)\n'
    r'|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'', re.DOTALL
)
TITLE = re.compile(r'(?<=TEST_CASE\()\s*(?:"(?:\\.|[^"\\\n])*"\s*)+')
NOT_PROSE = re.compile(r"```(?:text|diff)?\n.*?```|(?P<code>```.*?```|`[^`]+`)", re.DOTALL)


def code_and_prose(path, text):
    """What the text says to a machine and what to a reader, each line by line where it was."""
    if path.endswith(".md"):
        others, usual = NOT_PROSE, "prose"
    else:
        others, usual = NOT_CODE if path.endswith(C_SUFFIXES) else NOT_SCRIPT, "code"
    said = {"code": "", "prose": ""}

    def add(kind, part):
        for each in said:
            said[each] += part if each == kind else "\n" * part.count("\n") or " "

    end = 0
    for match in others.finditer(text):
        add(usual, text[end : match.start()])
        add(match.lastgroup, match[0])
        end = match.end()
    add(usual, text[end:])
    return said["code"], said["prose"]


def titles(path, text):
    """Those of test cases, each line where it was: a test's reader reads them as prose."""
    said, end = "", 0
    if not path.endswith(C_SUFFIXES):
        return said
    for match in TITLE.finditer(text):
        said += "\n" * text.count("\n", end, match.start()) + match[0]
        end = match.end()
    return said


def check_words(path, text):
    code, prose = code_and_prose(path, text)
    for match in re.finditer(r"[A-Za-z_]\w*", code):
        if match[0] in GONE_NAMES:
            yield (
                line_at(code, match.start()),
                f"{match[0]} is called {GONE_NAMES[match[0]]} now (docs/glossary.md)",
            )
    for where in (code, prose, titles(path, text)):
        for match in re.finditer(r"[A-Za-z_]\w*(?:-\w+)*", where):
            words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", match[0])
            gone = GONE_PATTERN.search(" ".join(words).lower())
            if gone:
                yield (
                    line_at(where, match.start()),
                    f"{match[0]}: {gone[1]!r} is gone, say {GONE[gone[1]]!r} (docs/glossary.md)",
                )


# A sentence that opens so says late, or not at all, who does what. A question may.
OPENING = re.compile(
    r"(?:\A|(?<=[.!?|])\s|\n\s*\n|\n\s*[-*#|])[-*>#|\s]*"
    r"(Of|Those|That|Such|Which|So (?:many|much)|Whoever|What)\b(?![^.!?|]*\?)"
)


def sentences(path, text):
    """The prose without the marks of comments. A comment behind code ends the one before it."""
    prose = code_and_prose(path, text)[1]
    if path.endswith(C_SUFFIXES):
        prose = re.sub(r"//+<", lambda mark: "." + " " * (len(mark[0]) - 1), prose)
        prose = re.sub(r"//[/!]?", lambda mark: " " * len(mark[0]), prose)
    return prose


def check_openings(path, text):
    prose = sentences(path, text)
    for match in OPENING.finditer(prose):
        text = " ".join(prose[match.start(1) : match.start(1) + 40].split())
        yield line_at(prose, match.start(1)), f"say first who does it: {text} ..."


# "A stream of the user's", "memory of the library's own": an owner without the thing behind it. The
# words that may follow the owner belong to the rest of the sentence, so no thing comes any more;
# but "of the sender's and the receiver's tensors" has one.
OWNER = re.compile(
    r"(?<!instead\s)(?<!because\s)\bof\s+(?:(?:the|an?|this|that|its|each|every|some)\s+)?"
    r"(?!(?:it|that|what|who|there|here)'s\b)\w+'s(?:\s+own)?"
    r"(?=\s*(?:[.,;:!?)]|\Z)|\s+(?:and|or|that|which|whose|is|are|was|were|has|have|may|can|must"
    r"|in|on|for|with|to|from|at|by|as|if|when|while|until|it|they|so|than|the|an?)\b)"
    r"(?!\s+(?:and|or)\s+(?:the\s+)?\w+'s\s+\w)"
)
OWNER_FOLDERS = ("include/", "src/", "collectives/", "tests/support/")


def check_owners(path, text):
    prose = sentences(path, text)
    for match in OWNER.finditer(prose):
        text = " ".join(match[0].split())
        yield line_at(prose, match.start()), f"say it as \"the user's stream\": ... {text}"


def words():
    for path, text in texts():
        if path != "CHANGELOG.md":
            yield from ((path, *finding) for finding in check_words(path, text))
        if path.endswith(C_SUFFIXES + (".md",)):
            yield from ((path, *finding) for finding in check_openings(path, text))
        if path.endswith(".md") or (
            path.endswith(C_SUFFIXES) and path.startswith(OWNER_FOLDERS)
        ):
            yield from ((path, *finding) for finding in check_owners(path, text))


# --- links ----------------------------------------------------------------------------------------


def links():
    pages = [*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md")]
    rooms = [page for folder in SOURCE_FOLDERS for page in (TOP / folder).rglob("README.md")]
    reached = set()
    for page in pages + rooms:
        text = page.read_text()
        for match in re.finditer(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", text):
            target = (page.parent / match[1]).resolve()
            reached.add(target)
            if not target.exists():
                yield (
                    str(page.relative_to(TOP)), line_at(text, match.start()),
                    f"the link to {match[1]} leads nowhere",
                )
    for page in pages:
        if page.parent != TOP and page.resolve() not in reached:
            yield str(page.relative_to(TOP)), 1, "no page links to this one"


# --- self-test ------------------------------------------------------------------------------------

SELF_TEST_ROOMS = Rooms(
    "| `base` | `src/base` | `base` | `error.hpp` |\n"
    "| `wire` | `src/wire` | `base` `wire` `engine_control` | all |\n"
    "| `engine` | `src/engine` | `base` `engine` | all |\n"
    "| `training` | `src/training` | | all |\n",
    "guozhuang_corridor(base base)\nguozhuang_corridor(wire wire)\n"
    "guozhuang_corridor(engine engine)\n"
    "guozhuang_corridor(engine_control engine/control.hpp)\n",
)
LONG_FUNCTION = "int f() {\n" + "    g();\n" * 59 + "}\n"
# Rule, path, text, how many findings.
SELF_TEST = [
    ("includes", "src/base/a.cpp",
     '#include "base/b.hpp"\n#include <vector>\n#include <guozhuang/error.hpp>\n', 0),
    ("includes", "src/base/a.cpp", "#include <guozhuang/session.hpp>\n", 1),
    ("includes", "src/base/a.cpp",
     '#include "engine/engine.hpp"\n#include "../engine/engine.hpp"\n', 2),
    ("includes", "src/wire/mpi/a.cpp", '#include "engine/control.hpp"\n', 0),
    ("includes", "src/wire/mpi/a.cpp", '#include "engine/engine.hpp"\n', 1),
    ("includes", "src/training/a.cpp", '#include "base/wait.hpp"\n', 1),
    ("cmake", "src/wire/CMakeLists.txt",
     "guozhuang_room(wire\n SOURCES a.cpp\n MAY_USE base wire engine_control\n LINK fmt::fmt)", 0),
    ("cmake", "src/wire/CMakeLists.txt",
     "guozhuang_room(wire\n SOURCES a.cpp\n MAY_USE base wire engine\n LINK fmt::fmt)", 1),
    ("cmake", "src/new/CMakeLists.txt", "guozhuang_room(new SOURCES a.cpp MAY_USE base)", 1),
    ("confined", "src/engine/a.cpp", "#include <mpi.h>\nint x = getenv(NAME);\n", 2),
    ("confined", "src/wire/mpi/a.cpp",
     "#include <mpi.h>\nMPI_Isend(x);\nMPI_Send(x);\nMPI_Waitall(x);\nMPI_Allreduce(x);\n", 3),
    ("confined", "src/wire/mpi/hosts.cpp", "MPI_Allreduce(x);\n", 0),
    ("confined", "src/engine/a.cpp",
     "// getenv(x), sleep_for(x)\nauto s = \"while (x) {}\";\nnot_asleep(x);\n", 0),
    ("confined", "src/engine/a.cpp",
     "while (!done.load()) {\n}\nwhile (busy());\nstd::this_thread::sleep_for(1ms);\n", 3),
    ("confined", "src/engine/a.cpp",
     "do {\n x();\n} while (busy());\nwhile (busy()) x();\nint million = 1'000'000; // it's\n", 0),
    ("confined", "src/engine/a.cpp",
     "std::mutex a;\nstd::lock_guard lock(a);\nbase::Mutex b;\nbase::Lock other(b);\n", 2),
    ("confined", "src/backends/a.cpp",
     "switch (k) {\n case OperationKind::join:\n case a::OperationKind::barrier: x();\n}\n", 2),
    ("confined", "src/protocol/a.cpp", "#include <chrono>\n#include <map>\n", 1),
    ("confined", "collectives/ring/a.hpp", "#include <thread>\n#include <atomic>\n", 2),
    ("confined", "src/engine/a.cpp", "#include <chrono>\n#include <thread>\n", 0),
    ("confined", "tests/unit/a_test.cpp", "#include <mpi.h>\nsleep(1);\n", 0),
    ("confined", "tests/unit/a_test.cpp", "#include <cuda_runtime.h>\n#include <nccl.h>\n", 2),
    ("confined", "tests/emulation/a_test.cpp", "#include <cuda_runtime.h>\n#include <nccl.h>\n", 1),
    ("sizes", "src/a.cpp", LONG_FUNCTION, 1),
    ("sizes", "src/a.cpp", LONG_FUNCTION.replace("    g();\n", "", 1), 0),
    ("sizes", "src/a.cpp",
     "namespace a {\nstruct B : C<(1)> {\n"
     + LONG_FUNCTION.replace("f()", "f() const noexcept override") + "};\n}\n", 1),
    ("sizes", "src/a.cpp", "B::B() : a_(1), b_{2} {\n" + LONG_FUNCTION[10:], 1),
    ("sizes", "src/a.cpp", "const int table[] = {\n" + "    f(1),\n" * 90 + "};\nvoid f() {}\n", 0),
    ("sizes", "src/a.cpp", "\n" * 501, 1),
    ("sizes", "src/a.hpp", "class A final : B {\n" + "    C<D, E()> f_{1};\n" * 21 + "};\n", 1),
    ("sizes", "src/a.hpp",
     "struct A {\n" + "    int f(int);\n    int g() { int a; return a; }\n" * 21
     + "    struct B { int a, b; };\n    using C = B;\n"
     + "    std::map<int, B> b_ = {}, c_ GUOZHUANG_GUARDED_BY(m_);\n" * 10 + "};\n", 0),
    ("sizes", "src/a.hpp", "struct A {\n" + "    int a, b;\n" * 11 + "};\n", 1),
    ("sizes", "src/a.hpp", "struct A {\n" + "    int a = f(1, 2), b = 0;\n" * 11 + "};\n", 1),
    ("sizes", "src/a.hpp", "struct A {\n" + "    int a = f(1, 2), b = 0;\n" * 10 + "};\n", 0),
    ("words", "src/a.hpp",
     "int ballots_, Ballot, count_ballot_boxes;\n// A set-member, see_off().\n", 5),
    ("words", "src/a.hpp",
     "int ballotage, set, member, in_place;\n// To see off a set member.\nf(\"ballot\");\n", 0),
    ("words", "src/a.hpp", "Place place;\n// A place for each piece.\n", 2),
    ("words", "docs/a.md", "A rank departs: `Place`.\n```cpp\nint place; // of a Ballot\n```\n", 4),
    ("words", "docs/a.md", "A place that a set stages.\n```\nPlace: ballot\n```\nIts `slot`.\n", 0),
    ("words", "CMakeLists.txt", "set(ballot \"ballot\")  # A ballot's place.\n", 2),
    ("words", "a.py", '"""A ballot."""\nplaces = "ballot"  # the Members, see_off()\n', 3),
    ("words", "run", "echo 'ballot' \"${#place}\"  # the place\ncat <<'END'\nin place\nEND\n", 0),
    ("words", "a.pml", "int ballot; /* a ballot */\n", 2),
    ("words", "tests/unit/a_test.cpp",
     'TEST_CASE("an obituary") {\n}\nTEST_CASE(\n    "a "\n    "faction") { f("ballot"); }\n', 2),
    ("openings", "src/a.hpp",
     "// Of a rank. What it has, is\n// here. Such is it.\nint a;  ///< That of b.\n", 4),
    ("openings", "src/a.hpp", "/// Ends. What for? Often that of a.\nf(\"What is\");\n", 0),
    ("openings", "docs/a.md",
     "# What it costs\n\n- Those\n- one\n\n| Which a | b |\n```\nWhat\n```\n", 3),
    ("owners", "src/a.hpp",
     "/// A stream of the user's. Copies in memory of the library's\n/// own, of CUDA's or\n"
     "/// of a rank's own that is free.\nint a;  ///< of the caller's\n", 5),
    ("owners", "src/a.hpp",
     "/// Of the user's tensors, a thread's own faults, the sender's and the receiver's tensors.\n"
     "/// Part of the sender's and the receiver's tensors, of the program's own threads. It is\n"
     "/// instead of MPI's: so it's full of what's in it.\nf(\"of the user's\");\n", 0),
    ("owners", "docs/a.md", "A stream of the\nuser's, and `one of b's`.\n```\nof b's.\n```\n", 1),
    ("width", "src/a.cpp", "x" * 101 + "\n// " + "x" * 97 + "\n", 1),
    ("width", "a.md", "x" * 101 + "\n| " + "x" * 101 + "\n```text\n" + "x" * 101 + "\n```\n", 1),
    ("width", "a.md", "```cpp\n" + "x" * 101 + "\n```\n" + "x" * 101 + "\n", 2),
    ("width", "a.md", "```diff\n" + "x" * 101 + "\n```\n```\n" + "x" * 101 + "\n```\n", 2),
]


def self_test():
    checks = {
        "includes": lambda *file: check_includes(SELF_TEST_ROOMS, *file),
        "cmake": lambda *file: check_cmake_agrees(SELF_TEST_ROOMS, *file),
        "confined": check_confined,
        "sizes": check_sizes,
        "words": check_words,
        "openings": check_openings,
        "owners": check_owners,
        "width": check_width,
    }
    for number, (rule, path, text, expected) in enumerate(SELF_TEST):
        found = list(checks[rule](path, text))
        if len(found) != expected:
            yield (
                "self-test", number,
                f"{rule} of {path} finds {found}, expected are {expected}: {text[:100]!r}",
            )


def main():
    rules = {
        "includes": includes, "confined": confined, "sizes": sizes, "words": words,
        "links": links, "self-test": self_test,
    }
    if len(sys.argv) != 2 or sys.argv[1] not in rules:
        print(__doc__)
        return 2
    findings = list(rules[sys.argv[1]]())
    for path, line, text in findings:
        print(f"{path}:{line}: {text}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
