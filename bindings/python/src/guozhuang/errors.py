"""What goes wrong, as exceptions with the text and the facts of the library's errors."""
import math
import numbers


class Error(RuntimeError):
    """An error of the library. docs/errors.md has them all.

    code       "mismatch", "departed", "rank_died" ... (docs/errors.md)
    tensor     the name of the tensor, or ""
    operation  "allreduce", "broadcast" ..., or ""
    ranks      the ranks at fault, where that is known
    """

    def __init__(self, message, code="internal", tensor="", operation="", ranks=()):
        super().__init__(message)
        self.code, self.tensor, self.operation = code, tensor, operation
        self.ranks = list(ranks)

    def __reduce__(self):
        return type(self), (str(self), self.code, self.tensor, self.operation, self.ranks)


class UsageError(Error, ValueError):
    """The call itself is wrong, and nothing has been sent: a bad argument, a name that is pending,
    no init(). Codes: invalid_argument, duplicate_name, not_initialised."""


# Names of C++ in the library's texts, and those of Python.
_PYTHON_WORDS = (
    ("OptimizerOptions::check_values = false", "check_values=False"),
    ("make a guozhuang::Session, or call guozhuang::init(),", "call guozhuang.init()"),
    ("make a new guozhuang::Session", "call guozhuang.init()"),
)
USAGE_CODES = ("invalid_argument", "duplicate_name", "not_initialised")


def make(code, message, tensor="", operation="", ranks=()):
    kind = UsageError if code in USAGE_CODES else Error
    for cpp, python in _PYTHON_WORDS:
        message = message.replace(cpp, python)
    return kind(message, code, tensor, operation, ranks)


def refuse(problem):
    """Raises what a bad argument gets that never comes to the library."""
    raise UsageError(problem, "invalid_argument")


def refuse_unless_positive(name, value):
    if not isinstance(value, numbers.Real) or not 0 < value < math.inf:
        refuse(f"{name} is {value!r}; it must be a positive number")
