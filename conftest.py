"""For all tests: what a test changes in its process, the tests after it don't see."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _process_state() -> Iterator[None]:
    """Restores the environment, the working folder and the import path."""
    environment, folder, path = dict(os.environ), os.getcwd(), list(sys.path)  # noqa: PTH109
    yield
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = path
