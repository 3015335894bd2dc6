"""The tool of the agents in this folder."""

import ast
import operator

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calculator(expression: str) -> str:
    """Evaluates an arithmetic expression exactly, for example (12.5 + 3) * 4, 2**10 or sqrt(2).

    Args:
        expression: Numbers with + - * / and parentheses.
    """

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant(int() | float()):
                return node.value
            case ast.BinOp() if type(node.op) in OPERATORS:
                return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError("use numbers, + - * / and parentheses")

    try:
        return str(value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ArithmeticError) as error:
        return f"Error: {error}"


TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluates an arithmetic expression exactly, for example (12.5 + 3) * 4, 2**10 or sqrt(2).",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
