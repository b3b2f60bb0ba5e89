"""Measure the cost of a training step with each objective, relative to the model's own loss.

    python -m benchmarks.training_speed smollm2 --batch 16 --length 512 --out smollm2.csv
    python -m benchmarks.training_speed llama-1b --batch 8 --length 1024 --out llama.csv      # random weights
    python -m benchmarks.training_speed tiny --batch 2 --length 48 --repeats 3                # on a CPU
    python -m benchmarks.training_speed --table smollm2.csv llama.csv                         # Markdown of measured files

A step is the forward and backward pass of the Hugging Face Trainer, clipping and AdamW. Every token is a label, a quarter of them
numeric. The objectives are cross-entropy (``ce``), cross-entropy with soft targets of ten tokens at each numeric position
(``soft``), and cross-entropy plus each loss of the registry, each in two ways:

    attach   numerate.integrations.transformers.attach: head and loss are fused, and no logits of the whole batch are built
    logits   the model builds its logits, and the objective is computed from them

Measurements are interleaved, so that a machine that slows down does not favour any. Times are medians; ratios are taken within a
round. Peak memory is that of a step, without weights and optimizer state. With one digit per token (smollm2, tiny) there are ten
numeric tokens, with llama-1b 1,110.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments

from benchmarks.losses import DTYPES, bench_labels, bench_soft_targets, bench_vocab, device_name
from benchmarks.measure import compare_ms, median_ratio, peak_mib
from benchmarks.workloads import llama_1b
from numerate.checks import check_choice
from numerate.integrations.fields import take_fields
from numerate.integrations.transformers import attach
from numerate.lab.files.records import write_text
from numerate.lab.models.loading import load_model
from numerate.losses import LOSSES
from numerate.objective import NumericObjective
from numerate.targets.soft_targets import SOFT_FIELDS
from numerate.vocab import NumericVocab

LLAMA = "llama-1b"
OWN = "own"  # the model's own loss
CROSS_ENTROPY, SOFT = "ce", "soft"
PATHS = ("attach", "logits")
LEAD = 1  # steps before each measured one: a GPU's clock depends on its recent load
SOFT_TOKENS = 10
TOLERANCES = {"float64": 1e-6, "float32": 1e-4, "bfloat16": 2e-2, "float16": 2e-3}  # relative differences of losses

Works = dict[tuple[str, str], Callable[[], Tensor]]


@dataclass(frozen=True)
class StepCost:
    """Cost of a training step; ratios are to the model's own loss."""

    device: str
    model: str
    dtype: str
    batch: int
    length: int
    path: str
    objective: str
    ms: float
    ratio: float
    tokens_per_second: float
    peak_mib: float
    peak_ratio: float


# A step


class FromLogits(Trainer):  # type: ignore[misc]
    """A trainer whose model builds its logits for the objective."""

    objective: NumericObjective

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Tensor:
        """Return the objective of a batch that is a whole step."""
        batch = dict(inputs)
        given = take_fields(batch)
        labels = batch.pop("labels")
        return self.objective(model(**batch).logits, labels, shift=True, **given).loss


class Workload:
    """A model, a batch, an optimizer, and one step with each objective."""

    def __init__(self, name: str, batch: int, length: int, dtype: torch.dtype, device: torch.device, folder: Path) -> None:
        if name == LLAMA:
            model = llama_1b(str(device), dtype)
            self.vocab = bench_vocab(1110, model.config.vocab_size)
        else:
            loaded = load_model(name, dtype=dtype)
            model, self.vocab = loaded.model.to(device), NumericVocab.from_tokenizer(loaded.tokenizer)
        self.model, self.device = model.train(), device
        ids = torch.cat([bench_labels(self.vocab, length, seed=row) for row in range(batch)])
        targets = bench_soft_targets(ids, self.vocab, SOFT_TOKENS)
        soft = zip(SOFT_FIELDS, (targets.positions, targets.token_ids, targets.probabilities.float()), strict=True)
        self.batch = {name: value.to(device) for name, value in (("input_ids", ids), ("labels", ids))}
        self.soft = self.batch | {name: value.to(device) for name, value in soft}
        # The rate is 0, so that all objectives are measured on the same weights.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0, weight_decay=0.0, fused=device.type == "cuda")
        cpu = device.type == "cpu"
        self.arguments = TrainingArguments(str(folder), use_cpu=cpu, report_to="none", logging_strategy="no", disable_tqdm=True)

    def works(self, losses: Sequence[str]) -> Works:
        """Return a step of each path and objective, the model's own loss first."""
        works: Works = {("", OWN): self._step(self._trainer(Trainer), self.batch)}
        for path in PATHS:
            for name in (CROSS_ENTROPY, SOFT, *losses):
                objective = (
                    NumericObjective(LOSSES[name](self.vocab)) if name in LOSSES else NumericObjective(None, vocab=self.vocab)
                )
                if path == "attach":
                    trainer = self._trainer(Trainer)
                    attach(trainer, objective)
                else:
                    trainer = self._trainer(FromLogits)
                    trainer.objective = objective.to(self.device)
                works[path, name] = self._step(trainer, self.soft if name == SOFT else self.batch)
        return works

    def _trainer(self, kind: type[Trainer]) -> Any:
        trainer = kind(self.model, self.arguments)
        trainer.current_gradient_accumulation_steps = 1  # set by trainer.train, which is not called
        return trainer

    def _step(self, trainer: Any, batch: Mapping[str, Tensor]) -> Callable[[], Tensor]:
        def step() -> Tensor:
            batches, num_items = trainer.get_batch_samples(iter([dict(batch)]), 1, self.device)
            loss: Tensor = trainer.training_step(self.model, batches[0], num_items)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            return loss

        return step


# Measure


def measure(name: str, batch: int, length: int, dtype: str, device: str, losses: Sequence[str], repeats: int) -> list[StepCost]:
    """Measure a step with the model's own loss, and with each objective on each path."""
    for loss in losses:
        check_choice("--loss", loss, tuple(LOSSES))
    where = torch.device(device)
    with tempfile.TemporaryDirectory() as folder:
        workload = Workload(name, batch, length, DTYPES[dtype], where, Path(folder))
        works = workload.works(losses)
        keys = {" ".join(key).strip(): key for key in works}
        named = {text: works[key] for text, key in keys.items()}
        check(works, TOLERANCES[dtype])
        times = compare_ms(named, where, repeats=repeats, lead=LEAD, tick=_rounds(len(works), repeats))
        peaks = {text: peak_mib(work, where) for text, work in named.items()}
    about = device_name(where), name, dtype, batch, length
    costs = []
    for text, (path, objective) in keys.items():
        ms = median(times[text])
        ratio, peak_ratio = median_ratio(times[text], times[OWN]), peaks[text] / peaks[OWN]
        costs.append(StepCost(*about, path, objective, ms, ratio, 1000 * batch * length / ms, peaks[text], peak_ratio))
    return costs


def check(works: Works, tolerance: float) -> None:
    """Raise if the two paths do not give the same loss, or if cross-entropy is not the model's own loss."""
    losses = {key: float(work()) for key, work in works.items()}
    for (path, objective), loss in losses.items():
        other = ("", OWN) if objective in (OWN, CROSS_ENTROPY) else ("logits", objective)
        if not abs(loss - losses[other]) <= tolerance * abs(loss):
            values = f"{path} {objective} is {loss:.6g} and {' '.join(other).strip()} {losses[other]:.6g}"
            raise ValueError(f"{values}: expected the same loss, so nothing is measured.")


def _rounds(works: int, repeats: int) -> Callable[[], None]:
    """Return a function that is called after each measurement, and shows how many rounds are done."""
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if done % works == 0:
            print(f"round {done // works} of {repeats}", file=sys.stderr, flush=True)

    return tick


def write(file: Path, costs: Sequence[StepCost]) -> None:
    """Write one line for each path and objective."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(field.name for field in fields(StepCost))
    lines.writerows(asdict(cost).values() for cost in costs)  # floats in full: a table of the file equals the printed one
    write_text(file, text.getvalue())


def read(file: Path) -> list[StepCost]:
    """Read what :func:`write` wrote."""
    kinds: dict[str, Any] = {"batch": int, "length": int} | dict.fromkeys(
        ("ms", "ratio", "tokens_per_second", "peak_mib", "peak_ratio"), float
    )
    with file.open(encoding="utf-8", newline="") as lines:
        return [StepCost(**{name: kinds.get(name, str)(text) for name, text in row.items()}) for row in csv.DictReader(lines)]


def table(costs: Sequence[StepCost]) -> Iterator[str]:
    """Yield the costs of one model as Markdown, a line for each objective."""
    own = next(cost for cost in costs if cost.objective == OWN)
    where = f"{own.device}, {own.dtype}"
    yield f"\n`{own.model}`, {own.batch} x {own.length:,} tokens, {where}; in brackets the ratio to the model's own loss.\n"
    heads = [text for path in PATHS for text in (f"`{path}`, ms", "tokens/s", "peak MiB")]
    yield f"| | {' | '.join(heads)} |\n|{'---|' * (1 + len(heads))}"
    # The model's own loss is computed from its logits.
    yield f"| the model's own loss | {' | ' * 3}{_columns(own)} |"
    for name in dict.fromkeys(cost.objective for cost in costs if cost is not own):
        found = {cost.path: cost for cost in costs if cost.objective == name}
        yield f"| `{name}` | {' | '.join(_columns(found[path]) for path in PATHS)} |"


def _columns(cost: StepCost) -> str:
    time = f"{cost.ms:.1f} ({cost.ratio:.2f}) | {cost.tokens_per_second:,.0f}"
    return f"{time} | {cost.peak_mib:,.0f} ({cost.peak_ratio:.2f})"


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help=f"{LLAMA}, smollm2, tiny, a folder, or a Hub id")
    parser.add_argument("--batch", type=int, default=8, help="rows per step. Default: 8")
    parser.add_argument("--length", type=int, default=1024, help="tokens per row. Default: 1024")
    parser.add_argument("--loss", action="append", help="a loss of the registry; may be repeated. Default: all of them")
    parser.add_argument("--repeats", type=int, default=9, help="rounds. Default: 9")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16" if cuda else "float32", help="of the weights")
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--out", type=Path, help="CSV file to write")
    parser.add_argument("--table", type=Path, nargs="+", metavar="CSV", help="print measured files, and measure nothing")
    given = parser.parse_args(arguments)
    if (given.model is None) == (given.table is None):
        parser.error("expected a model to measure, or --table with measured files.")
    if given.table is not None:
        measured = [read(file) for file in given.table]
    else:
        losses = given.loss or [*LOSSES]
        measured = [measure(given.model, given.batch, given.length, given.dtype, given.device, losses, given.repeats)]
        if given.out is not None:
            write(given.out, measured[0])
    for costs in measured:
        print("\n".join(table(costs)))


if __name__ == "__main__":
    main()
