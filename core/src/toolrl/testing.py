"""`toolrl_testing` by the name that plugins' tests may still use; the package is installed by itself."""

import importlib
import sys

try:
    sys.modules[__name__] = importlib.import_module("toolrl_testing")
except ModuleNotFoundError as error:
    hint = "run `pip install toolrl-testing`, or `pip install ./plugins/testing` in a clone of toolrl"
    raise ModuleNotFoundError(f"{error}; {hint}", name=error.name) from error
