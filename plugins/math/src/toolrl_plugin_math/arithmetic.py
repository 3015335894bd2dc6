"""Data sets `arithmetic` and `arithmetic_demos`: generated problems that a small model can't do in its head.

Task i is a pure function of seed, split, kinds and i: nothing is stored, any task can be had alone, and a resumed run
finds the same ones. An expression belongs to the held-out tenth or to training by a hash of its operands in order of
size, so 12 * 34 and 34 * 12 are on the same side, in every kind, style and seed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from toolrl.protocols import BuildContext
from toolrl.types import Message, Task, ToolCall
from toolrl_plugin_math.options import ArithmeticOptions, DemonstrationOptions, Kind

HELD_OUT_SHARE = 10
"""One in so many expressions is held out."""
WORDS = "Tom packs {0} boxes with {1} pens each and adds {2} pens. How many pens are there in all?"
MAX_DIGITS = 6
"""Of a random result: those of true results, and one more."""

_DIGITS: dict[Kind, tuple[int, ...]] = {
    "tiny_sum": (1, 1),
    "sum": (3, 3),
    "product": (2, 2),
    "long_product": (3, 2),
    "multiply_add": (2, 2, 2),
    "word": (2, 2, 2),
}
"""How many digits each operand has."""


@dataclass(frozen=True, slots=True)
class ArithmeticProblem:
    """An expression over whole numbers, and its value."""

    kind: Kind
    operands: tuple[int, ...]

    @property
    def operator(self) -> str:
        """Between the first two operands; a third one is added."""
        return "+" if self.kind in ("tiny_sum", "sum") else "*"

    @property
    def expression(self) -> str:
        """With a space around each operator, as it stands in the question."""
        first, second, *rest = self.operands
        return " + ".join([f"{first} {self.operator} {second}", *map(str, rest)])

    @property
    def value(self) -> int:
        first, second, *rest = self.operands
        return (first + second if self.operator == "+" else first * second) + sum(rest)

    @property
    def held_out(self) -> bool:
        """Whether it belongs to the split `heldout`."""
        low, high, *rest = *sorted(self.operands[:2]), *self.operands[2:]
        key = f"{low}{self.operator}{high}" + "".join(f"+{number}" for number in rest)
        return hashlib.sha256(key.encode()).digest()[0] * HELD_OUT_SHARE < 256

    @property
    def question(self) -> str:
        """What the user asks."""
        return WORDS.format(*self.operands) if self.kind == "word" else f"What is {self.expression}?"


class Arithmetic:
    """Problems with their answers."""

    def __init__(self, options: ArithmeticOptions | None, context: BuildContext) -> None:
        self._options = options or ArithmeticOptions()

    def __len__(self) -> int:
        return self._options.size

    def __getitem__(self, index: int) -> Task:
        options = self._options
        if not 0 <= index < options.size:
            raise IndexError(f"task {index} of a data set of {options.size}")
        chance = random.Random(f"{options.seed}/{options.split}/{index}")
        problem = self._problem(chance)
        turns, environment, extra = self._shown(problem, chance)
        return Task(
            id=f"arithmetic-{options.split}-{options.seed}-{index}",
            messages=(Message("user", problem.question), *turns),
            answer=str(problem.value),
            environment=environment,
            extra={"kind": problem.kind, "expression": problem.expression, **extra},
        )

    def _shown(
        self, problem: ArithmeticProblem, chance: random.Random
    ) -> tuple[Sequence[Message], str | None, dict[str, bool]]:
        """What follows the question, the environment, and what else is noted."""
        return (), self._options.environment, {}

    def _problem(self, chance: random.Random) -> ArithmeticProblem:
        kind = chance.choice(self._options.kinds)
        wanted = self._options.split == "heldout"
        while True:
            operands = tuple(_number(chance, digits) for digits in _DIGITS[kind])
            problem = ArithmeticProblem(kind, operands)
            if problem.held_out == wanted:
                return problem


class ArithmeticDemonstrations(Arithmetic):
    """The same problems with an assistant's turns: for supervised fine-tuning.

    Some are answered directly, most by a call. Half of the calls get a random number as result, and the answer is that
    number: so the answer can only be learnt by copying it, and not by heart.
    """

    _options: DemonstrationOptions

    def __init__(self, options: DemonstrationOptions, context: BuildContext) -> None:
        super().__init__(options, context)

    def _shown(
        self, problem: ArithmeticProblem, chance: random.Random
    ) -> tuple[Sequence[Message], str | None, dict[str, bool]]:
        options = self._options
        without_tools = chance.random() < options.no_tool_share
        calls = chance.random() < options.call_share and not without_tools
        invented = chance.random() < options.random_result_share and calls
        result = str(_number(chance, chance.randint(1, MAX_DIGITS)) if invented else problem.value)
        turns = [Message("assistant", result)]
        if calls:
            call = ToolCall(options.tool, {"expression": problem.expression})
            turns[:0] = [Message("assistant", tool_calls=(call,)), Message("tool", result, name=options.tool)]
        environment = options.no_tool_environment if without_tools else options.environment
        return turns, environment, {"calls": calls, "random_result": invented}


def _number(chance: random.Random, digits: int) -> int:
    """Without a leading zero; of one digit also 0."""
    return chance.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
