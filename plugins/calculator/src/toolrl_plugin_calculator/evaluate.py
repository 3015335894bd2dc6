"""Evaluates one arithmetic expression, exactly where that is possible, within bounds that keep every call short.

The text is first brought into Python's notation (`notation.py`), parsed by `ast.parse`, and walked; nothing is ever
executed. Work is bounded before it is done: the text's length, the tree's depth, and the digits of every number on the
way. A power, a factorial or a literal's exponent is rounded or refused by an estimate of its size, never by trying. All
failures are a `ToolError` whose text is what the model should write instead.
"""

from __future__ import annotations

import ast
import re
import warnings
from fractions import Fraction

from toolrl.errors import ToolError
from toolrl_plugin_calculator import functions
from toolrl_plugin_calculator.arithmetic import BoundedArithmetic, Number
from toolrl_plugin_calculator.notation import show, to_python
from toolrl_plugin_calculator.options import CalculatorOptions

ALLOWED = "Use numbers, + - * / // % **, parentheses, and functions such as sqrt(2), round(3.14159, 2) or max(1, 2)."
MAX_DEPTH = 100
_OPERATORS = {
    ast.Add: BoundedArithmetic.add, ast.Sub: BoundedArithmetic.subtract, ast.Mult: BoundedArithmetic.multiply,
    ast.Div: BoundedArithmetic.divide, ast.FloorDiv: BoundedArithmetic.floor_divide, ast.Mod: BoundedArithmetic.modulo,
    ast.Pow: BoundedArithmetic.power,
}  # fmt: skip
_EXPONENT = re.compile(r"[eE]([+-]?\d+)")


class ExpressionEvaluator:
    """Evaluates expressions within the bounds of its options. Keeps nothing between calls."""

    def __init__(self, options: CalculatorOptions | None = None) -> None:
        self.limits = options or CalculatorOptions()

    def __call__(self, expression: str) -> str:
        """The value as text, after `≈` if digits of it were left out. Raises ToolError."""
        arithmetic = BoundedArithmetic(self.limits.precision, self.limits.max_digits)
        value = _Evaluation(arithmetic, self.limits).value(expression)
        return show(value, self.limits.precision, rounded=arithmetic.rounded)

    def value(self, expression: str) -> Number:
        """The value as a number: an int if it is whole, a Fraction if it is rational. Raises ToolError."""
        return _Evaluation(BoundedArithmetic(self.limits.precision, self.limits.max_digits), self.limits).value(
            expression
        )


class _Evaluation:
    """Evaluates one expression."""

    def __init__(self, arithmetic: BoundedArithmetic, limits: CalculatorOptions) -> None:
        self._arithmetic = arithmetic
        self._limits = limits

    def value(self, expression: str) -> Number:
        """The value. Raises ToolError."""
        longest = self._limits.max_length
        if len(expression) > longest:
            raise ToolError(f"The expression has {len(expression)} characters; at most {longest} are read. Split it.")
        source = to_python(expression)
        if not source:
            raise ToolError(f"The expression is empty. {ALLOWED}")
        try:
            with warnings.catch_warnings():  # of odd spellings, such as `1if 1else 2`
                warnings.simplefilter("ignore")
                tree = ast.parse(source, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ToolError(_syntax_message(source, error)) from None
        return self._arithmetic.result(self._walk(tree.body, source, MAX_DEPTH))

    def _walk(self, node: ast.expr, source: str, depth: int) -> Number:
        if depth == 0:
            raise ToolError(f"The expression is nested more than {MAX_DEPTH} levels deep. Split it into steps.")
        match node:
            case ast.Constant():
                return self._literal(node, source)
            case ast.BinOp():
                return self._chain(node, source, depth - 1)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                value = self._walk(node.operand, source, depth - 1)
                return -value if isinstance(node.op, ast.USub) else value
            case ast.Call():
                return self._call(node, source, depth - 1)
            case ast.Name():
                return functions.constant(self._arithmetic, node.id)
        raise ToolError(_unsupported(node, source))

    def _chain(self, node: ast.BinOp, source: str, depth: int) -> Number:
        """A run of binary operators. It is a tree that leans left, walked in a loop: a long sum isn't deep."""
        chain = [node]
        while isinstance(chain[-1].left, ast.BinOp):
            chain.append(chain[-1].left)
        value = self._walk(chain[-1].left, source, depth)
        for link in reversed(chain):
            apply = _OPERATORS.get(type(link.op))
            if apply is None:
                raise ToolError(_unsupported(link, source))
            value = apply(self._arithmetic, value, self._walk(link.right, source, depth))
        return value

    def _call(self, node: ast.Call, source: str, depth: int) -> Number:
        if not isinstance(node.func, ast.Name):
            written = ast.get_source_segment(source, node.func) or "it"
            raise ToolError(f"{_cut(written)} is no function. Between factors write *, as in 2*(3 + 4).")
        function = functions.find(node.func.id)
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise ToolError(f"{node.func.id} takes plain arguments only, as in {function.example}.")
        return function(self._arithmetic, [self._walk(argument, source, depth) for argument in node.args])

    def _literal(self, node: ast.Constant, source: str) -> Number:
        if type(node.value) not in (int, float):
            written = ast.get_source_segment(source, node) or repr(node.value)
            raise ToolError(f"{_cut(written)} is no number. {ALLOWED}")
        if type(node.value) is int:
            return self._arithmetic.bounded(node.value)
        # The float has lost digits already: read the text it was written as.
        text = source[node.col_offset : node.end_col_offset].replace("_", "")
        exponent = _EXPONENT.search(text)
        if exponent is not None and abs(int(exponent[1])) > self._limits.max_digits:
            raise ToolError(f"{_cut(text)} is out of range: numbers have at most {self._limits.max_digits} digits.")
        return self._arithmetic.bounded(Fraction(text))


def _cut(text: str, length: int = 40) -> str:
    text = text if len(text) <= length else text[: length - 1] + "…"
    return f"'{text}'"


def _unsupported(node: ast.expr, source: str) -> str:
    written = _cut(ast.get_source_segment(source, node) or source)
    return f"{written} isn't arithmetic. {ALLOWED}"


def _syntax_message(source: str, error: Exception) -> str:
    if not isinstance(error, SyntaxError) or "nested" in (error.msg or ""):
        return "The expression is nested too deeply, or holds a null byte. Split it into steps."
    at = (error.offset or 0) - 1
    near = f" near {_cut(source[at : at + 12])}" if 0 <= at < len(source) else " to its end"
    return f"Can't read {_cut(source)}{near}. {ALLOWED}"
