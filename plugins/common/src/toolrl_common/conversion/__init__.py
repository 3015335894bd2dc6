"""`toolrl <system> convert`, for plugins that read another system's configs.

class MyConversion(Conversion):
    system, defaults = "verl", {"trainer.total_epochs": 30}
    learning = re.compile(r"^algorithm\\.")  # What a toolrl config lacks of these comes first in the report.

class Convert(ConvertCommand):
    system, config_help, overrides_help = "verl", "verl's YAML …", "verl's overrides …"

    def convert(self, config, overrides):
        reading = Reading(Path(config).parent)
        reading.tree = reading.read_yaml(config, read_text(config, "Give verl's YAML."))
        reading.override(overrides)
        conversion = MyConversion(reading)
        steps = conversion.whole("trainer.total_training_steps", default=100)
        conversion.lose_unused()
        return {"trainer": {"steps": steps}}, conversion
"""

from toolrl_common.conversion.command import ConvertCommand
from toolrl_common.conversion.script import read_script
from toolrl_common.conversion.settings import (
    SMALLEST,
    Conversion,
    Number,
    Reading,
    count,
    count_rows,
    expanded,
    listed,
    lose_imports,
    merged,
    read_text,
    user_path,
)

__all__ = [
    "SMALLEST",
    "Conversion",
    "ConvertCommand",
    "Number",
    "Reading",
    "count",
    "count_rows",
    "expanded",
    "listed",
    "lose_imports",
    "merged",
    "read_script",
    "read_text",
    "user_path",
]
