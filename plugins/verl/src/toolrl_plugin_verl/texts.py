"""An episode's tokens as texts, as verl decodes them: control tokens left out."""

from __future__ import annotations

from typing import Any

from toolrl.types import Episode


def prompt_text(episode: Episode, tokenizer: Any) -> str:
    """What stood before the first sampled token. Without a tokenizer, the task's messages."""
    if tokenizer is None:
        return "\n".join(f"{message.role}\n{message.content}" for message in episode.task.messages)
    return _decoded(tokenizer, episode.main.ids[: episode.main.prompt_length])


def response_text(episode: Episode, tokenizer: Any) -> str:
    """Everything after the prompt, what tools answered included. Without a tokenizer, what the model wrote."""
    if tokenizer is None:
        return episode.model_text
    return _decoded(tokenizer, episode.main.ids[episode.main.prompt_length :])


def _decoded(tokenizer: Any, ids: tuple[int, ...]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True))
