"""What a run begins with: its model, its rows in order, its objective and the arguments of its training."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from numerate.lab.data import Example, Examples, Picture, Task
from numerate.lab.data.numbers import gold_numbers
from numerate.lab.data.picture_store import PICTURES
from numerate.lab.data.settings import tested
from numerate.lab.data.splits import reserved_rows, training_examples, validation_examples
from numerate.lab.evaluation.missing import middle_label
from numerate.lab.files.environment import environment
from numerate.lab.files.interruption import Interruption
from numerate.lab.files.progress import Progress
from numerate.lab.files.records import is_first_process, write_json
from numerate.lab.models.encoding import (
    AnswerNumbers,
    AnswerTries,
    SharedData,
    SoftAnswers,
    training_data,
    training_order,
)
from numerate.lab.models.loading import LoadedModel, PromptEncoder, load_encoder, load_model
from numerate.lab.models.memory import check_memory
from numerate.lab.models.names import member_folder
from numerate.lab.models.settings import ModelSettings
from numerate.lab.training.checking import check_task, run_format, soft_target
from numerate.lab.training.config import CROSS_ENTROPY, HEADS, RunConfig, TrainingSettings
from numerate.lab.training.heads import HeadRows
from numerate.lab.training.masks import MaskedRows, WeightedRows, check_term_numbers
from numerate.lab.training.validation import MOST, Validation
from numerate.losses import LOSSES
from numerate.objective import NumericObjective

_DRAWS = 64  # of the first answer, to see whether the tokenizer fits


def run_encoder(config: RunConfig, task: Task) -> PromptEncoder:
    """Return the tokenizer or processor of a run's model, which writes numbers in the run's format."""
    encoder = load_encoder(config.model, trust_remote_code=config.trust_remote_code).limit(config.max_length)
    return encoder.write(run_format(config, task))


def load_run_model(config: ModelSettings, encoder: PromptEncoder, seed: int | None = None) -> LoadedModel:
    """Return the model that a run begins with; ``seed`` of its random weights, if it is not that of the run."""
    return load_model(
        config.model,
        seed=config.seed if seed is None else seed,
        # Trained weights stay in float32; frozen weights below an adapter need not.
        dtype=torch.bfloat16 if config.bf16 and config.adapter != "none" else torch.float32,
        adapter=config.adapter,
        rank=config.rank,
        encoder=encoder,
        trust_remote_code=config.trust_remote_code,
    )


def check_run(config: RunConfig, task: Task, encoder: PromptEncoder) -> NumericObjective | None:
    """Check that data, model, task and loss fit together; return the objective, or None for plain cross-entropy."""
    check_task(config, task, sees=encoder.sees)
    check_memory(config, config.members)
    if config.soft is not None:
        _check_soft_labels(config, task, encoder)
    check_term_numbers(config.term_numbers, task, encoder.format)
    if ":" in config.format:
        encoder.format.check(run_examples(config, task))
    vocab = encoder.vocab
    if config.loss in HEADS:
        gold_numbers(task, task.examples("train", 1))
        return None
    if config.loss == CROSS_ENTROPY:
        hard = config.soft is None or config.soft.path == "jitter"  # plain cross-entropy, with jitter on drawn answers
        return None if hard and config.number_weight == 1 else NumericObjective(None, vocab=vocab)
    loss = LOSSES[config.loss](vocab, **config.loss_settings)
    return NumericObjective(loss, config.weight, config.normalize, config.scale)


def _check_soft_labels(config: TrainingSettings, task: Task, encoder: PromptEncoder) -> None:
    """Raise unless the task has soft labels, and the tokenizer fits answers with several numbers, which the first one shows."""
    target = soft_target(config, task)
    if (where := task.soft_pattern) is not None:
        example = task.examples("train", 1)[0]
        label = [*encoder.tokens_of(encoder.format.answer(example.answer)), encoder.tokenizer.eos_token_id]
        numbers = AnswerNumbers(encoder, target, where)
        for seed in range(_DRAWS):
            numbers.answer(example, label, np.random.default_rng(seed))


def begin_run(config: RunConfig, folder: Path) -> None:
    """Write what is known before training."""
    if is_first_process():
        write_json(folder / "config.json", {**config.used, "label": config.name})
        write_json(folder / "environment.json", environment())


def run_examples(config: RunConfig, task: Task) -> Examples:
    """Return the examples that a run trains on."""
    kept_out = config.eval_examples if config.validation else min(MOST, config.eval_examples) if config.validate_every else 0
    reserved = reserved_rows(task, kept_out) if kept_out else 0
    return training_examples(task, config.train_examples, config.seed, reserved=reserved)


def find_pictures(
    configs: Sequence[RunConfig], task: Task, encoder: PromptEncoder, folder: Path, shared: Path | None, progress: Progress
) -> None:
    """Let runs take their pictures from a folder that they share, or from their own, and draw those ahead."""
    encoder.keep_pictures(folder / PICTURES if shared is None else shared)
    if shared is None and is_first_process():
        draw_ahead(configs, task, encoder, progress)


def draw_ahead(configs: Sequence[RunConfig], task: Task, encoder: PromptEncoder, progress: Progress) -> None:
    """Draw and keep the pictures that runs on a task will need."""
    if not encoder.sees or task.examples("train", 1)[0].picture is None:
        return
    seen: list[Example] = []
    asked_about: list[Example] = []
    for config in configs:
        examples = run_examples(config, task)
        for member in range(config.members):
            order = training_order([1] * len(examples), config.batch_size, _batches(config), config.member_seed(member))
            seen += [examples[index] for index in dict.fromkeys(order)]
        if config.validate_every is not None:
            seen += validation_examples(task, min(MOST, config.eval_examples), config.seed)["interpolate"]
        asked_about += [example for rows in tested(config, task).values() for example in rows]
    trained, shown = ([row.picture for row in part if isinstance(row.picture, Picture)] for part in (seen, asked_about))
    encoder.pictures.make_ahead(trained, shown, progress)


def run_data(
    config: RunConfig, task: Task, loaded: LoadedModel, shared: SharedData | None = None, *, member: int = 0
) -> tuple[torch.utils.data.Dataset[dict[str, Any]], int]:
    """Return the rows that a run trains on, in order, and how many examples were left out because they are too long.

    Members have the same rows in other orders, with other draws of soft labels.

    ``shared`` has what other runs on the same task and model have made; this one adds to it.
    """
    examples = run_examples(config, task)
    soft: SoftAnswers | HeadRows | None = HeadRows(task, loaded.model.scale) if config.loss in HEADS else None
    if config.soft is not None:
        soft = soft_answers(config, task, loaded, {} if shared is None else shared.tries, member=member)
        if shared is not None:
            soft.tries.expect(examples)
    rows, too_long = training_data(
        loaded,
        examples,
        batch_size=config.batch_size,
        batches=_batches(config),
        seed=config.member_seed(member),
        drawn=config.seed,
        max_length=config.max_length,
        soft=None if soft is None else soft.row,
        shared=shared,
    )
    if config.loss not in (CROSS_ENTROPY, *HEADS) and config.term_numbers != "all":
        rows = MaskedRows(rows, loaded, config.term_numbers)
    if config.number_weight != 1:
        rows = WeightedRows(rows, loaded.vocab, config.number_weight)
    return rows, too_long


def soft_answers(
    config: RunConfig, task: Task, encoder: PromptEncoder, tries: dict[str, AnswerTries | AnswerNumbers], *, member: int = 0
) -> SoftAnswers:
    """Return what draws the answers of a run with soft labels; it adds their distributions to ``tries``, which runs may share."""
    assert config.soft is not None
    fixed = config.soft.path == "fixed"
    key = f"{config.soft.model_dump_json(exclude={'path'})} {fixed}"
    target = soft_target(config, task)
    if key not in tries and (where := task.soft_pattern) is not None:
        tries[key] = AnswerNumbers(encoder, target, where, with_label=fixed)
    elif key not in tries:
        tries[key] = AnswerTries(encoder, target, with_label=fixed)
    return SoftAnswers(tries[key], config.soft.path, config.member_seed(member))


def _batches(config: TrainingSettings) -> int:
    """Return how many micro-batches a run trains on, in all processes."""
    return config.steps * config.accumulation * int(os.environ.get("WORLD_SIZE", "1"))


def training_arguments(config: TrainingSettings, *, bf16: bool) -> dict[str, Any]:
    """Return the arguments of ``TrainingArguments`` for a run."""
    return {
        "max_steps": config.steps,
        "per_device_train_batch_size": config.batch_size,
        "gradient_accumulation_steps": config.accumulation,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": math.ceil(config.warmup * config.steps),
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "seed": config.seed,
        "data_seed": config.seed,
        "bf16": bf16,
        "logging_steps": config.log_every,
        **({"gradient_checkpointing": True} if config.gradient_checkpointing else {}),
        "save_strategy": "no" if config.save_every is None else "steps",
        "save_steps": config.save_every or config.steps,
    }


def member_checkpoints(config: RunConfig, folder: Path, member: int) -> Path:
    """Return where the checkpoints of a member are while it is trained."""
    return folder / "checkpoints" / (f"member-{member}" if config.members > 1 else "")


def validation(configs: Sequence[RunConfig], task: Task, loaded: LoadedModel, *, stacked: bool = False) -> Validation | None:
    """Return the validation of a run while it trains, or of the runs of a stack; None if there is none."""
    first = configs[0]
    if first.validate_every is None:
        return None
    count = min(MOST, first.eval_examples)
    questions = [validation_examples(task, count, config.seed)["interpolate"] for config in configs]
    fallbacks = [middle_label(task, run_examples(config, task)) for config in configs]
    answering = {"batch_size": first.eval_batch_size, "max_new_tokens": first.max_new_tokens, "bf16": first.bf16}
    options = answering | {"stacked": stacked}
    chosen = first.validate_every, first.keep_best, first.choose_by
    return Validation(loaded, task, questions, fallbacks, *chosen, options)


def train(
    config: RunConfig,
    task: Task,
    loaded: LoadedModel,
    objective: NumericObjective | None,
    folder: Path,
    *,
    member: int = 0,
    resume: bool = True,
    interruption: Interruption | None = None,
    progress: Progress = lambda *_: None,
) -> dict[str, Any]:
    """Train the model in place, which is that of a member; return the cost."""
    from numerate.lab.training.trainer import fit, last_checkpoint

    data, too_long = run_data(config, task, loaded, member=member)
    checkpoints = member_checkpoints(config, folder, member)
    seed = config.member_seed(member)
    arguments = training_arguments(config, bf16=config.bf16) | {"seed": seed, "data_seed": seed, "output_dir": str(checkpoints)}
    own = member_folder(folder, member)
    own.mkdir(parents=True, exist_ok=True)
    cost = fit(
        loaded,
        data,
        objective,
        arguments,
        own,
        tensorboard=config.tensorboard,
        checkpoint=last_checkpoint(checkpoints) if resume else None,
        validation=validation([config], task, loaded),
        interruption=interruption,
        progress=progress,
    )
    return cost | {"examples_too_long": too_long}
