"""Options of the calculator."""

from __future__ import annotations

from pydantic import BaseModel, Field

DESCRIPTION = "Evaluates an arithmetic expression exactly, for example (12.5 + 3) * 4, 2**10 or sqrt(2)."


class CalculatorOptions(BaseModel, extra="forbid"):
    """Options of the tool `calculator`."""

    precision: int = Field(
        12, ge=1, le=50, description="Significant digits of a result that isn't a whole number or a decimal that ends."
    )
    max_digits: int = Field(
        1000,
        ge=20,
        le=4000,
        description="Digits that a number may have: one that has more on the way is rounded, a result with more before "
        "the point is an error for the model.",
    )
    max_length: int = Field(1000, ge=1, le=4000, description="Characters that an expression may have.")
    description: str = Field(
        DESCRIPTION, min_length=1, description="The description for the model; a shorter one shortens the prompt."
    )
