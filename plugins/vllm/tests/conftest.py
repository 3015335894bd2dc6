"""An engine on a small random model."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from toolrl.protocols import BuildContext
from toolrl_plugin_vllm.engine import VllmEngine
from toolrl_plugin_vllm.options import VllmEngineOptions

sys.path.insert(0, str(Path(__file__).parent / "support"))

from vllm_help import OPTIONS, Weights, make_tokenizer


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Configs that engines keep for the next start aren't kept in the user's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


EngineFactory = Callable[..., AbstractAsyncContextManager[VllmEngine]]


@pytest.fixture
def engine(tokenizer: Any, tmp_path: Path) -> EngineFactory:
    """`async with engine(module, **options) as running:`"""

    @asynccontextmanager
    async def make(
        module: Any, *, version: int = 0, deterministic: bool = True, **options: Any
    ) -> AsyncIterator[VllmEngine]:
        weights = Weights(module, tokenizer, tmp_path / "weights", version)
        dtype = next(module.parameters()).dtype
        context = BuildContext("vllm", tokenizer=tokenizer, weights=weights, dtype=dtype, deterministic=deterministic)
        running = VllmEngine(VllmEngineOptions(**{**OPTIONS, **options}), context)
        await running.start()
        try:
            yield running
        finally:
            await running.stop()

    return make
