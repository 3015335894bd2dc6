"""The commands `toolrl search index`, `serve` and `query`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolrl.errors import ConfigError
from toolrl.protocols import Command
from toolrl.terminal_text import visible

if TYPE_CHECKING:
    from toolrl_plugin_search.passages import Hit


def _between(least: int, most: int = sys.maxsize) -> Callable[[str], int]:
    """Reads a whole number of an argument."""

    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value}, expected {least} to {most}")
        return value

    return number


_COUNT = _between(1)


class IndexCommand(Command):
    """A corpus to an index's folder."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        add = parser.add_argument
        add("corpus", nargs="+", metavar="FILE",
            help="JSON Lines with `contents` (its first line the title), or `title` and `text`; also .gz, also a glob",
            )  # fmt: skip
        add("--out", type=Path, required=True, metavar="FOLDER",
            help="where the index goes; passages are copied into it")  # fmt: skip
        add("--kind", choices=("bm25", "dense"), default="bm25", help="kind of index (default: %(default)s)")
        add("--overwrite", action="store_true", help="replace an index that is there")
        bm25, dense = parser.add_argument_group("bm25"), parser.add_argument_group("dense")
        add = bm25.add_argument
        add("--k1", type=float, default=0.9,
            help="how soon a word's repetition counts no more (default: %(default)s)")  # fmt: skip
        add("--b", type=float, default=0.4,
            help="how much a passage's length counts (default: %(default)s)")  # fmt: skip
        add = dense.add_argument
        add("--encoder", metavar="FOLDER", help="a transformers model with its tokenizer")
        add("--vectors", metavar="FILE", help="FAISS index with the passages' vectors, in their order")
        add("--device", default="cpu", help="where the encoder runs, cpu or cuda (default: %(default)s)")
        add("--batch-size", type=_COUNT, default=32, help="passages encoded together (default: %(default)s)")
        add("--max-tokens", type=_COUNT, default=256, help="tokens of a passage that count (default: %(default)s)")
        add("--query-prefix", default="query: ", help="put before queries (default: %(default)r)")
        add("--passage-prefix", default="passage: ", help="put before passages (default: %(default)r)")

    def run(self, args: argparse.Namespace) -> int:
        """Make the index; the exit status."""
        from toolrl.builtin.rows import find_files
        from toolrl_plugin_search.passages import read_corpus

        corpus = read_corpus(find_files(args.corpus))
        begin = time.monotonic()
        if args.kind == "bm25":
            from toolrl_plugin_search.bm25_build import build_bm25

            built = build_bm25(corpus, args.out, k1=args.k1, b=args.b, overwrite=args.overwrite, progress=_progress)
            facts = f"{built.passages} passages, {built.words} words, {built.vocabulary} different ones"
        else:
            facts = f"{_build_dense(corpus, args)} passages"
        size = sum(file.stat().st_size for file in args.out.expanduser().iterdir())
        print(f"{args.out}: {facts}; {size / 1e6:.1f} MB in {time.monotonic() - begin:.1f} s")
        return 0


def _build_dense(corpus: Any, args: argparse.Namespace) -> int:
    if args.encoder is None:
        raise ConfigError("a dense index needs an encoder", hint="Add --encoder FOLDER, such as one of e5-base-v2.")
    from toolrl_plugin_search.dense import Encoder, FaissVectors, build_dense

    vectors = FaissVectors(Path(args.vectors).expanduser()) if args.vectors is not None else None
    encoder = Encoder(args.encoder, device=args.device, max_tokens=args.max_tokens, batch_size=args.batch_size)
    return build_dense(
        corpus,
        args.out,
        encoder,
        encoder_name=str(Path(args.encoder).expanduser().absolute()),
        query_prefix=args.query_prefix,
        passage_prefix=args.passage_prefix,
        vectors=vectors,
        overwrite=args.overwrite,
        progress=_progress,
    )


class ServeCommand(Command):
    """A server of an index."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        from toolrl_plugin_search.options import MAX_TOPK

        add = parser.add_argument
        add("index", type=Path, metavar="FOLDER", help="folder of an index")
        add("--host", default="127.0.0.1",
            help="address to listen on; anyone who connects can read the corpus (default: %(default)s)")  # fmt: skip
        add("--port", type=_between(0, 65535), default=8000, help="0 for any that is free (default: %(default)s)")
        add("--topk", type=_between(1, MAX_TOPK), default=3,
            help="passages for a request that names no number (default: %(default)s)")  # fmt: skip
        add("--workers", type=_COUNT, default=1, metavar="N",
            help="batches that are searched at once (default: %(default)s)")  # fmt: skip
        add("--max-batch", type=_COUNT, default=64, metavar="N", help="queries of a batch (default: %(default)s)")
        _add_encoder(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Serve until SIGINT or SIGTERM; the exit status."""
        from toolrl_common.http_server import serve_until_stopped
        from toolrl_plugin_search.retrievers import open_index
        from toolrl_plugin_search.server import RetrievalServer

        index = open_index(args.index, encoder=args.encoder, device=args.device)
        names = ("host", "port", "topk", "workers", "max_batch")
        server = RetrievalServer(index, **{name: getattr(args, name) for name in names})

        def announce() -> None:
            print(f"serving {len(index)} passages ({index.kind}) on {server.url}/retrieve", flush=True)

        return asyncio.run(serve_until_stopped(server, announce))


class QueryCommand(Command):
    """A query, and what is found."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        add = parser.add_argument
        add("source", metavar="FOLDER|URL", help="folder of an index, or address of a retrieval server")
        add("query", help="what to look for")
        add("--topk", type=_COUNT, default=3, help="passages to show (default: %(default)s)")
        add("--json", action="store_true", help="print JSON, as a server answers")
        _add_encoder(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Print what is found; the exit status."""
        hits = _remote(args) if args.source.startswith(("http://", "https://")) else _local(args)
        if args.json:
            print(json.dumps({"result": [[{"document": hit.passage.document(), "score": hit.score} for hit in hits]]}))
            return 0
        for hit in hits:
            passage = hit.passage
            print(visible(f"{hit.score:8.3f}  {passage.id}  {passage.title}\n          {passage.text[:200]}"))
        return 0


def _local(args: argparse.Namespace) -> list[Hit]:
    from toolrl_plugin_search.retrievers import open_index

    return open_index(Path(args.source), encoder=args.encoder, device=args.device).search([args.query], args.topk)[0]


def _remote(args: argparse.Namespace) -> list[Hit]:
    from toolrl_plugin_search.client import RetrievalClient

    async def ask() -> list[Hit]:
        try:
            client = RetrievalClient(args.source)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        async with client:
            return (await client.retrieve([args.query], args.topk))[0]

    return asyncio.run(ask())


def _add_encoder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--encoder", metavar="FOLDER", help="dense index: its model, where that isn't where it was")
    parser.add_argument("--device", help="dense index: where the encoder runs, cpu or cuda (default: cpu)")


def _progress(passages: int) -> None:
    print(f"{passages} passages", file=sys.stderr, flush=True)
