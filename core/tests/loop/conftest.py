"""A trainer without tensors: what the loop sees of one."""

from __future__ import annotations

import pytest

from toolrl_testing.fakes import FakeTrainer


@pytest.fixture
def trainer() -> FakeTrainer:
    return FakeTrainer()
