"""Files written for RLFactory load as they are, from a folder `envs` or beside one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from toolrl.errors import ConfigError
from toolrl_plugin_rlfactory import envs, managers
from toolrl_plugin_rlfactory.convert import RLFactoryConvert
from toolrl_plugin_rlfactory.loading import load_class

SEARCH = """
import re
import string
import random
from .base import Env

class SearchEnv(Env):
    def __init__(self, config):
        super().__init__(config)
        self.use_verify_tool = False

    # NOTE: Add your reward calculation rules here!
    def _compute_score_with_rules(self, data, tokenizer):
        return [[7.0] for _ in data]
"""
MINE = """
from envs import BaseEnv, TOOL_ENV_REGISTRY
from envs.tool_manager import TOOL_MANAGER_REGISTRY
from envs.utils.helper import WORD
from envs.utils.util import DocParserError, ToolServiceError
from verl import DataProto

from .search import SearchEnv


class MineEnv(SearchEnv):
    word = WORD
    data = DataProto
"""
MANAGER = """
from envs.tool_manager.qwen3_manager import QwenManager

from ..utils.helper import WORD


class MineManager(QwenManager):
    word = WORD
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """RLFactory's repository with files of the user's: what is its own can't be imported here."""
    files = {
        "search.py": SEARCH,
        "mine.py": MINE,
        "tool_manager/mine_manager.py": MANAGER,
        "utils/helper.py": "WORD = 'so'\n",
        "__init__.py": "import no_such_library\n",
        "base.py": "import no_such_library\n",
        "tool_manager/__init__.py": "import no_such_library\n",
        "../verl/__init__.py": "import no_such_library\n",
    }
    for name, text in files.items():
        file = tmp_path / "envs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_the_guides_files_load_unchanged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    before = set(sys.modules)
    mine = load_class("envs/mine.py:MineEnv", None)
    assert (mine.word, mine.data) == ("so", envs.DataProto)
    assert issubclass(mine, envs.Env)
    assert not issubclass(mine, envs.SearchEnv)
    assert mine({})._compute_score_with_rules([1], None) == [[7.0]]
    manager = load_class("envs/tool_manager/mine_manager.py:MineManager", None)
    assert manager.word == "so"
    assert issubclass(manager, managers.QwenManager)
    assert load_class(f"{folder}/envs/mine.py:MineEnv", None) is mine
    assert load_class("envs.mine:MineEnv", None).word == "so"
    left = {name for name in set(sys.modules) - before if name.partition(".")[0] in ("envs", "verl")}
    assert all("_rlfactory_" in name for name in left)


@pytest.mark.parametrize("line", ["from .mmbase import MMEnv", "from verl.utils.model import x", "from envs import No"])
def test_what_nothing_stands_in_for_is_told(folder: Path, line: str) -> None:
    (folder / "envs" / "odd.py").write_text(f"{line}\n")
    with pytest.raises(ConfigError, match="can't be imported.*\n.*Take the import out") as raised:
        load_class(f"{folder}/envs/odd.py:Odd", None)
    assert "toolrl_plugin_rlfactory.managers" in str(raised.value)


def test_the_users_own_search_env_goes_before_the_one_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "run.sh").write_text("python3 -m verl.trainer.main_ppo actor_rollout_ref.env.name=search\n")
    place = RLFactoryConvert().convert("run.sh", [])[0]["environments"]["default"]
    assert place["rewards"] == [{"use": "rlfactory", "options": {"env": "envs/search.py:SearchEnv"}}]
    (folder / "envs" / "search.py").unlink()
    assert RLFactoryConvert().convert("run.sh", [])[0]["environments"]["default"]["rewards"] == ["rlfactory"]
