"""Draw the rows of a data file with soft labels, as training would, into a file for another framework."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numerate.lab.data.settings import DataSettings
from numerate.lab.export.frameworks import check_framework
from numerate.lab.files.progress import Progress
from numerate.lab.files.records import check_writable, naming_full_disk
from numerate.lab.models.settings import ModelSettings
from numerate.lab.prediction.train import run_settings
from numerate.lab.training.checking import checked_task, soft_target
from numerate.lab.training.config import CROSS_ENTROPY, RunConfig, checked
from numerate.lab.wording.text import counted

_READ = {*DataSettings.model_fields, *ModelSettings.model_fields, "loss", "soft", "data"}
_SHOWN = 50  # rows between two calls of progress


@dataclass(frozen=True)
class Exported:
    """A written file."""

    path: Path  # one JSON object per line
    rows: int  # lines: ``epochs`` times the training rows, in their order
    top_k: int  # the most tokens of a target, to which all are filled up
    length: int  # the most tokens of a row
    seed: int  # of the draws; line i, from 0, is drawn with ``numpy.random.default_rng([seed, i])``
    too_long: int  # training rows that are left out, since they exceed ``max_length``
    notes: Sequence[str]  # how the data were read, where that was not obvious, and which rows are missing


def export_soft(
    data: str,
    framework: str,
    *,
    model: str,
    out: Path,
    epochs: int = 1,
    target: str | None = None,
    columns: Sequence[str] | None = None,
    without: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Progress = lambda *_: None,
    **settings: Any,
) -> Exported:
    """Write the training rows of a data file with soft targets for a ``framework``, each drawn ``epochs`` times.

    ``data``, ``target``, ``columns``, ``without`` and ``settings`` are those of :func:`numerate.lab.train`, as far as they are
    about data and soft labels. The tokens are those of ``model``, whose weights are not loaded.
    """
    check_framework(framework)
    for name, value in settings.items():
        if name not in _READ:
            raise ValueError(f"{name}={value!r} has no effect: nothing is trained here. Leave it out.")
    values = run_settings(None, target, columns, without, {"loss": "soft"} | settings | {"data": data, "model": model})
    config = checked(RunConfig, values)
    task = checked_task(config)
    if config.soft is None or config.loss != CROSS_ENTROPY:
        raise ValueError(
            f"loss={config.name!r} is not soft labels alone: expected soft, soft_fixed or soft_jitter, with a width above 0."
        )
    soft_target(config, task)
    if config.soft.path == "fixed" and epochs > 1:
        raise ValueError(f"epochs={epochs} would repeat rows, since soft_fixed draws nothing: expected 1.")
    if out.suffix != ".jsonl":
        raise ValueError(f"out={str(out)!r} has an unknown file type: expected a name that ends in .jsonl.")
    if out.exists() and Path(data).exists() and out.samefile(data):
        raise ValueError(f"out={str(out)!r} is the file with the data: expected another name.")
    if out.exists() and not overwrite:
        raise ValueError(f"{out} exists: name another file with --out, or replace it with --overwrite.")
    check_writable(out.parent)
    # They load torch, after what could be wrong with the call.
    from numerate.lab.export.row_formats import ROW_FORMATS, FileSizes, SoftRow
    from numerate.lab.models.encoding import cut_note, fitting_rows
    from numerate.lab.training.prepare import run_encoder, run_examples, soft_answers

    encoder, examples = run_encoder(config, task), run_examples(config, task)
    if examples[0].picture is not None:
        raise ValueError(f"task={config.task!r} has pictures, which these files cannot hold: expected a task with texts alone.")
    fitting = fitting_rows(encoder, examples, config.max_length)
    soft, total = soft_answers(config, task, encoder, {}), epochs * len(fitting)

    def drawn(stage: str) -> Iterator[SoftRow]:  # the same rows at each call, so that none needs to be kept
        for place in range(total):
            yield SoftRow.of(soft.row(*fitting[place % len(fitting)], place))
            if (place + 1) % _SHOWN == 0 or place + 1 == total:
                progress(stage, place + 1, total, {})

    sizes = FileSizes()
    for row in drawn("draw"):
        sizes = sizes.with_row(row)
    part = out.with_name(f"{out.name}.part")
    try:
        with naming_full_disk(out.parent), part.open("w", encoding="utf-8") as file:
            for place, row in enumerate(drawn("write")):
                epoch, index = divmod(place, len(fitting))
                line = ROW_FORMATS[framework](row, sizes) | {"seed": config.seed, "epoch": epoch, "row": index}
                file.write(json.dumps(line, allow_nan=False) + "\n")
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    notes = [*task.notes, cut_note(encoder, {"training": [example.prompt for example in examples]})]
    if task.skipped:
        notes.append(f"Skipped {counted(len(task.skipped), 'row')} that could not be read; the first: {task.skipped[0]}")
    if len(examples) < (there := task.count("train") or 0):
        notes.append(f"Wrote {len(examples):,} of {there:,} training rows: --set train_examples={there} writes all.")
    return Exported(out, total, *sizes, config.seed, len(examples) - len(fitting), [*filter(None, notes)])
