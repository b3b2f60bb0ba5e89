"""Let a model answer questions about rows: its distribution over numbers, the decision on one of them, and an interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numerate.answers.extract import EXTRACTORS
from numerate.checks import check_choice, one_line
from numerate.distribution import NumberDistribution, spread
from numerate.distribution.decision_rules import RULE_NAMES
from numerate.distribution.exact import exact_number
from numerate.formats import NumberFormat
from numerate.lab.data import TASKS
from numerate.lab.data.regression import Regression, Row
from numerate.lab.data.row_reader import BadData, open_image
from numerate.lab.data.task_format import TaskFormat, format_of
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.models.names import ANSWER_TOKENS, NAMED, check_model_name
from numerate.lab.models.questions import ASKED, Questions
from numerate.lab.prediction.prediction_file import Prediction
from numerate.lab.training.config import RunConfig
from numerate.lab.training.kept_runs import is_run, load_adapter, load_members, load_run, trained_config

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from numerate.lab.models.loading import LoadedModel

RULES = (*(name for name in RULE_NAMES if name != "within"), GREEDY)
"""Names of decisions; ``within:2`` and ``within:5%`` have a tolerance of your own."""

ONE_NUMBER = ("last_number", "rational")
"""Extractors of tasks whose answers are one number, which can be predicted."""

_WEIGHTS, _BESIDE = (".safetensors", ".bin", ".gguf"), ("config.json", "adapter_config.json", "tokenizer.json", ASKED)

Found = NumberDistribution | str  # a distribution, or why there is none
Members = Sequence[NumberDistribution | None]  # the distributions of a pool's members; empty for one model
Interval = Callable[[NumberDistribution], tuple[Decimal, Decimal]]


def parse_rule(text: str) -> tuple[str, dict[str, Any]]:
    """Return a rule and its tolerance, as :meth:`numerate.NumberDistribution.decide` takes them.

    Examples:
        >>> parse_rule("median"), parse_rule("within:2.5"), parse_rule("within:5%")
        (('median', {}), ('within', {'tolerance': '2.5'}), ('within', {'relative_tolerance': '0.05'}))
    """
    name, colon, tolerance = text.partition(":")
    if name != "within":
        check_choice("decide", text, (*RULES, "within:2", "within:5%"))
        return name, {}
    try:
        size = exact_number("decide", tolerance.removesuffix("%"))
    except ValueError:
        size = Decimal(-1)
    if not colon or size < 0:
        raise ValueError(f"decide={text!r} has no tolerance: expected within:2 for the unit of the answers, or within:5%.")
    return "within", {"relative_tolerance": f"{size / 100:f}"} if tolerance.endswith("%") else {"tolerance": f"{size:f}"}


class Searched(NamedTuple):
    """What was found for a question: the distribution, or why there is none, and those of the members.

    ``disagreement`` is how far the members disagree, in the unit of the answer; None if fewer than two found a number.
    """

    found: Found
    members: Members = ()
    disagreement: float | None = None


def draw_seed(row: Row, seed: int = 0) -> int:
    """Return what decides the draws of a search: equal questions draw alike, whatever their order, batch or server.

    Examples:
        >>> first, again, other = Row("area: 84. rent?", ""), Row("area: 84. rent?", "910"), Row("area: 85. rent?", "")
        >>> draw_seed(first) == draw_seed(again), draw_seed(first) == draw_seed(other), draw_seed(first) == draw_seed(first, 1)
        (True, False, False)
    """
    content = row.prompt.encode(errors="surrogatepass") + (b"" if row.image is None else row.image.read_bytes())
    return int.from_bytes(blake2b(content, digest_size=7, salt=seed.to_bytes(8, "little")).digest(), "little")


@dataclass(frozen=True)
class Source:
    """A model that is not loaded yet, and how it is asked."""

    name: str  # a folder or a name; of a run, its folder
    questions: Questions  # how rows are asked about
    config: RunConfig | None = None  # of a run
    trust_remote_code: bool = False  # run Python code that comes with the model

    @property
    def trained(self) -> bool:
        """Whether it was trained by ``numerate train``."""
        return self.config is not None or self.questions.chat is not None

    @property
    def members(self) -> int:
        """How many models are asked."""
        return self.questions.members if self.config is None else self.config.members

    @property
    def folder(self) -> Path:
        """The folder of the weights, if the model is in one."""
        return Path(self.name) / ("model" if self.config is not None else "")

    @property
    def weights(self) -> str | None:
        """A mark that changes when the files of a local model change; None for other models."""
        if not self.folder.is_dir():
            return None
        files = [*sorted(self.folder.iterdir()), *sorted(self.folder.glob("members/*/*"))]
        kept = [file for file in files if file.suffix in _WEIGHTS or file.name in _BESIDE]
        states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in kept]
        return blake2b(repr(states).encode(), digest_size=8).hexdigest()

    def answering(self, decide: str, interval: Interval, width: int | None, batch_size: int) -> Deciding:
        """Return the model, ready to be asked."""
        return Answering(self, decide, interval, width, batch_size)

    def load(self) -> LoadedModel:
        """Load the model, on the GPU if there is one."""
        import torch

        from numerate.lab.models.loading import load_model

        gpu = torch.cuda.is_available()
        if self.config is not None:
            loaded = load_run(Path(self.name), self.config)
        elif self.questions.base is not None:
            loaded = load_adapter(Path(self.name), **self.questions.base, trust_remote_code=self.trust_remote_code)
        else:
            dtype = torch.bfloat16 if gpu and self.name not in NAMED else torch.float32
            loaded = load_model(self.name, dtype=dtype, trust_remote_code=self.trust_remote_code)
        if self.config is None:
            load_members(loaded, Path(self.name), self.questions.members)
        if self.questions.chat is not None:
            loaded.chat = self.questions.chat
        if self.config is None:
            loaded.limit(self.questions.max_length or _context(loaded)).write(self.questions.format)
        loaded.to("cuda" if gpu else "cpu").model.eval()
        return loaded


def find_source(
    model: str,
    target: str | None = None,
    prompt: str | None = None,
    format: str | None = None,
    *,
    trust_remote_code: bool = False,
) -> Source:
    """Return the model of a name, a folder or a run of ``numerate train``, and how it is asked."""
    check_model_name(model)
    folder = Path(model)
    run = folder.resolve().parent  # of a folder with weights, if it is still there
    if (folder / ASKED).is_file() and (run / "config.json").is_file() and (run / "model").resolve() == folder.resolve():
        folder = run
    if not (folder / "config.json").is_file() or not (folder / "model").is_dir():
        weights = any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))
        if folder.is_dir() and (is_run(folder) or not weights):
            trained_config(folder)  # raises: a run without weights, or neither a run nor a model
        kept = Questions.read(folder / ASKED) if (folder / ASKED).is_file() else Questions(Regression())
        questions = in_format(_changed(kept, model, target, prompt), model, format)
        return Source(model, questions, trust_remote_code=trust_remote_code)
    config = trained_config(folder, trust_remote_code=trust_remote_code)
    if TASKS[config.task].extractor not in ONE_NUMBER:
        raise ValueError(
            f"model={model!r} was trained on task={config.task!r}, whose answers are not one number: expected a model of a table "
            "(numerate train --data my.csv --target price)."
        )
    if (folder / "model" / ASKED).is_file():
        kept = Questions.read(folder / "model" / ASKED)
    elif config.task == "regression" and config.data is not None:
        task = Regression(**config.task_settings)
        columns, optional = task.asked_columns(Path(config.data))
        asked = Regression(target=task.target, columns=columns or None, decimal=task.decimal, wording=task.wording)
        kept = Questions(asked, optional)
    else:
        kept = Questions(Regression())
    return Source(str(folder.resolve()), in_format(_changed(kept, model, target, prompt), model, format), config)


def _changed(questions: Questions, model: str, target: str | None, prompt: str | None) -> Questions:
    """Return the questions with what the caller asks for; a model of a table is asked as it was trained."""
    trained = questions.task.target
    if trained is None:
        kept = {name: getattr(questions, name) for name in ("chat", "base", "format", "members")}
        return Questions(Regression(target=target), template=prompt, **kept)
    for name, value in (("target", target), ("prompt", prompt)):
        if value not in (None, trained if name == "target" else None):
            raise ValueError(
                f"{name}={value!r} does not belong to model={model!r}, which was trained to predict {trained!r}: leave it out; "
                "the questions are those of the training."
            )
    return questions


def in_format(questions: Questions, model: str, text: str | None) -> Questions:
    """Return the questions in the format that the caller names; raise if the model was trained in another one."""
    if text is None:
        return questions
    kind, digits, decimals = format_of(text)
    if questions.chat is not None or not questions.format.plain:
        trained = questions.format.format
        if kind != trained.kind or (
            digits is not None and (digits, decimals) != (trained.sizes.digits[1], trained.sizes.decimals[1])
        ):
            raise ValueError(
                f"format={text!r} does not belong to model={model!r}, which was trained in {trained.kind!r}: leave it out; "
                "numbers are written as in the training."
            )
        return questions
    if "padded" in kind.split("+") and digits is None:
        raise ValueError(
            f"format={text!r} has no width, and model={model!r} keeps none: expected the most digits, as in {text}:6."
        )
    return replace(questions, format=TaskFormat.of(questions.task, NumberFormat(kind, digits, decimals)))


def _context(loaded: LoadedModel) -> int | None:
    """Return the most tokens that a model reads; None if its configuration does not say."""
    longest = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    return None if longest is None else int(longest)


@dataclass
class Deciding:
    """A model that answers questions: a decision on its distribution over numbers, and an interval."""

    source: Source  # the model and its questions
    decide: str  # see ``parse_rule``
    interval: Interval  # returns the ends of the interval of a distribution
    width: int | None = 16  # of the search
    batch_size: int = 64  # the most rows of a batch that the adapters of a pool share
    # How far the members of a pool usually disagree; rows on which they disagree more are unusual. None: not known.
    usual: float | None = None

    def __post_init__(self) -> None:
        self.metric, self.tolerances = parse_rule(self.decide)

    def predict(self, rows: Sequence[Row | str], seeds: Sequence[int] = ()) -> list[tuple[Searched, Prediction]]:
        """Return distributions and prediction of each row; a text instead of a row is the reason why it has none.

        ``seeds`` of the rows, 0 by default, change what their searches draw: see :func:`draw_seed`.
        """
        found = self.search_members(rows, seeds)
        read = [row for row, one in zip(rows, found, strict=True) if isinstance(row, Row) and not isinstance(one.found, str)]
        said = iter(self.greedy(read) if self.metric == GREEDY else [None] * len(read))
        predictions = (
            Prediction(problem=one) if isinstance(one, str) else self._decided(one, away, next(said)) for one, _, away in found
        )
        return [*zip(found, predictions, strict=True)]

    def search_members(self, rows: Sequence[Row | str], seeds: Sequence[int] = (), **options: Any) -> list[Searched]:
        """Return the distributions over the answers to each question, or why there are none; arguments as of :meth:`predict`."""
        raise NotImplementedError

    def greedy(self, rows: Sequence[Row]) -> list[str]:
        """Return what the model writes with greedy decoding, as text."""
        raise NotImplementedError

    def is_cut(self, row: Row) -> bool:
        """Return whether long texts of a row are cut."""
        raise NotImplementedError

    def _decided(self, found: NumberDistribution, away: float | None, said: str | None) -> Prediction:
        low, high = self.interval(found)
        more: dict[str, Any] = {"low": low, "high": high, "covered": found.covered, "no_number": found.no_number}
        more |= {"disagreement": away, "unusual": None if away is None or self.usual is None else away > self.usual}
        if said is None:
            return Prediction(found.decide(self.metric, **self.tolerances), **more)
        number = EXTRACTORS["last_number"](said)
        if number is None:
            return Prediction(None, **more, problem="the greedy answer has no number")
        return Prediction(exact_number("answer", number), **more)


@dataclass
class Answering(Deciding):
    """A loaded model that answers questions."""

    loaded: LoadedModel = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.loaded = self.source.load()
        self.longest = _context(self.loaded)
        self.bf16 = self.source.config is not None and self.source.config.bf16

    def search(self, rows: Sequence[Row | str], **options: Any) -> list[Found]:
        """Return the distribution over the answers to each question, or why there is none.

        ``options`` are those of :func:`numerate.decode.distribution`, such as another width.
        """
        return [one.found for one in self.search_members(rows, **options)]

    def first_member(self) -> Answering:
        """Return the same without the other members of a pool."""
        alone = copy(self)
        alone.loaded = replace(self.loaded, pool=None)
        return alone

    def disagreement(self, members: Members) -> float | None:
        """Return how far members disagree, in the unit of the answer; None if fewer than two found a number."""
        weights = None if self.loaded.pool is None else self.loaded.pool.weights
        pairs = [(one, 1.0 if weights is None else weights[place]) for place, one in enumerate(members) if one is not None]
        if len(pairs) < 2 or not sum(weight for _, weight in pairs):
            return None
        return spread([one for one, _ in pairs], [weight for _, weight in pairs]).between

    def search_members(self, rows: Sequence[Row | str], seeds: Sequence[int] = (), **options: Any) -> list[Searched]:
        """Do the same as :meth:`search`, with the distributions of the members of a pool, and seeds as for :meth:`predict`."""
        found = {index: Searched(row) for index, row in enumerate(rows) if isinstance(row, str)}
        draws: dict[int, int] = {}
        seen: dict[bool, list[tuple[int, dict[str, Any]]]] = {False: [], True: []}
        for index, row in enumerate(rows):
            if isinstance(row, str):
                continue
            try:
                encoded, picture = self._encoded(row)
            except BadData as bad:
                found[index] = Searched(one_line(bad))
                continue
            length = len(encoded["input_ids"])
            if self.longest is not None and length + ANSWER_TOKENS > self.longest:
                problem = f"the question has more tokens than the model takes, {self.longest:,} with the answer"
                found[index] = Searched(problem)
            elif not length:
                found[index] = Searched("the question is empty")
            else:
                seen[picture].append((index, encoded))
                draws[index] = draw_seed(row, seeds[index] if seeds else 0)
        for group in seen.values():
            found |= self._searched(group, draws, options)
        return [found[index] for index in range(len(rows))]

    def _searched(
        self, group: Sequence[tuple[int, dict[str, Any]]], draws: Mapping[int, int], others: Mapping[str, Any]
    ) -> dict[int, Searched]:
        """Search in one batch; where that fails, in halves, so that a bad row does not affect the others."""
        import torch

        from numerate.decode.grammar import ANY_NUMBER

        if not group:
            return {}
        low, high = map(Fraction, self.source.questions.answers) if self.source.questions.answers else (None, None)
        options: dict[str, Any] = {
            "width": self.width,
            "grammar": self.loaded.format.grammar(replace(ANY_NUMBER, lowest=low, highest=high)),
            "seed": [draws[index] for index, _ in group],
            "end_token_ids": [self.loaded.end],
            **others,
        }
        try:
            with self._autocast():
                found = self._asked(self._batch(group), len(group), options)
        except ValueError as error:
            if len(group) == 1:
                return {group[0][0]: Searched(one_line(error).removeprefix("prompts[0]").removeprefix(": ").lstrip())}
            half = len(group) // 2
            return self._searched(group[:half], draws, others) | self._searched(group[half:], draws, others)
        except torch.cuda.OutOfMemoryError as error:
            raise RuntimeError(f"the GPU has no memory for {len(group)} rows at a time: use a smaller --batch-size.") from error
        return {index: one for (index, _), one in zip(group, found, strict=True)}

    def _asked(self, batch: Mapping[str, Any], size: int, options: Mapping[str, Any]) -> list[Searched]:
        """Return the distributions of the model, or of its pool, after the prompts of a batch."""
        from numerate.decode import distribution, member_distributions
        from numerate.decode.members import NoNumberError, members_of, pooled

        tokenizer, among = self.loaded.tokenizer, self.loaded.pool
        if among is None:
            return [Searched(one) for one in distribution(self.loaded.model, batch, tokenizer, batch_size=size, **options)]
        models, adapters = ([*among.models], None) if among.adapters is None else (self.loaded.model, among.adapters)
        rows: list[Any]
        try:
            rows = member_distributions(
                models, batch, tokenizer, adapters=adapters, batch_size=max(size, self.batch_size), **options
            )
        except NoNumberError as error:
            rows = error.found
        members = members_of(models, tokenizer, adapters, among.weights)
        return [
            Searched(pooled(members, row) or "no member gives any number a probability", row, self.disagreement(row))
            for row in rows
        ]

    def is_cut(self, row: Row) -> bool:
        """Return whether long texts of a row are cut."""
        return row.image is None and self.loaded.fitted(row.prompt) != row.prompt

    def greedy(self, rows: Sequence[Row]) -> list[str]:
        """Return what the model writes with greedy decoding, as text."""
        import torch

        texts: dict[int, str] = {}
        encoded = [(index, *self._encoded(row)) for index, row in enumerate(rows)]
        for picture in (False, True):
            group = [(index, one) for index, one, has in encoded if has is picture]
            if not group:
                continue
            with torch.no_grad(), self._autocast():
                answers = self.loaded.answers(
                    None, **self._batch(group), do_sample=False, num_beams=1, max_new_tokens=ANSWER_TOKENS
                )
            texts |= {index: answer for (index, _), answer in zip(group, answers, strict=True)}
        return [texts[index] for index in range(len(rows))]

    def _encoded(self, row: Row) -> tuple[dict[str, Any], bool]:
        """Return the tokens of a question as in training, and whether it has a picture."""
        image: Image | None = None if row.image is None else open_image(row.image)
        if image is not None and not self.loaded.sees:
            if not self.source.trained:
                raise ValueError(
                    f"model={self.source.name!r} does not accept pictures, which the column image has: expected a "
                    "vision-language model; rename the column if it is not a picture."
                )
            image = None  # a column that the training did not have
        own = self.source.questions.template is not None and not self.source.trained
        if own and image is None and not self.loaded.chat:
            return {"input_ids": self.loaded.tokenizer(self.loaded.fitted(row.prompt))["input_ids"]}, False
        return self.loaded.encode([(row.prompt, image)])[0], image is not None

    def _batch(self, group: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, torch.Tensor]:
        from numerate.lab.models.encoding import collate

        batch = collate([dict(encoded) for _, encoded in group], pad=self.loaded.pad, left=True)
        return {name: value.to(self.loaded.model.device) for name, value in batch.items()}

    def _autocast(self) -> torch.autocast:
        import torch

        return torch.autocast(self.loaded.model.device.type, torch.bfloat16, enabled=self.bf16)
