"""A worker that receives broadcasts, as a process: reads what to receive from its input and prints what became of it.
Where it is told so it ends or stands still as soon as the first tensors have arrived."""

from __future__ import annotations

import ast
import asyncio
import functools
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from typing import Any

import torch

from toolrl_plugin_ray import broadcast
from toolrl_plugin_ray.broadcast import receive
from toolrl_plugin_torch.sharding import collective_group
from toolrl_plugin_torch.sharding.collective_group import TransferBrokenError


class Anything:
    """A module that has whatever tensors come."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return self.tensors

    def named_parameters(self, remove_duplicate: bool = True) -> list[Any]:
        return []


def main() -> None:
    module, broadcast.BUCKET_BYTES = Anything(), 1000
    while True:
        try:
            part, dies = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        for name, description in part.tensors.items():
            dtype, _, shape = description.partition(" ")
            module.tensors[name] = torch.empty(ast.literal_eval(shape), dtype=getattr(torch, dtype))
        if dies is not None:
            broadcast.broadcast = functools.partial(die, dies)
        try:
            asyncio.run(receive(part, module))
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
