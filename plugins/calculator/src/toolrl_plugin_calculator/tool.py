"""The tool `calculator`: one expression in, its value out."""

from __future__ import annotations

from toolrl.protocols import BuildContext
from toolrl.tools import FunctionTool, tool
from toolrl_plugin_calculator.evaluate import ExpressionEvaluator
from toolrl_plugin_calculator.options import CalculatorOptions


def build(options: CalculatorOptions | None, context: BuildContext) -> FunctionTool:
    """The tool with these options. It keeps no state."""
    options = options or CalculatorOptions()
    evaluate = ExpressionEvaluator(options)

    @tool(name="calculator", description=options.description, pure=True)
    def calculator(expression: str) -> str:
        return evaluate(expression)

    return calculator
