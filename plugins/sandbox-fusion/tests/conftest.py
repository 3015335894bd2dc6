"""A sandbox that answers as a test says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from sandbox_answers import finished

from toolrl_testing.http_stub import HttpReply, HttpStub, http_stub


@pytest.fixture
def stub() -> Iterator[HttpStub]:
    """A server of this test alone."""
    with http_stub(lambda request: HttpReply(finished("ok\n"))) as made:
        yield made
