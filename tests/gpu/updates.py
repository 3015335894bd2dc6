"""Updates of models of real shapes: tokens a second, peak memory against `toolrl plan`, compiled and sharded layers."""

from __future__ import annotations

import gc
import json
import random
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from device import device, model_folder, now, peak, random_policy, reset_peak, seconds
from figures import Figures


class Load(NamedTuple):
    """Groups of episodes of random tokens."""

    groups: int
    episodes: int
    prompt: int
    completion: int

    @property
    def tokens(self) -> int:
        return self.groups * self.episodes * (self.prompt + self.completion)


LONG = Load(1, 2, 384, 16000)
"""Two micro-batches of one sequence each."""
LONGEST = Load(1, 2, 1536, 64000)
GROUPS = Load(4, 8, 512, 1536)
"""Four micro-batches of a group each, where prompts aren't shared."""


@dataclass(frozen=True)
class Case:
    """What an update is measured with."""

    model: str
    load: Load = LONG
    checkpointing: bool = True
    lora: bool = False
    share: bool = False
    offload: bool = False
    compile: bool = False

    def small(self) -> Case:
        """The same for a CPU."""
        return Case(**{**vars(self), "load": Load(1, self.load.episodes, 8, 40)})

    def config(self, folder: Path) -> Any:
        """The config of a run."""
        from toolrl.config.load import load_config
        from toolrl.plugins.registry import load_registry

        load = self.load
        longest = load.prompt + load.completion
        text = {
            "model": {"path": str(folder), "gradient_checkpointing": self.checkpointing, "compile": self.compile,
                      "lora": {"rank": 16} if self.lora else None},
            "environments": {"default": {}},
            "rollout": {"max_episode_tokens": longest},
            "trainer": {"steps": 1000, "prompts_per_step": load.groups, "learning_rate": 1e-7,
                        "share_prefix": self.share,
                        "tokens_per_microbatch": max(longest, 16384 if longest > 1000 else 0),
                        "offload": ["optimizer"] if self.offload else []},
            "algorithm": {"preset": "grpo", "group_size": load.episodes},
        }  # fmt: skip
        (folder / "run.yaml").write_text(json.dumps(text))
        return load_config(str(folder / "run.yaml"), [], registry=load_registry()).config


class Update:
    """A model and its trainer, to be made inside of `with`; its memory is free afterwards."""

    def __init__(self, case: Case, dry: bool) -> None:
        self.case, self.dry, self.where = case.small() if dry else case, dry, device(dry)
        self._inside = ExitStack()

    def __enter__(self) -> Update:
        from toolrl_plugin_torch.trainer import PolicyTrainer

        reset_peak(self.where)
        self.folder = Path(self._inside.enter_context(tempfile.TemporaryDirectory()))
        model_folder(self.folder, self.case.model, self.dry)
        self.config = self.case.config(self.folder)
        self.policy = random_policy(self.config.model, self.where)
        self.trainer = PolicyTrainer(
            self.policy, self.config.trainer, self.config.algorithm, self.folder,
            temperature=1.0, longest=self.case.load.completion,
        )  # fmt: skip
        return self

    def __exit__(self, *error: object) -> None:
        self.__dict__.pop("trainer", None), self.__dict__.pop("policy", None)
        gc.collect()
        self._inside.close()

    def run(self) -> dict[str, float]:
        """Tokens a second, and the rest."""
        episodes = groups(self.policy.model.config.vocab_size, self.case.load)
        taken = seconds(self.where, lambda: self.trainer.update(episodes), rounds=1 if self.dry else 3)
        return {"rate": self.case.load.tokens / taken, "seconds": taken, "peak GiB": peak(self.where) / 2**30}

    def planned(self) -> float:
        """GiB of tensors in an update by `toolrl plan`."""
        from toolrl_plugin_torch.plan.memory import CONTEXT, GPUS, Setting, plan_memory
        from toolrl_plugin_torch.plan.sizes import PolicySizes

        sizes = PolicySizes(self.config.model, self.config.model.path, self.where)
        found = plan_memory(Setting(self.config, None, sizes, GPUS["h200"]))
        return (found.phases["update"] - CONTEXT) / 2**30


def _measure(figures: Figures, dry: bool, cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        try:
            with Update(case, dry) as update:
                found, planned = update.run(), update.planned()
        except Exception as error:  # noqa: BLE001 - the next may fit
            figures.miss(name, f"{type(error).__name__}: {error}")
            continue
        figures.put(name, found.pop("rate"), **found)
        figures.put(f"{name}: peak over plan", found["peak GiB"] / planned, planned=planned)


def small(figures: Figures, dry: bool) -> None:
    cases = {
        "0.6B, 16k": Case("0.6B", checkpointing=False),
        "0.6B, 16k, checkpointing": Case("0.6B"),
        "0.6B, 16k in groups of 8": Case("0.6B", GROUPS),
        "0.6B, 16k in groups of 8, shared": Case("0.6B", GROUPS, share=True),
        "0.6B, 65k, checkpointing": Case("0.6B", LONGEST),
    }
    _measure(figures, dry, cases)


def adapter(figures: Figures, dry: bool) -> None:
    _measure(figures, dry, {"4B LoRA, 16k, checkpointing": Case("4B", lora=True)})


def large(figures: Figures, dry: bool) -> None:
    name = "4B, 16k, checkpointing"
    _measure(figures, dry, {name: Case("4B"), f"{name}, optimizer offloaded": Case("4B", offload=True)})


def _compiled(figures: Figures, dry: bool, name: str, case: Case) -> None:
    from toolrl_plugin_torch import base_trainer

    if dry:
        base_trainer.BACKEND = "eager"  # A CPU may have no compiler.
    found = {}
    for compile_layers in (False, True):
        with Update(Case(**{**vars(case), "compile": compile_layers}), dry) as update:
            started = now(update.where)
            found[compile_layers] = update.run()
            total = now(update.where) - started
    eager, faster = found[False], found[True]
    rates = {"eager, tokens/s": eager["rate"], "compiled, tokens/s": faster["rate"], "seconds with compilation": total}
    figures.put(f"{name}: compiled over eager", faster["rate"] / eager["rate"], **rates)


def compiled_small(figures: Figures, dry: bool) -> None:
    _compiled(figures, dry, "0.6B, 16k", Case("0.6B"))


def compiled_large(figures: Figures, dry: bool) -> None:
    _compiled(figures, dry, "8B LoRA, 16k", Case("8B", lora=True))


def sharded(figures: Figures, dry: bool) -> None:
    """The same model from a folder, in one process as it is and as the shard of a group of one."""
    from toolrl.loop.ranks import ONE
    from toolrl_plugin_torch.policy import load_policy
    from toolrl_plugin_torch.sharding.process_group import join
    from toolrl_plugin_torch.trainer import PolicyTrainer

    found = {}
    with Update(Case("0.6B"), dry) as update, tempfile.TemporaryDirectory() as folder:
        update.policy.tokenizer = _tokenizer()
        update.policy.save_whole(Path(folder))
        config, case, where = update.config, update.case, update.where
        episodes = groups(update.policy.model.config.vocab_size, case.load)
        del update.trainer.policy, update.policy.model
        settings = config.model.model_copy(update={"path": folder})
        for ranks in (ONE, join(str(where), 120.0)):
            started = now(where)
            policy = load_policy(settings, folder, where, ranks)
            loaded = now(where) - started
            trainer = PolicyTrainer(
                policy, config.trainer, config.algorithm, Path(folder), temperature=1.0,
                longest=case.load.completion, ranks=ranks,
            )  # fmt: skip
            metrics = trainer.update(episodes)
            taken = seconds(where, lambda update=trainer.update: update(episodes), rounds=1 if dry else 3, warm=0)
            found[ranks.distributed] = (metrics["grad_norm"], metrics["loss"], taken, loaded)
            del trainer, policy
            gc.collect()
    ranks.leave()
    (norm, loss, taken, loaded), (shard_norm, shard_loss, shard_taken, shard_loaded) = found[False], found[True]
    losses = {"loss, whole": loss, "loss, sharded": shard_loss}
    figures.put("sharded over whole: gradient norm", shard_norm / norm, **losses)
    figures.put(
        "sharded over whole: seconds", shard_taken / taken, whole=taken, loads=loaded, sharded_loads=shard_loaded
    )


def _tokenizer() -> Any:
    import transformers
    from tokenizers import Tokenizer, models

    return transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])), pad_token="a")


def groups(vocabulary: int, load: Load) -> list[Any]:
    """Groups of random tokens of which half are right, so that every token is trained."""
    from toolrl.types import Group, RewardEntry
    from toolrl_testing.fakes import make_episode, make_task

    chance = random.Random(0)
    found = []
    for number in range(load.groups):
        task = make_task(id=f"task-{number}")
        prompt = chance.choices(range(vocabulary), k=load.prompt)
        mask = (0,) * load.prompt + (1,) * load.completion
        episodes = [
            make_episode(
                task=task, index=index, rewards=[RewardEntry(None, "reward:made-up", float(index % 2))],
                ids=(*prompt, *chance.choices(range(vocabulary), k=load.completion)), loss_mask=mask,
                logprobs=(0.0,) * len(mask), weight_versions=tuple(bit - 1 for bit in mask), prompt_length=load.prompt,
            )
            for index in range(load.episodes)
        ]  # fmt: skip
        found.append(Group(task.id, task, tuple(episodes)))
    return found
