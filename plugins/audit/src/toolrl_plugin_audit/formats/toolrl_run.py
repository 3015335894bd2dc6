"""Rows of a run folder of toolrl's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from toolrl.errors import DataError
from toolrl.runs.episodes import EpisodeFile
from toolrl.runs.folder import RunFolder
from toolrl.runs.records import StoredEpisode, episode_from_json
from toolrl.types import Episode, Trajectory, common_beginning
from toolrl_plugin_audit.row_checks import realigns
from toolrl_plugin_audit.rows import Row, Tokens, quote

CUTS = ("max_turns", "max_tokens", "context_full", "timeout")


class ToolrlRun:
    """A run, or its folder of episodes."""

    name = "episodes of toolrl"

    def __init__(self, path: Path) -> None:
        """Raises DataError."""
        folder = self._folder = RunFolder.open(path)
        self._pieces: dict[int, str] = {}
        rollout = folder.config.get("rollout")
        staleness = rollout.get("max_staleness") if isinstance(rollout, dict) else 0
        self.max_staleness = int(staleness or 0)
        held = folder.config.get("environments")
        environments = {
            name: it for name, it in (held if isinstance(held, dict) else {}).items() if isinstance(it, dict)
        }
        self._tools = {name: ("",) for name, it in environments.items() if it.get("tools")}
        algorithm = folder.config.get("algorithm")
        self._distils = isinstance(algorithm, dict) and bool(algorithm.get("distillation"))
        self._trains = False

    def files(self) -> Iterator[Iterator[Row]]:
        """The rows of each file."""
        self._pieces = self._folder.tokens()
        files = self._folder.episode_store.files()
        if not files:
            raise DataError(
                "this run has no episodes", where=str(self._folder.directory / "episodes"),
                hint="Fine-tuning plays none but in evaluations; else set run.save_episodes: true, or wait for a step.",
            )  # fmt: skip
        self._trains = any(file.kind == "train" for file in files)
        for file in files:
            yield self._rows(file)

    def _rows(self, file: EpisodeFile) -> Iterator[Row]:
        for record in file.records():
            try:
                episode = episode_from_json(record)
            except ValueError as error:
                raise DataError(str(error), where=str(file.path)) from error
            yield self._row(StoredEpisode(record["step"], record["kind"], episode), file.path)

    def _row(self, stored: StoredEpisode, path: Path) -> Row:
        episode = stored.episode
        train = stored.kind == "train" or (stored.kind is None and not self._trains)
        # With teachers, rewards needn't vary: the teachers' log-probabilities teach.
        scored = train and episode.failure is None and bool(episode.rewards) and not self._distils
        with_tokens = [it for it in episode.trajectories if it.ids]
        sampled = [it for it in with_tokens if it.trained and 1 in it.loss_mask]
        row = Row(f"{path.name}, episode {episode.id}", stored.step, episode.group, compared=scored)
        row.reward = episode.reward if episode.rewards else None
        cut_turn = (
            bool(episode.main.turns) and episode.main.turns[-1].finish == "length" and episode.stop_reason == "final"
        )
        row.ended = (
            episode.stop_reason
            if episode.stop_reason in CUTS
            else "its last turn was cut at a limit"
            if cut_turn
            else None
        )
        row.misplaced = _misplaced(episode) if episode.rewards else None
        row.calls = [item.name or "" for it in episode.trajectories for turn in it.turns for item in turn.items]
        task_tools = episode.task.tools
        row.tools = self._tools.get(episode.environment) if task_tools is None else task_tools
        if with_tokens:
            row.tokens = [self._tokens(it, number, episode) for number, it in enumerate(episode.trajectories) if it.ids]
            if self._pieces or len(with_tokens) > 1:
                row.drifts = [*self._other_text(episode), *self._other_tokens(episode)]
        if train and sampled and stored.step is not None:
            versions = [version for it in sampled for version in it.weight_versions if version >= 0]
            row.age = stored.step - 1 - min(versions, default=stored.step - 1)
        return row

    def _tokens(self, it: Trajectory, number: int, episode: Episode) -> Tokens:
        sampled = [False] * len(it.ids)
        for turn in it.turns:
            for segment in turn.segments:
                if segment.origin == "model":
                    start, end = segment.tokens
                    sampled[start:end] = [True] * len(sampled[start:end])
        named = f"trajectory {number} ({it.role})" if len(episode.trajectories) > 1 else ""
        return Tokens(
            it.ids,
            it.loss_mask,
            sampled,
            name=named,
            decode=self._decoder(it.ids),
        )

    def _decoder(self, ids: tuple[int, ...]) -> Callable[[int, int], str] | None:
        if not self._pieces:
            return None
        return lambda start, end: "".join(self._pieces.get(token, f"<{token}>") for token in ids[start:end])

    def _text(self, ids: tuple[int, ...]) -> str | None:
        if any(token not in self._pieces for token in ids):
            return None
        return "".join(self._pieces[token] for token in ids)

    def _other_text(self, episode: Episode) -> Iterator[str]:
        """Turns whose tokens don't spell the text that the model was read to have written."""
        for number, it in enumerate(episode.trajectories):
            for turn in it.turns if it.ids else ():
                for segment in turn.segments:
                    start, end = segment.tokens
                    text = self._text(it.ids[start:end]) if segment.origin == "model" else None
                    # A character that tokens share has no text in either of them.
                    if text is None or "\ufffd" in text or "\ufffd" in segment.text or text.startswith(segment.text):
                        continue
                    at = next(
                        (n for n, (a, b) in enumerate(zip(text, segment.text, strict=False)) if a != b), len(text)
                    )
                    wrote, say = (quote(it[max(at - 20, 0) :]) for it in (segment.text, text))
                    where = f"trajectory {number}, turn {turn.index}"
                    yield f"{where}: the model wrote {wrote}, the tokens {start} to {end - 1} say {say}"

    def _other_tokens(self, episode: Episode) -> Iterator[str]:
        """Later trajectories that restate sampled text in other tokens, and so are trained apart from their history."""
        for number, later in enumerate(episode.trajectories):
            for place, earlier in enumerate(episode.trajectories[:number]):
                if not earlier.turns or not later.ids or earlier.role != later.role:
                    continue
                given = min(len(earlier.ids), later.prompt_length)
                at = common_beginning(earlier.ids, later.ids, given)
                if at >= given or not earlier.loss_mask[at]:
                    continue
                segments = (segment for turn in earlier.turns for segment in turn.segments)
                end = next((it.tokens[1] for it in segments if it.tokens[0] <= at < it.tokens[1]), at + 1)
                was = self._text(earlier.ids[at:end])
                now = self._text(later.ids[at : later.prompt_length])
                if (was and now and now.startswith(was)) or realigns(earlier.ids, later.ids, at):
                    yield (
                        f"trajectory {number} restates a turn of trajectory {place} in other tokens: at {at}, "
                        f"{list(earlier.ids[at : at + 6])} became {list(later.ids[at : at + 6])}"
                        f"{': ' + quote(was) if was else ''}"
                    )
                    break


def _misplaced(episode: Episode) -> list[str]:
    turns = {turn.index for turn in episode.turns}
    roles = {it.role for it in episode.trajectories}
    return [
        f"{entry.source} gives {entry.value:g} to "
        + (
            f"turn {entry.turn} of {len(turns)}"
            if entry.turn is not None and entry.turn not in turns
            else f"role {entry.role!r}"
        )
        for entry in episode.rewards
        if turns
        and (
            (entry.turn is not None and entry.turn not in turns) or (entry.role is not None and entry.role not in roles)
        )
    ]
