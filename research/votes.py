"""Pools of answers that are no single number, or a text that ends in one: part 15c of the plan, beside the runs of schedule.yaml.

python research/votes.py boxes --minutes 9 --processes 6      # research/scores/pools_boxes_pools.csv
python research/votes.py words --members 4 --draws 4          # research/scores/pools_words_pools.csv; gsm8k/ as in words_sizes

boxes     the medians of the coordinates of the members' greedy boxes; rates and widths are those that part 6 chose
words     GSM8K, LoRA: the number in which most of the members' greedy answers end; of equally many, that of an earlier member
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from pool_members import Row, about, command, device, sizes, trained
from schedule import HERE

from numerate.answers.numerals import number_of
from numerate.decode.members import Member, active
from numerate.lab.comparison.cells import cell_folder
from numerate.lab.comparison.plan import comparison_settings, read_experiment
from numerate.lab.data import Task
from numerate.lab.data.settings import make_task, tested
from numerate.lab.evaluation.evaluate import greedy_answers
from numerate.lab.training.config import RunConfig
from numerate.lab.training.members import train_in_turn
from numerate.lab.training.prepare import check_run, run_encoder

CHOSEN: dict[str, dict[str, dict[str, Any]]] = {
    "boxes": {
        "ce": {"model": "tiny-vlm", "learning_rate": 0.00025},
        "soft": {"model": "tiny-vlm", "learning_rate": 0.001, "soft.width": 0.02},
    },
    "words": {"ce": {"model": "Qwen2.5-Coder-0.5B-Instruct", "learning_rate": 0.0003}},
}
METRICS = ("exact", "exact_strict", "acc_50", "iou", "parsed")
CONFIGS = {"boxes": "boxes", "words": "words_sizes"}


def runs(what: str, labels: Sequence[str], seeds: Iterable[int], members: int, **changes: Any) -> list[tuple[str, RunConfig]]:
    """Return a run for each label and draw."""
    found = []
    for label in labels:
        chosen = dict(CHOSEN[what][label])
        soft = {"soft": {"width": chosen.pop("soft.width")}} if "soft.width" in chosen else {}
        settings = {**chosen, "losses": [{"loss": label, **soft}], "baseline": label, "seeds": [0], **changes}
        experiment = read_experiment(comparison_settings(HERE / "configs" / f"{CONFIGS[what]}.yaml", None, settings=settings))
        (config,) = experiment.cells()
        found.append((label, config.model_copy(update={"members": members, "decide": ()})))
    return [(label, config.model_copy(update={"seed": seed})) for seed in seeds for label, config in found]


def measured(what: str, label: str, config: RunConfig, folder: Path) -> list[Row]:
    """Return a line for each size of the pool."""
    task = make_task(config)
    asked = tested(config, task)["interpolate"]
    answers = [*zip(*(by_adapters if config.adapter == "lora" else by_stack)(config, asked, folder), strict=True)]
    rule, decided = ("medians of coordinates", middle_box) if what == "boxes" else ("most members", most_frequent)
    found = []
    for size in sizes(config.members):
        scored = [task.score(example, decided(task, row[:size])) for example, row in zip(asked, answers, strict=True)]
        means = {name: fmean(row[name] for row in scored) for name in METRICS if name in scored[0]}
        found.append(about(label, config, label, size) | {"split": "interpolate", "decision": rule, "rows": len(scored)} | means)
    return found


def by_stack(config: RunConfig, asked: Any, folder: Path) -> list[list[str]]:
    """Return the greedy answers of each member of a stack."""
    members = trained(config, folder)
    options = {"batch_size": config.eval_batch_size, "max_new_tokens": config.max_new_tokens, "bf16": config.bf16}
    return greedy_answers(members.stacked, [asked] * config.members, stacked=True, **options)


def by_adapters(config: RunConfig, asked: Any, folder: Path) -> list[list[str]]:
    """Return the greedy answers of each adapter."""
    task, own = make_task(config), cell_folder(folder, config)
    encoder = run_encoder(config, task)
    objective = check_run(config.model_copy(update={"members": 1}), task, encoder)
    own.mkdir(parents=True, exist_ok=True)
    loaded, _ = train_in_turn(config, task, encoder, objective, own)
    loaded.to(device())
    options = {"batch_size": config.eval_batch_size, "max_new_tokens": config.max_new_tokens, "bf16": config.bf16}
    found = []
    for adapter in loaded.pool.adapters if loaded.pool else ():
        with active(Member(loaded.model, loaded.tokenizer, adapter, 1.0)):
            found += greedy_answers(loaded, [asked], **options)
    return found


def middle_box(task: Task, texts: Sequence[str]) -> str:
    """Return the box of the medians of the coordinates; the empty text if there is none."""
    boxes = [box for text in texts if (box := task.read(text)) is not None]
    return f"[{', '.join(f'{float(median(side)):.4f}' for side in zip(*boxes, strict=True))}]" if boxes else ""


def most_frequent(task: Task, texts: Sequence[str]) -> str:
    """Return the first of the answers that end in the most frequent number."""
    numbers = [number_of(task.read(text)) for text in texts]
    counts = Counter(number for number in numbers if number is not None)
    return texts[numbers.index(counts.most_common(1)[0][0])] if counts else texts[0]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] not in CHOSEN:
        sys.exit(__doc__)
    what = given[0]
    command(partial(measured, what), f"pools_{what}", __doc__, given[1:], [*CHOSEN[what]], partial(runs, what))


if __name__ == "__main__":
    main()
