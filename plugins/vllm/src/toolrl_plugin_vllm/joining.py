"""One generation of several: a weight update interrupted it, and it went on from its own tokens with the new weights.

Each part keeps the version that sampled it. A stop string that lies across a seam is found here, as no server looks for
one in its prompt; and one that a server passed over is found here, too. What comes after the token that completes it is
dropped, as if it had never been sampled.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Sequence

from toolrl.types import Generation


def join(parts: Sequence[Generation]) -> Generation:
    """One generation. What ended it is what ended its last part; what was cached is what the first found."""
    last = parts[-1]
    return Generation(
        tuple(token for part in parts for token in part.ids),
        tuple(value for part in parts for value in part.logprobs),
        last.finish,
        last.stopped_by,
        versions=tuple(version for part in parts for version in part.versions),
        cached=parts[0].cached,
    )


def cut_at_stop(found: Generation, stops: Sequence[str], decode: Callable[[Sequence[int]], str]) -> Generation:
    """The generation up to the token that completes the first of `stops`; as it is where none is in its text."""
    text = decode(found.ids)
    wanted = [stop for stop in stops if stop and stop in text]
    if not wanted:
        return found
    lengths = range(1, len(found.ids))
    few = 1 + bisect_left(lengths, True, key=lambda length: any(stop in decode(found.ids[:length]) for stop in wanted))
    text = decode(found.ids[:few])
    stop = min((stop for stop in wanted if stop in text), key=lambda stop: text.find(stop) + len(stop))
    if few == len(found.ids) and found.finish == "stop":
        return found
    return dataclasses.replace(
        found,
        ids=found.ids[:few],
        logprobs=found.logprobs[:few],
        versions=found.versions[:few],
        finish="stop",
        stopped_by=stop,
    )
