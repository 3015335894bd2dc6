"""BM25 over a million generated passages: time to index, time of a query, memory; and the same beside a peer.

    python tests/benchmarks/bench_search.py                        # the million, and 50,000 beside bm25s
    python tests/benchmarks/bench_search.py --json OUT.json

Passages have 100 words of a vocabulary of 200,000, drawn by Zipf's law with exponent 1.1. A query is eight words that
stand beside each other in some passage, so most are frequent ones. Each part runs in a process of its own with one
thread; its memory is the largest resident set that the system saw of it, mapped files included. The limits hold for
seconds of the clock; on a machine that does other work, too, the processor's say more.

The peer is bm25s (`pip install bm25s`), with numpy only: it gets the same words, the same formula and constants, and
what it finds is compared. Indexing takes turns in both orders, queries are timed in many rounds that turn their order
round; a figure is the median.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from toolrl_plugin_search.bm25 import Bm25Index
from toolrl_plugin_search.bm25_build import build_bm25
from toolrl_plugin_search.passages import Passage

WORDS, VOCABULARY, EXPONENT = 100, 200_000, 1.1
QUERY_WORDS, TOPK = 8, 3
LIMITS = {"index seconds": 600.0, "query ms": 20.0, "memory GB": 6.0}


def passages(count: int, seed: int = 0) -> Iterator[Passage]:
    """Generated passages, a thousand drawn at a time."""
    chance = np.random.default_rng(seed)
    shares = np.arange(1, VOCABULARY + 1) ** -EXPONENT
    bounds = np.cumsum(shares / shares.sum())
    names = [f"w{number}" for number in range(VOCABULARY)]
    for start in range(0, count, 1000):
        drawn = np.minimum(np.searchsorted(bounds, chance.random((1000, WORDS))), VOCABULARY - 1)
        for offset, row in enumerate(drawn[: count - start].tolist()):
            yield Passage(str(start + offset), " ".join([names[word] for word in row]))


def queries_of(texts: Iterator[Passage], count: int, among: int) -> list[str]:
    """Words that stand beside each other, of passages spread over the first `among`."""
    wanted = set(np.linspace(0, among - 1, count).astype(int).tolist())
    chance = np.random.default_rng(1)
    found = []
    for number, passage in enumerate(texts):
        if number in wanted:
            start = int(chance.integers(0, WORDS - QUERY_WORDS))
            found.append(" ".join(passage.contents.split()[start : start + QUERY_WORDS]))
        if number >= among - 1:
            break
    return found


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what it gives."""
    begin = time.perf_counter()
    value = work()
    return time.perf_counter() - begin, value


def peak_gb() -> float:
    """The largest resident set of this process so far, in 10⁹ bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def in_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """What `work` gives in a new process, whose memory is its own."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(work, arguments)


def index_part(folder: str, count: int) -> dict[str, float]:
    """Index so many passages."""
    begin = time.process_time()
    seconds, _ = timed(lambda: sum(1 for _ in passages(count)))
    between = time.process_time()
    total, built = timed(lambda: build_bm25(passages(count), Path(folder), overwrite=True))
    processor = (time.process_time() - between) - (between - begin)
    size = sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e9
    return {"index seconds": total - seconds, "index processor seconds": processor, "generating seconds": seconds,
            "index memory GB": peak_gb(), "index GB": size, "entries": float(built.entries)}  # fmt: skip


def query_part(folder: str, queries: list[str]) -> dict[str, float]:
    """Search them one by one, each once after a first round that reads the files."""
    opening, index = timed(lambda: Bm25Index(Path(folder)))
    cold = [timed(lambda query=query: index.search([query], TOPK))[0] for query in queries]
    warm = sorted(timed(lambda query=query: index.search([query], TOPK))[0] for query in queries)
    return {"opening ms": opening * 1e3, "first query ms": cold[0] * 1e3, "cold ms": statistics.median(cold) * 1e3,
            "query ms": statistics.median(warm) * 1e3, "95% of queries ms": warm[int(0.95 * len(warm))] * 1e3,
            "slowest query ms": warm[-1] * 1e3, "search memory GB": peak_gb()}  # fmt: skip


def million(count: int, queries: int, folder: Path) -> dict[str, float]:
    """Index and search so many passages, each in its own process."""
    asked = queries_of(passages(count), queries, min(count, 50_000))
    figures = in_process(index_part, str(folder), count)
    figures.update(in_process(query_part, str(folder), asked))
    figures["memory GB"] = max(figures["index memory GB"], figures["search memory GB"])
    return {"passages": float(count), **figures}


# Beside the peer.


def ours_built(texts: list[str], folder: Path) -> Any:
    build_bm25((Passage(str(number), text) for number, text in enumerate(texts)), folder, overwrite=True)
    return Bm25Index(folder)


def peer_built(texts: list[str]) -> Any:
    import bm25s

    made = bm25s.BM25(k1=0.9, b=0.4, method="lucene", backend="numpy")
    tokens = bm25s.tokenize(texts, stopwords=None, token_pattern=r"[a-z0-9]+", show_progress=False)
    made.index(tokens, show_progress=False)
    return made


def peer_search(made: Any, query: str) -> list[tuple[int, float]]:
    import bm25s

    tokens = bm25s.tokenize([query], stopwords=None, token_pattern=r"[a-z0-9]+", show_progress=False, return_ids=False)
    numbers, scores = made.retrieve(tokens, k=TOPK, show_progress=False, n_threads=0)
    return [(int(number), float(score)) for number, score in zip(numbers[0], scores[0], strict=True)]


def beside_peer(count: int, queries: int, rounds: int, folder: Path) -> dict[str, float]:
    """Index in both orders, search in many rounds, compare what is found."""
    texts = [passage.contents for passage in passages(count)]
    asked = queries_of(passages(count), queries, count)
    ways: dict[str, Callable[[], Any]] = {
        "toolrl": lambda: ours_built(texts, folder),
        "bm25s": lambda: peer_built(texts),
    }
    built: dict[str, Any] = {}
    indexing: dict[str, list[float]] = {name: [] for name in ways}
    for order in (list(ways), list(ways)[::-1]):
        for name in order:
            seconds, built[name] = timed(ways[name])
            indexing[name].append(seconds)
    searches: dict[str, Callable[[str], Any]] = {
        "toolrl": lambda query: built["toolrl"].numbers(query, TOPK),
        "bm25s": lambda query: peer_search(built["bm25s"], query),
    }
    seen: dict[str, list[float]] = {name: [] for name in searches}
    order = list(searches)
    for _ in range(rounds):
        for query in asked:
            for name in order:
                seen[name].append(timed(lambda name=name, query=query: searches[name](query))[0])
        order.reverse()
    same = sum(agree(searches["toolrl"](query), searches["bm25s"](query)) for query in asked)
    figures = {f"{name} index seconds": statistics.median(values) for name, values in indexing.items()}
    figures.update({f"{name} query ms": statistics.median(values) * 1e3 for name, values in seen.items()})
    ratios = [theirs / ours for ours, theirs in zip(seen["toolrl"], seen["bm25s"], strict=True)]
    return {"passages": float(count), **figures, "query ratio": statistics.median(ratios), "same": same / len(asked)}


def agree(ours: list[tuple[int, float]], theirs: list[tuple[int, float]]) -> bool:
    """The same scores; of equal ones, which passage comes first is left to each."""
    return len(ours) == len(theirs) and bool(
        np.allclose([score for _, score in ours], [score for _, score in theirs], rtol=1e-4)
    )


def show(title: str, figures: dict[str, float]) -> None:
    print(f"\n{title}")
    for name, value in figures.items():
        print(f"  {name:24}{value:>14,.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=1_000_000, help="of the large part; 0 leaves it out")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--beside", type=int, default=50_000, help="of the part with the peer; 0 leaves it out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="OUT", type=Path, help="also write the figures to a file")
    args = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-search-") as name:
        folder = Path(name)
        if args.beside:
            figures["beside bm25s"] = beside_peer(args.beside, args.queries, args.rounds, folder / "small")
            show("beside bm25s", figures["beside bm25s"])
        if args.passages:
            figures["large"] = million(args.passages, args.queries, folder / "large")
            show("BM25", figures["large"])
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    over = [f"{name} {figures['large'][name]:.2f} above {most:g}" for name, most in LIMITS.items()
            if "large" in figures and figures["large"][name] > most]  # fmt: skip
    if over:
        print(f"above the limits: {'; '.join(over)}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
