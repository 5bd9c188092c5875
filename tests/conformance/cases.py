"""The list of cases, cases.txt, as what each rank is to do and what must come out of it. README.md
says what the list means."""
import collections
import dataclasses
import itertools
import math
import re

import reference
from tensors import Tensor, is_floating, largest

DTYPES = {
    "integer": "u8,i8,i16,i32,i64,u16,u32,u64", "floating": "f16,bf16,f32,f64",
    "number": "u8,i8,i16,i32,i64,u16,u32,u64,f16,bf16,f32,f64",
    "dtype": "u8,i8,i16,i32,i64,u16,u32,u64,f16,bf16,f32,f64,bool",
}
# Of element i of rank r. Whatever is added or multiplied of four ranks is exact in every dtype, and
# so is a few steps' training: averages of multiples of 12 over as many ranks.
REDUCED = "(1 + (r + i) % 3) * (-1 if signed and i % 2 else 1)"
TRAINED = "12 * ((r + i) % 3 - 1)"
MOVED = "(37 * r + 11 * i) % 128"
FLAGS = "(r + i) % 2"
OF_THE_JOB = ("create_set", "remove_set")  # all ranks do these, whatever the set
NOT_FOR_PROGRAMS = ("operation", "async", "if", "only", "values")


def evaluate(expression, names):
    """Of an expression of the list, maybe compiled."""
    return eval(expression, {"range": range}, names)


# --- lines ----------------------------------------------------------------------------------------


def is_tensor(word):
    """Such as f32[2,3], and not values=[1,2][i]."""
    return "[" in word.partition("=")[0]


@dataclasses.dataclass
class Case:
    """A line of the list, its braces replaced."""

    text: str
    line: int
    expectations: list  # (for whom, text)
    k: int

    def words(self, is_last):
        """Those of the last rank have its own in the end, and its own tensors, if it has any."""
        words = self.text.split()
        own = [word.removeprefix("last:") for word in words if word.startswith("last:")]
        of_all = [word for word in words if not word.startswith("last:")]
        if not is_last:
            return of_all
        has_tensors = any(map(is_tensor, own))
        return [word for word in of_all if not (has_tensors and is_tensor(word))] + own

    def options(self, is_last=False):
        first, *others = self.words(is_last)
        options = {"name": f"case{self.line}", "operation": first}
        for word in others:
            key, equals, value = word.partition("=")
            if not is_tensor(word):
                options[key] = value if equals else True
        if options.pop("unnamed", False):
            del options["name"]
        return options

    def tensors(self, is_last):
        return list(filter(is_tensor, self.words(is_last)))

    def expectation(self, interface, is_last):
        """What must come out, as the list says it; None: what the reference computes."""
        here = {interface, "last" if is_last else "others"}
        special = [text for whom, text in self.expectations if whom and here & set(whom.split(","))]
        usual = [text for whom, text in self.expectations if whom is None]
        return next(iter(special + usual), None)


def read(text, ranks):
    """The cases of the list for that many ranks."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        expectation = re.match(r"  (?:([\w,]+) )?=> (.*)", line)
        if expectation:
            lines[-1][2].append(expectation.groups())
        elif line and not line.startswith("#"):
            lines.append((number, line, []))
    for number, line, expectations in lines:
        for alternative in alternatives(line):
            for k in range(ranks if "{k}" in line else 1):
                case = Case(alternative.replace("{k}", str(k)), number, expectations, k)
                if evaluate(case.options().get("if", "True"), {"n": ranks}):
                    yield case


def alternatives(line):
    """The line for each choice that its braces offer: with commas, or the name of some dtypes."""
    parts = re.split(r"\{(\w*,[^{}]*|" + "|".join(DTYPES) + r")\}", line)
    choices = [DTYPES.get(part, part).split(",") if i % 2 else [part]
               for i, part in enumerate(parts)]
    return map("".join, itertools.product(*choices))


# --- calls ----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Call:
    """What one rank does in a case."""

    operation: str
    options: dict
    tensors: list

    def __str__(self):
        """The line for the program, but for its number."""
        options = [key if value is True else f"{key}={value}"
                   for key, value in self.options.items() if key not in NOT_FOR_PROGRAMS]
        return " ".join([self.operation, *options, *map(str, self.tensors)])


def call_of(case, rank, ranks, group):
    """In expressions r and n are rank and size in the group; but in those of options that name
    ranks, of the job."""
    is_last = rank == ranks - 1
    options = case.options(is_last)
    job = {"r": rank, "n": ranks}
    names = {"r": group.index(rank) if rank in group else 0, "n": len(group)}
    for key in {"root", "to", "from", "steps", "passes"} & set(options):
        options[key] = names[key] = evaluate(options[key], job)
    if "ranks" in options:
        options["ranks"] = ",".join(map(str, evaluate(options["ranks"], job)))
    if "splits" in options:
        splits = [evaluate(options["splits"], {**names, "p": p}) for p in range(len(group))]
        options["splits"], names["rows"] = ",".join(map(str, splits)), sum(splits)
    return Call(options["operation"], options,
                [tensor_of(word, options, names) for word in case.tensors(is_last)])


def usual_values(operation, dtype):
    if operation == "train":
        return TRAINED
    if dtype == "bool":
        return FLAGS
    return REDUCED if operation in reference.REDUCTIONS else MOVED


def tensor_of(word, options, names):
    dtype, extents = re.fullmatch(r"(\w+)\[(.*)\]", word).groups()
    shape = [evaluate(extent, names) for extent in extents.split(",") if extent]
    values = options.get("values") or usual_values(options["operation"], dtype)
    value = compile(values, "values", "eval")
    number = float if is_floating(dtype) else int
    names = {**names, "signed": not dtype.startswith("u"), "most": largest(dtype)}
    return Tensor(dtype, shape, [number(evaluate(value, {**names, "i": i}))
                                 for i in range(math.prod(shape))])


# --- the whole list, rank by rank -----------------------------------------------------------------


class Script:
    """The lines for the program of each rank, numbered, and what must come of them."""

    def __init__(self, cases, ranks, interface):
        self.lines = [[] for _ in range(ranks)]
        self.wanted = [{} for _ in range(ranks)]  # by number: the case, and its outcome
        self._ranks, self._interface, self._number = ranks, interface, 0
        self._sets = {}  # by name
        self._begun = collections.defaultdict(dict)  # by name: calls by rank
        for case in cases:
            self._add(case)

    def _add(self, case):
        options, job = case.options(), range(self._ranks)
        operation, only = options["operation"], options.get("only")
        group = job if operation in OF_THE_JOB else self._sets.get(options.get("set"), job)
        taking_part = [rank for rank in (job if only else group)
                       if evaluate(only or "True", {"r": rank, "n": self._ranks})]
        calls = {rank: call_of(case, rank, self._ranks, group) for rank in taking_part}
        if operation == "wait":
            self._finish(case, calls, self._begun.pop(options["name"]), group)
        elif "begin" in options or "async" in options:
            self._begin(case, calls, group)
        elif calls:
            self._finish(case, calls, calls, group)
        if operation == "create_set" and not case.expectations:
            self._sets[options["set"]] = sorted(map(int, calls[0].options["ranks"].split(",")))

    def _begin(self, case, calls, group):
        for call in calls.values():
            call.options["begin"] = True
        if "begin" in case.options() and case.expectations:
            self._finish(case, calls, calls, group)
            return
        self._step(case, calls, {rank: "ok" for rank in calls})
        name = case.options()["name"]
        self._begun[name].update(calls)
        if "async" in case.options():
            waits = {rank: Call("wait", {"name": name}, []) for rank in calls}
            self._finish(case, waits, self._begun.pop(name), group)

    def _finish(self, case, calls, begun, group):
        """`calls` are what the ranks do now, `begun` what they have given to the operation."""
        said = {rank: case.expectation(self._interface, rank == self._ranks - 1) for rank in calls}
        computed = {}
        if None in said.values():
            computed = reference.RESULTS[next(iter(begun.values())).operation](begun, group)
        self._step(case, calls, {rank: " ".join(["ok", *computed[rank]]) if text is None
                                 else self._in_full(text, case, rank)
                                 for rank, text in said.items()})

    def _step(self, case, calls, outcomes):
        self._number += 1
        for rank, call in calls.items():
            self.lines[rank].append(f"{self._number} {call}")
            self.wanted[rank][self._number] = case, outcomes[rank]

    def _in_full(self, text, case, rank):
        """An expectation as programs write outcomes: `CODE@RANKS (OPERATION, TENSOR): MESSAGE`,
        whose facts may be left out where the message begins with them."""
        last = self._ranks - 1
        names = {"n": self._ranks, "k": case.k, "me": in_words([rank]), "last": in_words([last]),
                 "others": in_words(range(last)),
                 "operation": case.options()["operation"].removeprefix("grouped_")}
        text = re.sub(r"\{([^{}]*)\}", lambda match: str(evaluate(match[1], names)), text)
        if text.startswith(("ok", "raised")):
            return text
        code, ranks, facts, message = re.fullmatch(
            r"(\w+)(?:@ranks? ([\d,]+))?(?: [(](.*)[)])?: (.*)", text).groups()
        begin = re.match(r"(process set|\w+(?= '))?(?: ?'([^']*)')?", message)
        operation, tensor = facts.split(", ") if facts else begin.groups()
        return f"error {code}|{operation or '.'}|{tensor or '.'}|{ranks or '.'}|{message}"


def in_words(ranks):
    """As errors name them: "rank 0", "ranks 0,1"."""
    numbers = ",".join(map(str, ranks))
    return f"rank{'s' if ',' in numbers else ''} {numbers}"
