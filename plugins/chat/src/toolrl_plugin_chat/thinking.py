"""Marks around a model's thinking, by the families that use them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """How one family writes a thinking block."""

    opening: str
    closing: str
    inner: str = "\n"
    """Between a mark and the thought."""
    after: str = "\n\n"
    """Between the block and what follows it."""

    def block(self, reasoning: str) -> str:
        """A thinking block as text, what follows it included."""
        return f"{self.opening}{self.inner}{self.rest(reasoning)}"

    def rest(self, reasoning: str) -> str:
        """The same where the prompt opened the block already."""
        return f"{reasoning}{self.inner}{self.closing}{self.after}"


THINK = ThinkingMarks("<think>", "</think>")
_KNOWN = (
    THINK,
    ThinkingMarks("[THINK]", "[/THINK]", "", ""),
    ThinkingMarks("<seed:think>", "</seed:think>", "", ""),
    ThinkingMarks("<|START_THINKING|>", "<|END_THINKING|>", "", ""),
    ThinkingMarks("<|channel>thought", "<channel|>", "\n", ""),
)


def marks_in(text: str) -> ThinkingMarks:
    """The marks that a template's source names; `<think>` where it names none."""
    return next((marks for marks in _KNOWN if marks.opening in text or marks.closing in text), THINK)


def opened_marks(text: str) -> ThinkingMarks | None:
    """The marks of the thinking block that a prompt ends inside of, or None."""
    return next((marks for marks in _KNOWN if text.rstrip().endswith(marks.opening)), None)


def closes_thinking(text: str) -> bool:
    """Whether a prompt ends with a thinking block that it closed itself, so that the model doesn't think."""
    return text.rstrip().endswith(tuple(marks.closing for marks in _KNOWN))
