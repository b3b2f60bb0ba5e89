"""What a run ends with: its evaluation, its files, and notes on what its data and weights are like."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from numerate.lab.data import Task
from numerate.lab.data.settings import tested
from numerate.lab.evaluation.derailing import LabelDigits, label_digits
from numerate.lab.evaluation.evaluate import Evaluation, Record, evaluate
from numerate.lab.evaluation.missing import middle_label
from numerate.lab.evaluation.pooled import AllAtOnce
from numerate.lab.files.progress import Progress
from numerate.lab.files.records import RESULT, TRAINED, clear, read_state, write_json, write_jsonl, write_state
from numerate.lab.models.encoding import cut_note
from numerate.lab.models.loading import LoadedModel, PromptEncoder
from numerate.lab.models.names import BUILT, member_name
from numerate.lab.models.questions import asked
from numerate.lab.training.config import HEADS, RunConfig, TrainingSettings
from numerate.lab.training.heads import head_records
from numerate.lab.training.model_card import model_card, save_model
from numerate.lab.training.prepare import run_examples

LabelFacts = tuple[LabelDigits | None, str | None]
"""The most digits of the training labels, and their median."""


def finish(
    config: RunConfig,
    task: Task,
    loaded: LoadedModel,
    cost: dict[str, Any],
    folder: Path,
    *,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Evaluate the trained model of a run, and write the result; return it."""
    begin = time.perf_counter()
    examples = run_examples(config, task)
    labels = label_digits(task, examples), middle_label(task, examples)
    records = evaluated(config, task, loaded, labels, images=folder, progress=progress)
    return end_run(config, task, loaded, records, labels, cost | {"eval_seconds": time.perf_counter() - begin}, folder)


def evaluated(config: RunConfig, task: Task, loaded: LoadedModel, labels: LabelFacts, **options: Any) -> list[Record]:
    """Evaluate a model on the examples of a run; ``labels`` are the digits and the median of its training labels."""
    digits, middle = labels
    if config.loss in HEADS:
        evaluation = Evaluation(tested(config, task), config.seed, options.pop("images", None), digits, middle)
        return head_records(loaded, task, evaluation, config, bf16=config.bf16, **options)
    examples, settings = tested(config, task), {**config.answering, "bf16": config.bf16}
    if loaded.pool is not None and loaded.pool.adapters is None and loaded.name in BUILT:
        from numerate.lab.training.stacked.model import stack  # the package of stacked runs imports this module

        members = stack([replace(loaded, model=model, pool=None) for model in loaded.pool.models])
        options["members"] = AllAtOnce(members.to(loaded.model.device), [loaded.pool.size])
    return evaluate(loaded, task, examples, seed=config.seed, label_digits=digits, fallback=middle, **settings, **options)


def end_run(
    config: RunConfig,
    task: Task,
    loaded: LoadedModel,
    records: list[Record],
    labels: LabelFacts,
    cost: dict[str, Any],
    folder: Path,
) -> dict[str, Any]:
    """Write predictions, weights and, last, the result; return it."""
    write_jsonl(folder / "predictions.jsonl", records)
    if config.keep_model:
        base = {} if config.adapter == "none" else {"model": config.model, "seed": config.seed}
        settings, questions = {**config.used, "label": config.name}, asked(task, config.data, loaded, base, config.members)
        save_model(loaded, folder / "model", model_card(settings, records, task, questions), questions)
    result = {
        "hash": config.hash,
        "label": config.name,
        "headline": task.measures[0],
        "label_digits": labels[0],
        "label_median": labels[1],
        "splits": {split: {"n": n} for split, n in Counter(record["split"] for record in records).items()},
        "skipped_rows": len(task.skipped),
        "notes": [
            *task.notes,
            *_cut_notes(config, task, loaded),
            *_format_notes(config, task, loaded),
            *_soft_notes(config, task),
            *_weight_notes(config, loaded),
        ],
        "cost": cost,
    }
    write_json(folder / RESULT, result)
    clear(folder)
    return result


def trained_file(config: RunConfig, folder: Path, member: int = 0) -> Path:
    """Return where the trained weights of a run, or of one of its members, are kept until it is finished."""
    return folder / TRAINED if config.members == 1 else folder / "checkpoints" / f"member-{member}.pt"


def is_trained(config: RunConfig, folder: Path) -> bool:
    """Return whether the trained weights of all members of a run are kept."""
    return all(trained_file(config, folder, member).is_file() for member in range(config.members))


def write_trained(loaded: LoadedModel, cost: dict[str, Any], file: Path) -> None:
    """Keep the trained weights and the cost of a run that is not evaluated yet, or of a member."""
    write_state(file, {"weights": _trained_weights(loaded), "cost": cost})


def read_trained(loaded: LoadedModel, file: Path, *, adapter: str = member_name(0)) -> dict[str, Any]:
    """Load the weights that :func:`write_trained` kept into the model that the run began with; return the cost.

    They are loaded into an ``adapter`` of another name, if it is the active one.
    """
    saved, weights = read_state(file), _trained_weights(loaded)
    weights = {name.replace(f".{adapter}.", f".{member_name(0)}."): weight for name, weight in weights.items()}
    if missing := weights.keys() - saved["weights"].keys():
        raise ValueError(f"{file} has no weight {min(missing)!r}: delete it, and the run is trained again.")
    for name, weight in weights.items():
        weight.copy_(saved["weights"][name])
    return dict(saved["cost"])


def _trained_weights(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    """Return the weights that training changes: with an adapter, its own alone."""
    return {name: weight.detach() for name, weight in loaded.model.named_parameters() if weight.requires_grad}


def _cut_notes(config: RunConfig, task: Task, encoder: PromptEncoder) -> list[str]:
    """Return a message on long texts of a table that are cut, if some are."""
    if config.data is None or encoder.sees:
        return []
    rows = {"training": run_examples(config, task), "test": [row for split in tested(config, task).values() for row in split]}
    note = cut_note(encoder, {kind: [row.prompt for row in examples] for kind, examples in rows.items()})
    return [note] if note else []


def _format_notes(config: RunConfig, task: Task, encoder: PromptEncoder) -> list[str]:
    """Return a message on rows with numbers that are too long for the width of a padded format, if there are any."""
    rows = {"training": run_examples(config, task), "test": [row for split in tested(config, task).values() for row in split]}
    counts = {kind: encoder.format.misfits(examples) for kind, examples in rows.items()}
    found = " and ".join(f"{count:,} of {len(rows[kind]):,} {kind} rows" for kind, count in counts.items() if count)
    width = ", ".join(f"{name} {value}" for name, value in encoder.format.settings.items() if name != "kind")
    return [f"Numbers in {found} do not fit into the width of {config.format!r} ({width}): they have their own."] if found else []


def _soft_notes(config: TrainingSettings, task: Task) -> list[str]:
    """Say how many answers of the training rows keep hard labels, if some do."""
    kept = [] if config.soft is None else task.answers_in_words()
    rows = task.count("train")
    return (
        [f"{len(kept):,} of {rows:,} training answers are not plain numbers, such as {kept[0]!r:.40}: their labels stay hard."]
        if kept
        else []
    )


def _weight_notes(config: RunConfig, loaded: LoadedModel) -> list[str]:
    """Return a warning about weights that are not finite: the Trainer logs such losses as zeros, and answers are nonsense."""
    models = (loaded.model,) if loaded.pool is None else loaded.pool.models
    weights = (weight for model in models for weight in model.parameters() if weight.is_floating_point())
    if all(bool(weight.isfinite().all()) for weight in weights):
        return []
    how = f"learning_rate={config.learning_rate:g}, bf16={config.bf16}"
    return [
        f"Training of {config.name} with seed {config.seed} diverged: its weights are not finite, and its answers mean nothing "
        f"({how}). Try a lower learning rate; curve.jsonl shows the step after which grad_norm is not finite."
    ]
