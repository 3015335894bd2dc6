"""Stand-in for `verl.utils.dataset.rl_dataset`, which files with tools derive data sets from."""

from typing import Any


class RLHFDataset:
    """A base class alone: rows are read by toolrl's data set `verl`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f"{type(self).__name__}: classes of `data.custom_cls` aren't run; write the rows that it makes to a file, "
            "and name that as the path of the data set `verl`"
        )
