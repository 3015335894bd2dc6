"""For all tests: tests that are coroutine functions, and what a test changes in its process is restored."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Generator, Iterator

import pytest

from toolrl_testing.clock import run_in_virtual_time


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine function on an event loop of its own, whose time may be virtual."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    virtual = pyfuncitem.get_closest_marker("virtual_time") is not None
    (run_in_virtual_time if virtual else asyncio.run)(pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test logged may hold half a character, which can't be sent between the processes of pytest-xdist."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def _process_state() -> Iterator[None]:
    """Restores the environment, the working folder, the import path, and what a deterministic run sets in torch."""
    environment, folder, path = dict(os.environ), os.getcwd(), list(sys.path)  # noqa: PTH109
    yield
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = path
    if "torch" in sys.modules:
        sys.modules["torch"].use_deterministic_algorithms(False)
