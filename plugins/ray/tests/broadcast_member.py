"""A worker that receives broadcasts, as a process: reads what to receive from its input and prints what became of it.
Where it is told so it ends or stands still as soon as the first tensors have arrived."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import signal
import sys
from typing import Any

import torch

from toolrl_plugin_ray import broadcast
from toolrl_plugin_ray.broadcast import WeightReceiver, unpack
from toolrl_plugin_ray.messages import TransferBrokenError


class Anything:
    """A module that has whatever tensors come."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return self.tensors

    def named_parameters(self, remove_duplicate: bool = True) -> list[Any]:
        return []


def main() -> None:
    receiver, module = WeightReceiver(), Anything()
    while True:
        try:
            part, dies = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        for bucket in part.buckets:
            for name, tensor in unpack(bucket, torch.empty(bucket.size, dtype=torch.uint8)).items():
                module.tensors[name] = torch.empty_like(tensor)
        if dies is not None:
            broadcast.unpack = functools.partial(die, dies)
        try:
            asyncio.run(receiver.receive(part, module))
            print("done", flush=True)
        except TransferBrokenError as error:
            print(error.message.replace("\n", " "), flush=True)


def die(how: signal.Signals, *_: object) -> None:
    if how == signal.SIGSTOP:
        print("standing", flush=True)
    os.kill(os.getpid(), how)


if __name__ == "__main__":
    main()
