"""`toolrl_common.conversion` by the name that plugins may still use; `toolrl-common` is installed by itself."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("toolrl_common.conversion")
