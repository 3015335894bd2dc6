"""`toolrl audit` on clean and broken dumps of each system."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.cli.main import main
from toolrl.errors import DataError
from toolrl_plugin_audit.audit import CHECKS
from toolrl_plugin_audit.command import audit

Write = Callable[..., Path]


def test_a_clean_dump_has_no_finding(system: str, write: Write) -> None:
    report = audit(write(system))
    assert (report.rows, report.findings) == (32, [])


@pytest.mark.parametrize("check", CHECKS)
def test_a_fault_is_found(check: str, system: str, write: Write, faults: Any) -> None:
    report = audit(write(system, faults[check][system]))
    assert check in [finding.check for finding in report.findings], report
    for finding in report.findings:
        assert finding.advice and finding.examples[0]["place"] and finding.examples[0]["text"]
