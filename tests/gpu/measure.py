"""Measure toolrl on a machine with a GPU: speed against the card's limits, exactness, step time against TRL, learning.

    python tests/gpu/measure.py all --model models/smollm2-135m-instruct --data data/gsm8k --out measured
    python tests/gpu/measure.py decode update --model … --out measured --minutes 9     # some parts, in nine minutes
    python tests/gpu/measure.py all --dry-run --out measured-dry                       # on a CPU, a tiny model, minutes

Each part is a process of its own, so that one that fails, hangs or runs out of memory takes no other along; what it
found is in OUT/results.json and, as tables, in OUT/results.md before the next one begins. A part that is done is not
done again unless `--again` is given: call the script as often as it takes, with `--minutes` where a call may only take
so long. `learn` goes on where it was stopped as long as its work folder is there.

Parts: `card` (bandwidth and matmul peak, which the others compare with; it always comes first), `decode`, `update`,
`exact`, `resume`, `trl`, and `learn`, which takes the longest. `--model` may be given several times.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from results import Result, Results  # noqa: E402 - beside this file
from settings import PARTS, ROOT, Settings  # noqa: E402

TAIL = 1500
"""Characters of a failed part's output that its reason keeps."""


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments().parse_args(argv)
    # So that what runs is ended with this process; it has a session of its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if args.child:
        return child(args.child[0], Path(args.child[1]))
    if unknown := {*args.parts} - {*PARTS, "all"}:
        arguments().error(f"no part is called {', '.join(sorted(unknown))}; there are {', '.join(PARTS)} and all")
    chosen = [name for name in PARTS if not args.parts or {name, "all"} & {*args.parts} or name == "card"]
    check(args)
    work = (args.work or args.out / "work").resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    settings = Settings(
        device=args.device or ("cpu" if args.dry_run else "cuda"),
        dry=args.dry_run,
        work=str(work),
        data=str(args.data.resolve()) if args.data else None,
        tool=args.tool,
        steps=args.steps or (2 if args.dry_run else 60),
        group_size=4 if args.dry_run else 8,
        prompts=2 if args.dry_run else 32,
        learning_rate=args.learning_rate,
    )
    models = [str(path.resolve()) for path in args.model]
    if args.dry_run:
        models, settings = tiny(settings)
    results = Results(args.out)
    if other := results.foreign(settings.kind):
        arguments().error(f"the results in {args.out} are of: {other}; name another --out")
    deadline = time.monotonic() + 60 * args.minutes if args.minutes else None
    return run(chosen, models, settings, results, deadline, again=args.again)


def check(args: argparse.Namespace) -> None:
    """End with what is wrong with the paths that were given, before anything is measured."""
    for path in [*args.model, *([args.data] if args.data else [])]:
        if not path.is_dir():
            arguments().error(f"there is no folder {path}")
    names = [path.resolve().name for path in args.model]
    if twice := {name for name in names if names.count(name) > 1}:
        arguments().error(f"results go by the folder's name, and two models are called {', '.join(sorted(twice))}")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}, or all (the default)")
    parser.add_argument("--model", type=Path, action="append", default=[], help="a model's folder")
    parser.add_argument("--data", type=Path, help="the folder with GSM8K's train.jsonl and test.jsonl, for `learn`")
    parser.add_argument("--out", type=Path, default=Path("measured"), help="where results.json and results.md go")
    parser.add_argument("--work", type=Path, help="where runs, logs and checkpoints go; OUT/work unless given")
    parser.add_argument("--minutes", type=float, help="end within so many minutes; what isn't done is left for later")
    parser.add_argument("--again", action="store_true", help="do parts that are done once more")
    parser.add_argument("--device", help="cuda, cuda:N or cpu; cuda unless --dry-run")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with a tiny model and few steps")
    parser.add_argument("--tool", choices=("calculator", "python"), default="python", help="of `learn`")
    parser.add_argument("--steps", type=int, help="of GRPO in `learn`")
    parser.add_argument("--learning-rate", type=float, default=1e-6, help="of GRPO in `learn`")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    return parser


def tiny(settings: Settings) -> tuple[list[str], Settings]:
    """The dry run's model, by the quickstart's script, and problems made up in the form of GSM8K."""
    import madeup

    folder = Path(settings.work) / "tiny"
    if not (folder / "config.json").exists():
        script = ROOT / "docs" / "examples" / "quickstart" / "make_model.py"
        subprocess.run([sys.executable, str(script), str(folder)], check=True, stdout=subprocess.DEVNULL)
    return [str(folder)], replace(settings, data=str(madeup.write(Path(settings.work) / "data")))


def run(
    chosen: Sequence[str],
    models: Sequence[str],
    settings: Settings,
    results: Results,
    deadline: float | None,
    *,
    again: bool,
) -> int:
    """The parts in order, each for each model where it has one; 1 where one failed."""
    failed = False
    for name in chosen:
        part = PARTS[name]
        for model in models if part.of_model else [""]:
            mine = replace(settings, model=model, card=results.figures("card"))
            key = f"{name}:{Path(model).name}" if model else name
            done = results.done(key)
            if done and not again:
                say(key, "done earlier", results.headline(key))
                continue
            left = deadline - time.monotonic() if deadline else None
            if left is not None and left < part.seconds and not settings.dry:
                say(key, "left out", f"it needs {part.seconds:.0f} s and {max(left, 0):.0f} s are left; call again")
                continue
            result = isolated(name, key, replace(mine, seconds_left=left, again=done))
            results.put(key, replace(result, kind=settings.kind))
            say(key, f"{result.status}, {result.seconds:.0f} s", results.headline(key))
            failed = failed or result.status == "failed"
        if part.of_model and not models:
            say(name, "left out", "it needs --model FOLDER")
    print(f"{results.markdown_path}\n{results.path}", flush=True)
    return int(failed)


def say(key: str, status: str, what: str) -> None:
    print(f"[{key}] {status}: {what}", flush=True)


def isolated(name: str, key: str, settings: Settings) -> Result:
    """One part in a process of its own, ended where it runs past its time."""
    folder = Path(settings.work)
    safe = key.replace(":", "-").replace("/", "-")
    question, answer, log = (folder / f"{safe}.{ending}" for ending in ("settings.json", "result.json", "log"))
    answer.unlink(missing_ok=True)
    question.write_text(settings.to_json())
    limit = PARTS[name].limit if settings.seconds_left is None else min(PARTS[name].limit, settings.seconds_left)
    started = time.monotonic()
    command = [sys.executable, str(HERE / "measure.py"), "--child", name, str(question)]
    with log.open("w") as output:
        # Its own session: what it starts (a training run, interpreters of a tool) is ended with it.
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(limit)
            reason = f"exit status {status}" if status >= 0 else f"ended by {signal.Signals(-status).name}"
        except subprocess.TimeoutExpired:
            reason = f"it ran past {limit:.0f} s"
        finally:
            end(process)
    seconds = time.monotonic() - started
    if answer.exists():
        return Result(**{**json.loads(answer.read_text()), "seconds": seconds})
    tail = log.read_text(errors="replace")[-TAIL:]
    return Result("failed", seconds, reason=f"{reason}; the end of its output:\n{tail}")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def child(name: str, question: Path) -> int:
    """Run a part here and write its result beside the question."""
    import importlib

    from settings import NotHereError, NotYetError

    settings = Settings.from_json(question.read_text())
    answer = question.with_name(question.name.replace(".settings.", ".result."))
    started = time.monotonic()
    try:
        figures = importlib.import_module(PARTS[name].module).run(settings)
        result = Result("ok", 0.0, figures)
    except NotYetError as pause:
        result = Result("partial", 0.0, pause.figures, str(pause))
    except NotHereError as why:
        result = Result("skipped", 0.0, reason=str(why))
    except Exception as error:  # noqa: BLE001 - the reason is the result
        import traceback

        trace = "".join(traceback.format_exception(error))[-TAIL:]
        result = Result("failed", 0.0, reason=f"{type(error).__name__}: {error}\n{trace}")
    answer.write_text(replace(result, seconds=time.monotonic() - started).to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
