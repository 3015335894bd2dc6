"""Runs a coroutine for a command: Ctrl-C and SIGTERM end it in order, a second one at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

EXIT_OF = {signal.SIGINT: 130, signal.SIGTERM: 143}

_interrupts: dict[int, Callable[[], Any]] = {}
"""By thread, what a Ctrl-C does to the run in it: only the main thread is sent signals."""


def interrupt_thread(thread: int | None) -> None:
    """End the run in another thread as Ctrl-C ends one in the main thread."""
    if thread is not None and thread in _interrupts:
        _interrupts[thread]()


def run_to_end(
    main: Coroutine[Any, Any, int], *, interrupt: Callable[[], None] | None = None, silent: bool = False
) -> int:
    """The coroutine's exit status; 130 or 143 where Ctrl-C or SIGTERM ended it. `interrupt` has it end itself, where it
    can't be cancelled at any point; `silent` prints nothing."""
    caught: list[signal.Signals] = []

    async def supervised() -> int:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(main)

        def stop(number: signal.Signals) -> None:
            caught.append(number)
            (interrupt or task.cancel)()

        def caught_one(number: signal.Signals) -> None:
            if caught:
                os._exit(EXIT_OF[number])
            if not silent:
                print(f"{number.name}: saving what is done; once more ends at once", file=sys.stderr)
            stop(number)

        in_main_thread = threading.current_thread() is threading.main_thread()
        for number in EXIT_OF if in_main_thread else ():
            loop.add_signal_handler(number, caught_one, number)
        if not in_main_thread:
            _interrupts[threading.get_ident()] = partial(loop.call_soon_threadsafe, stop, signal.SIGINT)
        try:
            return await task
        except asyncio.CancelledError:
            if not caught and interrupt is None:
                raise
            # The signal reached another rank: this one ends alike.
            return EXIT_OF[caught[0] if caught else signal.SIGTERM]
        finally:
            _interrupts.pop(threading.get_ident(), None)
            for number in EXIT_OF if in_main_thread else ():
                loop.remove_signal_handler(number)

    return asyncio.run(supervised())
