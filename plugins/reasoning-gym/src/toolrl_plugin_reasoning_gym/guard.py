"""What keeps an answer from being run: it is model's text, and some scorers of the library hand it to `eval`.

Four modules of reasoning_gym call `eval` on the answer, and five more call sympy's `parse_expr`, which is `eval` with
all of Python's builtins in reach: `__import__('os').system('…')` runs. In a process that scores, `close_evals` puts
readers in their place that take values and arithmetic, and nothing else. `wall_in` comes on top, for a process that
judges one answer and ends: limits of the kernel, and a hook that ends the process at the first thing that no scorer
does (a file written, a process, a socket).

Imported in the worker process only.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

REFUSED_STATUS = 77
"""Exit status of a process that tried what isn't allowed."""
_MB = 1 << 20
_OPEN_FILES = 64
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ALLOWED_EVENTS = frozenset(
    [
        "import", "compile", "exec", "marshal.loads", "marshal.load", "code.__new__", "function.__new__",
        "object.__getattr__", "object.__setattr__", "object.__delattr__", "builtins.id", "array.__new__",
        "os.listdir", "os.scandir", "sys._getframe", "sys._getframemodulename", "sys.unraisablehook",
        "sys.excepthook", "time.sleep",
    ]
)  # fmt: skip
"""What importing and calculating raise. Opening a file is looked at closer."""


class UnsafeAnswerError(ValueError):
    """An expression that holds more than values and arithmetic. A ValueError, which scorers expect of a bad answer."""


# Reading values.

_NUMBERS = (int, float, complex)
_OPERATORS = (ast.operator, ast.unaryop, ast.cmpop, ast.expr_context)
_ARITHMETIC = (ast.BinOp, ast.UnaryOp)
_VALUES = (ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, *_ARITHMETIC, *_OPERATORS)


def read_value(text: object, *_scope: object) -> Any:
    """What `eval` gives for literals, lists, tuples, sets, dicts and arithmetic with numbers. Raises UnsafeAnswerError
    for all else, SyntaxError for what isn't Python."""
    if not isinstance(text, str):
        raise UnsafeAnswerError(f"{type(text).__name__} isn't text")
    tree = ast.parse(text.strip(), mode="eval")
    for node in ast.walk(tree):
        if not isinstance(node, _VALUES):
            raise UnsafeAnswerError(f"{type(node).__name__} isn't a value")
        if isinstance(node, _ARITHMETIC) and not all(map(_is_number, ast.iter_child_nodes(node))):
            raise UnsafeAnswerError("arithmetic with what is no number")
    return eval(compile(tree, "the answer", "eval"), {"__builtins__": {}})


def _is_number(node: ast.AST) -> bool:
    """Whether this may stand in arithmetic: a number, more arithmetic, or the operator."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, _NUMBERS)
    return isinstance(node, (*_ARITHMETIC, *_OPERATORS))


# Reading expressions with sympy.

_MAKERS = frozenset({"Symbol", "Integer", "Float", "Rational", "Function"})
"""What sympy's own rewriting of a text calls, with a text or a number."""
_SHAPES = (ast.Expression, *_ARITHMETIC, ast.Compare, ast.Tuple, ast.List, ast.Name, *_OPERATORS)


@functools.cache
def _functions() -> frozenset[str]:
    """Names of sympy's mathematical functions."""
    import sympy  # type: ignore[import-untyped]

    named = {name: getattr(sympy, name) for name in sympy.__all__}
    found = {name for name, value in named.items() if isinstance(value, type) and issubclass(value, sympy.Function)}
    return frozenset({*found, "sqrt", "cbrt", "root", "real_root", "Abs", "abs", "max", "min", "Max", "Min", "ln", "E"})


def check_expression(code: object) -> None:
    """Raises UnsafeAnswerError where the Python that sympy made of a text does more than name, calculate and call
    mathematical functions."""
    if not isinstance(code, str):
        raise UnsafeAnswerError("compiled code")
    for node in ast.walk(ast.parse(code.strip(), mode="eval")):
        if isinstance(node, ast.Call):
            _check_call(node)
        elif isinstance(node, ast.Constant):
            if not isinstance(node.value, _NUMBERS) and not isinstance(node.value, str):
                raise UnsafeAnswerError(f"the constant {node.value!r:.40}")
        elif not isinstance(node, _SHAPES):
            raise UnsafeAnswerError(f"{type(node).__name__} is no mathematics")
        if isinstance(node, ast.Name) and node.id.startswith("_"):
            raise UnsafeAnswerError(f"the name {node.id[:40]!r}")


def _check_call(call: ast.Call) -> None:
    called = call.func
    if call.keywords:
        raise UnsafeAnswerError("a call with a keyword")
    if isinstance(called, ast.Call):  # Function('f')(x)
        if not (isinstance(called.func, ast.Name) and called.func.id == "Function"):
            raise UnsafeAnswerError("a call of a call")
    elif not isinstance(called, ast.Name) or called.id not in _MAKERS | _functions():
        raise UnsafeAnswerError(f"a call of {getattr(called, 'id', type(called).__name__)!r:.40}")
    texts = [item for item in call.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    if texts and not (isinstance(called, ast.Name) and called.id in _MAKERS and len(call.args) == 1):
        raise UnsafeAnswerError("a text as an argument")


def close_evals() -> None:
    """Take `eval` and `exec` from the library's modules, and put a check before sympy's. For this process, for good."""
    from sympy.parsing import sympy_parser  # type: ignore[import-untyped]

    original = sympy_parser.eval_expr

    def eval_expr(code: Any, local_dict: Any, global_dict: Any) -> Any:
        check_expression(code)
        return original(code, local_dict, global_dict)

    sympy_parser.eval_expr = eval_expr
    for name, module in list(sys.modules.items()):
        if name == "reasoning_gym" or name.startswith("reasoning_gym."):
            vars(module)["eval"] = read_value
            vars(module)["exec"] = _no_exec


def _no_exec(*_given: object) -> None:
    raise UnsafeAnswerError("exec isn't there in a process that scores")


# Walls.


def wall_in(seconds: int, memory_mb: int) -> None:
    """Limit this process to so many seconds of processor time and so much more memory than it has, and end it at once
    where it does what no scorer does. Can't be undone."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, seconds, seconds + 1)  # the kernel ends it: first by SIGXCPU, then by SIGKILL
    _limit(resource.RLIMIT_AS, _address_bytes() + memory_mb * _MB)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    sys.addaudithook(_watch)


def _limit(what: int, soft: int, hard: int | None = None) -> None:
    with contextlib.suppress(ValueError, OSError):  # macOS has no address space limit
        most = resource.getrlimit(what)[1]
        wanted = soft if hard is None else hard
        top = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        resource.setrlimit(what, (min(soft, top), top))


def _address_bytes() -> int:
    """Address space that this process has now."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 4096 * _MB


def _watch(event: str, arguments: tuple[Any, ...], *, end: Callable[[int], Any] = os._exit) -> None:
    """An audit hook: a scorer calculates and imports, and does nothing else."""
    if event in _ALLOWED_EVENTS:
        return
    if event == "open":
        flags = arguments[2]
        if isinstance(flags, builtins.int) and not flags & _WRITES:
            return
    end(REFUSED_STATUS)
