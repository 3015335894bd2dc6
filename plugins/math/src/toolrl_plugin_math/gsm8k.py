"""Data set `gsm8k`: grade-school problems with a solution that ends with `#### N`.

Reads the files of the public data set (openai/gsm8k, or grade-school-math's `train.jsonl` and `test.jsonl`): rows with
`question` and `answer`. The task's answer is the number after `####`; the whole solution stays in `Task.extra`.
"""

from __future__ import annotations

from toolrl.builtin.rows import JoinedRows, RowTasks, open_rows
from toolrl.errors import DataError
from toolrl.protocols import BuildContext
from toolrl.types import Message, Task
from toolrl_plugin_math.files import find_split
from toolrl_plugin_math.options import Gsm8kDataOptions
from toolrl_plugin_math.quantity import MARK
from toolrl_plugin_math.reward_tool import NAME


class Gsm8k(RowTasks):
    """Tasks of GSM8K files."""

    def __init__(self, options: Gsm8kDataOptions, context: BuildContext) -> None:
        self._options = options
        files = find_split(options.path, options.split, context.where)
        self._rows = JoinedRows([open_rows(file) for file in files], options.limit)

    def __getitem__(self, index: int) -> Task:
        row, options = self._rows[index], self._options
        question, solution = row.get("question"), row.get("answer")
        answer = solution.rpartition(MARK)[2].strip().replace(",", "") if isinstance(solution, str) else ""
        if not isinstance(question, str) or not question.strip() or MARK not in str(solution) or not answer:
            raise DataError(
                f"a row needs texts `question` and `answer`, the latter ending with `#### N`; it has {', '.join(row)}",
                where=self._rows.where(index),
                hint="For rows of another form use the data set `jsonl` with `fields`.",
            )
        text = f"{question}\n\n{options.instruction}" if options.instruction else question
        system = (Message("system", options.system_prompt),) if options.system_prompt is not None else ()
        return Task(
            id=self._rows.name(index),
            messages=(*system, Message("user", text)),
            answer=answer,
            environment=options.environment,
            tools_kwargs={NAME: {"create_kwargs": {"ground_truth": answer}}},
            extra={**{key: row[key] for key in row if key != "answer"}, "question": question, "solution": solution},
        )
