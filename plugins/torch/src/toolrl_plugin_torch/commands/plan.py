"""`toolrl plan CONFIG`: whether a run fits its GPUs, computed without loading a model."""

from __future__ import annotations

import argparse

from toolrl.cli.common import add_set_argument, at_least_one, read
from toolrl.cli.output import print_json
from toolrl.errors import ConfigError
from toolrl.protocols import Command
from toolrl_plugin_torch.model_path import missing_on_hub
from toolrl_plugin_torch.options import check_trainer


class Plan(Command):
    """The command."""

    example = """toolrl plan grpo.yaml --gpu h200
  toolrl plan grpo.yaml --gpu h100:8 --nodes 2 --set model.gradient_checkpointing=true"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("config", metavar="CONFIG", help="a config file, or a run's folder")
        add_set_argument(parser)
        parser.add_argument(
            "--gpu",
            metavar="GPU[:N]",
            help="h200, h100, a100-80, l40s or a number of GiB, and how many a node has (default: the GPUs here)",
        )
        parser.add_argument("--nodes", type=at_least_one, default=1, help="how many nodes (default 1)")
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.set_defaults(trains=True)

    def run(self, args: argparse.Namespace) -> int:
        """1 where the run doesn't fit."""
        from toolrl.assembly import model_source
        from toolrl.building import engine_options

        loaded, registry = read(args)
        check_trainer(loaded.config, "plan")
        source, engine = model_source(loaded.config.model.path), engine_options(registry, loaded.config)
        if (problem := missing_on_hub(source)) is not None:  # before torch is imported
            raise ConfigError(problem)
        from toolrl_plugin_torch.plan.report import plan

        text, facts = plan(loaded.config, source, engine, args.gpu, args.nodes)
        print_json(facts) if args.json else print(text)
        return int(facts["fits"] == "no")
