"""A worker that receives broadcasts, as a process: reads what to receive from its input and prints what became of it.
Where it is told so it ends or stands still as soon as the first tensors have arrived."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from typing import Any

from toolrl_plugin_torch.sharding import collective_group, transfer
from toolrl_plugin_torch.sharding.collective_group import TransferBrokenError


def main() -> None:
    while True:
        try:
            part, dies = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        if dies is not None:
            transfer.broadcast = functools.partial(die, dies)
        try:
            dict(transfer.receive(part.place))
            print("done", flush=True)
        except TransferBrokenError as error:
            print(error.message.replace("\n", " "), flush=True)


def die(how: signal.Signals, *arguments: Any) -> Iterator[Any]:
    for tensor in collective_group.broadcast(*arguments):
        if how == signal.SIGSTOP:
            print("standing", flush=True)
        os.kill(os.getpid(), how)
        yield tensor


if __name__ == "__main__":
    main()
