"""Do the same thing very often, and see whether memory grows: training steps, attach and detach, losses built and dropped.

    nice -n 10 python scripts/endurance.py                        # 20,000 steps of tiny, 10,000 attachments, 1,000 losses
    python scripts/endurance.py steps --times 2000
    python scripts/endurance.py attach losses

After each tenth the memory is measured: that of the process (resident), Python's objects that are alive, and tensors among them.
What counts is the growth from the second tenth to the last one: the first one imports, allocates and fills caches. A row is
``grows`` if there are more tensors, more than 20 other objects for each hundred repetitions, or more than 16 MiB of memory.

The Trainer keeps each point that it logs, and the run keeps the time of each step, for the median: about 60 bytes per step. One
point is logged for each hundredth of the steps.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import torch

TIMES = {"steps": 20_000, "attach": 10_000, "losses": 1_000}
PARTS = 10
MOST_MIB, MOST_OBJECTS = 16.0, 0.2  # of the whole, and of each repetition


@dataclass(frozen=True)
class Memory:
    """What a process holds after some repetitions."""

    times: int
    mib: float
    objects: int
    tensors: int

    @classmethod
    def now(cls, times: int) -> Memory:
        """Measure it."""
        gc.collect()
        alive = gc.get_objects()
        tensors = sum(issubclass(type(one), torch.Tensor) for one in alive)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return cls(times, pages * resource.getpagesize() / 2**20, len(alive), tensors)


@dataclass(frozen=True)
class Endured:
    """Memory after each part of the repetitions, the first part left out."""

    name: str
    seconds: float
    memory: Sequence[Memory]

    @property
    def times(self) -> int:
        """All repetitions."""
        return self.memory[-1].times

    @property
    def grows(self) -> bool:
        """Whether there is a leak."""
        first, last = self.memory[0], self.memory[-1]
        most = MOST_OBJECTS * (last.times - first.times)
        return last.tensors > first.tensors or last.objects - first.objects > most or last.mib - first.mib > MOST_MIB

    @property
    def row(self) -> str:
        """A row of the table."""
        first, last = self.memory[0], self.memory[-1]
        changes = [f"{last.mib - first.mib:+.1f}", f"{last.objects - first.objects:+,}", f"{last.tensors - first.tensors:+,}"]
        cells = [self.name, f"{self.times:,}", f"{self.seconds:,.0f}", f"{last.mib:,.0f}", *changes]
        return f"| {' | '.join(cells)} | {'grows' if self.grows else 'no'} |"


HEAD = """| what | times | seconds | MiB at the end | change of MiB | of objects | of tensors | leak |
|---|--:|--:|--:|--:|--:|--:|---|"""


class _Measuring:
    """Measure the memory after each part of the repetitions."""

    def __init__(self, name: str, times: int) -> None:
        self.name, self.times, self.begin = name, times, time.monotonic()
        self.due = [times * part // PARTS for part in range(2, PARTS + 1)]
        self.memory: list[Memory] = []

    def __call__(self, done: int) -> None:
        """Note that so many are done."""
        if len(self.memory) < len(self.due) and done >= self.due[len(self.memory)]:
            self.memory.append(Memory.now(done))
            last = self.memory[-1]
            text = (
                f"{self.name}: {done:,} of {self.times:,}, {last.mib:,.1f} MiB, {last.objects:,} objects, {last.tensors} tensors"
            )
            print(text, file=sys.stderr, flush=True)

    def result(self) -> Endured:
        """Return what was measured."""
        return Endured(self.name, time.monotonic() - self.begin, self.memory)


def steps(times: int) -> Endured:
    """Train tiny on arithmetic with SMMD."""
    from numerate.lab.training.config import RunConfig
    from numerate.lab.training.run import run

    shape = {"steps": times, "batch_size": 8, "train_examples": 512, "eval_examples": 2, "log_every": max(1, times // 100)}
    config = RunConfig(task="arithmetic", loss="smmd", task_settings={"difficulty": 1, "wording": "bare"}, **shape)
    measure = _Measuring("training steps of tiny", times)
    with tempfile.TemporaryDirectory() as folder:
        run(config, Path(folder), progress=lambda stage, done, *_: measure(done) if stage == "train" else None)
    return measure.result()


def attach(times: int) -> Endured:
    """Attach an objective to a trainer and detach it."""
    from transformers import Trainer, TrainingArguments

    from numerate.integrations.transformers import attach
    from numerate.lab.models.loading import load_model
    from numerate.losses import SMMDLoss
    from numerate.objective import NumericObjective
    from numerate.vocab import NumericVocab

    loaded = load_model("tiny")
    objective = NumericObjective(SMMDLoss(NumericVocab.from_tokenizer(loaded.tokenizer)))
    measure = _Measuring("attach and detach", times)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, use_cpu=True, report_to="none", disable_tqdm=True)
        trainer = Trainer(loaded.model, arguments, train_dataset=[])
        for done in range(1, times + 1):
            attach(trainer, objective).detach()
            measure(done)
    return measure.result()


def losses(times: int) -> Endured:
    """Build each loss of the registry in turn, compute it with its gradient, and drop it."""
    from numerate.losses import LOSSES
    from numerate.vocab import NumericVocab

    vocab = NumericVocab.from_texts({str(digit): digit for digit in range(10)} | {".": 10, "-": 11}, vocab_size=16)
    labels = torch.tensor([[1, 2, 10, 3, 12, 11, 4, 5]])
    measure = _Measuring("losses built, computed and dropped", times)
    for done, kind in zip(range(1, times + 1), cycle(LOSSES.values())):
        logits = torch.zeros(1, 8, 16, requires_grad=True)
        kind(vocab)(logits, labels).backward()
        measure(done)
    return measure.result()


PLANS: dict[str, Callable[[int], Endured]] = {"steps": steps, "attach": attach, "losses": losses}


def main(arguments: Sequence[str] | None = None) -> int:
    """Repeat, and print a table; return 1 if memory grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=[[], *PLANS], default=[], help=f"of {', '.join(PLANS)} (default: all)")
    parser.add_argument(
        "--times", type=int, help=f"how often (default: {', '.join(f'{n:,} {name}' for name, n in TIMES.items())})"
    )
    options = parser.parse_args(arguments)
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    done = [PLANS[name](options.times or TIMES[name]) for name in options.what or PLANS]
    print("\n".join([HEAD, *(one.row for one in done)]))
    return int(any(one.grows for one in done))


if __name__ == "__main__":
    sys.exit(main())
