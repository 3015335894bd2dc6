"""Log-probabilities of given tokens, for teachers of distillation: texts that wait together are computed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from toolrl.errors import EngineError
from toolrl.types import MediaInput
from toolrl_plugin_torch.batch import Sample, pack
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_transformers.model import ModelRunner


@dataclass(frozen=True, slots=True)
class Text:
    """A request to score `ids[start:]`."""

    ids: Sequence[int]
    start: int
    temperature: float
    media: Sequence[MediaInput]
    found: list[float] = field(default_factory=list)
    """Filled in by `score`."""

    def problem(self, runner: ModelRunner) -> str | None:
        """What makes it impossible, or None."""
        if not 1 <= self.start <= len(self.ids):
            return f"start is {self.start}, expected 1 to {len(self.ids)}, the number of tokens"
        if not 0 <= min(self.ids) <= max(self.ids) < runner.vocabulary:
            return f"the text holds ids outside of the model's vocabulary of {runner.vocabulary}"
        if runner.max_positions is not None and len(self.ids) > runner.max_positions:
            return f"{len(self.ids)} tokens exceed the {runner.max_positions} that this model can have here"
        return None if self.temperature > 0 else f"temperature is {self.temperature}, expected more than 0"


class Scorer:
    """Scores texts with the engine's model, right-padded, under a budget of positions. `waiting` may be appended to by
    another thread."""

    def __init__(self, budget: int) -> None:
        self.waiting: list[Text] = []
        self._budget = budget
        self._scorer: TokenScorer | None = None

    def run(self, runner: ModelRunner) -> None:
        """Score all that wait. Logits of all positions are never held at once."""
        texts, self.waiting = self.waiting, []
        for temperature in sorted({text.temperature for text in texts}):
            self._score([text for text in texts if text.temperature == temperature], runner, temperature)

    def _score(self, texts: Sequence[Text], runner: ModelRunner, temperature: float) -> None:
        if self._scorer is None or self._scorer.model is not runner.module:
            self._scorer = TokenScorer(runner.module)
        samples = []
        for text in texts:
            nothing = [0.0] * len(text.ids)
            mask = [0] * text.start + [1] * (len(text.ids) - text.start)
            samples.append(Sample(text.ids, mask, nothing, nothing, text.media))
        for packed in pack(samples, self._budget):
            batch = packed.to(runner.device)
            found = self._scorer(
                batch.input_ids_BT, batch.attention_mask_BT, batch.loss_mask_BT,
                temperature=temperature, media=batch.media,
            )  # fmt: skip
            for row, place in enumerate(batch.samples):
                text = texts[place]
                text.found.extend(found.logprobs_BT[row, text.start : len(text.ids)].tolist())


def finished(text: Text) -> list[float]:
    """Its log-probabilities. Raises EngineError where the batch that it was in failed."""
    if len(text.found) != len(text.ids) - text.start:
        raise EngineError("the batch that the text was scored in failed")
    return text.found
