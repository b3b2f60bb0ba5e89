"""distribution: the numbers that a model may answer with, and how likely it is to do so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy.typing as npt
import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers.generation.utils import ALL_CACHE_NAMES

from numerate.decode.finder import SETTINGS, NumberFinder, nothing_found, prompt_seeds
from numerate.decode.grammar import Grammar
from numerate.decode.members import Member, NoNumberError, active, all_pooled, members_of
from numerate.decode.mixed import CannotMixError, RowAdapters, can_mix, mixing, repeated
from numerate.decode.prompts import Prompts, batches
from numerate.decode.rows import Rows, evaluating
from numerate.decode.search import Answers, Rest, Watch, check_seed
from numerate.distribution import NumberDistribution
from numerate.formats import NumberFormat

_ONE_CACHE = Version(transformers.__version__) < Version("4.57")  # "dynamic" leaves out the cache of an encoder's states


@torch.no_grad()
def distribution(
    model: Any,
    prompts: Prompts,
    tokenizer: Any,
    *,
    adapters: Sequence[str] | None = None,
    weights: npt.ArrayLike | None = None,
    grammar: Grammar | None = None,
    format: NumberFormat | str | None = None,
    width: int | None = 16,
    covered: float = 0.99,
    rest: Rest = "draw",
    temperature: float = 1.0,
    seed: int | Sequence[int] = 0,
    end_token_ids: Any = None,
    batch_size: int = 64,
    memory: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
    watch: Watch = lambda nodes, branches: None,
    **options: Any,
) -> list[NumberDistribution]:
    r"""Return the model's distribution over the number that it would write after each prompt.

    The probability of a number is the sum over all token sequences that write it (``12`` + ``3``, ``123``), each followed by
    anything that does not continue it, up to the rounding of the model's arithmetic. A point without a digit after it is a full
    stop.

        P(number) = sum over texts s of its value, P(text begins with s) · P(the next token does not continue s)

    If a prompt has more than ``width`` prefixes, unlikely ones are subsampled without bias: see :mod:`numerate.decode.search`.
    ``covered`` and the other masses of the result say what was found.

    Args:
        model: a model of transformers with ``generate``: a decoder, an encoder-decoder or a vision-language model, in any mode
            and dtype and on any device. Or a list of models: the result is their pool (:func:`numerate.distribution.pool`).
        prompts: a list of texts, or of chats (lists of messages with "role" and "content"), or a single text or chat, which is
            a list of one. Texts stay as they are. Chats are written with the tokenizer's chat template up to the assistant's
            answer; if the last message is the assistant's, the answer continues it. Or what the tokenizer or processor returns
            for several prompts, padded on the left (an encoder-decoder's on any side).
        tokenizer: the model's tokenizer or processor; for a list of models also a list.
        adapters: names of adapters of a ``PeftModel``, which are pooled. Where peft can mix them (LoRA without variants), a batch
            has rows of several adapters; otherwise they are asked one after the other, which returns the same.
        weights: of the models or adapters in the pool; equal by default.
        grammar: the form of the number. By default any plain number, also ``1,200`` and ``007``; not ``1e5`` or ``1/2``. A
            :class:`TextGrammar` reads short answers of other forms.
        format: how numbers are written, if not as usual: a :class:`~numerate.formats.NumberFormat`, or a kind such as
            ``"spaced"``. The grammar then says which numbers there are, and the values of the result are numbers as ever.
        width: beam width: prefixes kept per prompt and forward pass; None for all.
        covered: the share of the probability of numbers to search. 1 with ``width=None`` returns every number there is.
        rest: what happens to prefixes beyond ``width``: "draw" or "drop" (they count as ``not_searched``).
        temperature: divides the scores.
        seed: of the draws, which depend on the index of the prompt, not on the batch; or one seed per prompt.
        end_token_ids: tokens that end a number whatever their text. Default: those of the model's generation configuration.
        batch_size: prompts at a time, if ``prompts`` can be split. Each adapter in a mixed batch counts a prompt once: eight
            adapters are asked eight prompts together, and more of them one adapter after the other, which is then faster.
        memory: bytes that the caches and scores of a forward pass may take; at least one prompt with ``width`` rows is searched.
            Default: a quarter of a GPU's free memory, 1 GiB on a CPU.
        progress: called with the number of prompts done, and of all.
        watch: called with the prefixes of each length in the search (:class:`numerate.decode.search.Node`), and where the
            probability of each goes. A search that finds no number begins again with a larger width.
        **options: further arguments of ``generate``, such as ``logits_processor``.

    Raises:
        ValueError: if a prompt ends within a number, scores are NaN, or no number has any probability after a prompt; the last
            error has the distributions of the other prompts in ``found``.

    Example::

        prices = distribution(model, ["carat: 0.9, cut: Ideal. price?"], tokenizer)
        prices[0].median, prices[0].interval(0.9), prices[0].covered
    """
    settings = {
        "grammar": grammar,
        "format": format,
        "width": width,
        "covered": covered,
        "rest": rest,
        "temperature": temperature,
        "end_token_ids": end_token_ids,
        "memory": memory,
        "watch": watch,
    }
    members = members_of(model, tokenizer, adapters, weights)
    rows = _asked(members, prompts, settings, options, seed=seed, batch_size=batch_size, progress=progress)
    return all_pooled(members, rows)


@torch.no_grad()
def member_distributions(
    model: Any, prompts: Prompts, tokenizer: Any, *, adapters: Sequence[str] | None = None, **search: Any
) -> list[list[NumberDistribution]]:
    """Return the distributions of all members of a pool after each prompt, of which :func:`distribution` returns the pool.

    :func:`numerate.distribution.spread` of them says how far the members disagree, and
    :func:`numerate.calibration.fit_pool_weights` fits weights.

    Args:
        model: a list of models, or a ``PeftModel``.
        prompts: as in :func:`distribution`.
        tokenizer: as in :func:`distribution`.
        adapters: names of adapters of the ``PeftModel``.
        **search: further arguments of :func:`distribution`, other than ``weights``.

    Returns:
        a list per prompt, with the members' distributions in their order.

    Raises:
        ValueError: as :func:`distribution`; also if a member gives no number any probability. The error then has the lists in
            ``found``, with None for such a member, whose weight :func:`distribution` counts as ``no_number``.

    Example::

        for members in member_distributions([model_a, model_b], prompts, tokenizer):
            print(pool(members).median, spread(members).between)
    """
    settings = {name: search.pop(name) for name in [*search] if name in SETTINGS}
    asking = {name: search.pop(name) for name in ("seed", "batch_size", "progress") if name in search}
    rows = _asked(members_of(model, tokenizer, adapters), prompts, settings, search, **asking)
    problem = next((one for row in rows for one in row if isinstance(one, str)), None)
    if problem is not None:
        raise NoNumberError(problem, [[None if isinstance(one, str) else one for one in row] for row in rows])
    return [[one for one in row if not isinstance(one, str)] for row in rows]


def _asked(
    members: Sequence[Member],
    prompts: Prompts,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    seed: int | Sequence[int] = 0,
    batch_size: int = 64,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[list[NumberDistribution | str]]:
    """Return the distributions of all members after each prompt, or why there is none."""
    seeds, found, done = check_seed(seed), dict[tuple[int, int], NumberDistribution | str](), 0
    total = 0
    for together in _together(members, options):
        first = members[together[0]]
        ends = settings.get("end_token_ids")
        ends = ends_of(first.model.generation_config) if ends is None else ends
        finder = NumberFinder(first.tokenizer, **{**settings, "end_token_ids": ends})
        mixes = True
        for indices, total, batch in batches(prompts, first.tokenizer, first.model, batch_size):
            drawn = prompt_seeds(indices, [seeds[index] for index in indices] if isinstance(seeds, list) else seeds)
            left = [*together]
            while left:
                several = max(1, batch_size // len(indices)) if mixes else 1
                chosen = left[:several]
                try:
                    answers = _answers([members[place] for place in chosen], batch, finder, indices, drawn, options)
                except CannotMixError:
                    mixes = False
                    continue
                del left[:several]
                pairs = ((place, index) for place in chosen for index in indices)
                for (place, index), answer in zip(pairs, answers, strict=True):
                    one = answer.distribution(finder.grammar.value) or nothing_found(index, answer, finder)
                    found[place, index] = one
                done += len(answers)
                progress(done, len(members) * total)
    return [[found[place, index] for place in range(len(members))] for index in range(total)]


def _together(members: Sequence[Member], options: Mapping[str, Any]) -> list[list[int]]:
    """Return the places of members that can be asked in the same batches."""
    first = members[0]
    names = [member.adapter for member in members if member.adapter is not None]
    alike = len(names) > 1 and all(member.tokenizer is first.tokenizer for member in members)
    of_rows = any(isinstance(value, Tensor) or name in ALL_CACHE_NAMES for name, value in options.items())
    if alike and not of_rows and can_mix(first.model, names):
        return [[*range(len(members))]]
    return [[place] for place in range(len(members))]


def _answers(
    members: Sequence[Member],
    batch: Mapping[str, Any],
    finder: NumberFinder,
    indices: Sequence[int],
    seeds: Sequence[Sequence[int]],
    options: Mapping[str, Any],
) -> list[Answers]:
    """Return the answers of members to the prompts of a batch: all of the first member, then all of the next."""
    found: list[Answers] = []

    def use(rows: Rows) -> None:
        found.extend(finder.find(rows, [*indices] * len(members), [*seeds] * len(members)))

    if len(members) == 1:
        with active(members[0]):
            generate(members[0].model, batch, use, options)
        return found
    names = [str(member.adapter) for member in members for _ in indices]
    with mixing(members[0].model, names) as adapters:
        generate(members[0].model, repeated(batch, len(members)), use, options, adapters)
    return found


class _DoneError(Exception):
    """Leaves generate, past whatever the model's own version of it does with the ids that were written."""


def generate(
    model: Any,
    batch: Mapping[str, Any],
    use: Callable[[Rows], object],
    options: Mapping[str, Any],
    adapters: RowAdapters | None = None,
) -> None:
    """Prepare a batch as ``generate`` of transformers does, and call ``use`` with its rows, each of which has its adapter."""

    def decoding(model: Any, input_ids: Tensor, logits_processor: Any, **kwargs: Any) -> Tensor:
        for name in ("stopping_criteria", "generation_config", "synced_gpus", "streamer"):
            kwargs.pop(name, None)
        use(Rows(model, input_ids, kwargs, logits_processor, continued=continued, adapters=adapters))
        raise _DoneError

    settings = {"do_sample": False, "num_beams": 1, "max_new_tokens": 64, "use_cache": True, **options}
    continued = "past_key_values" in {*batch, *options}
    makes_its_own = not model._supports_default_dynamic_cache() or (_ONE_CACHE and model.config.is_encoder_decoder)
    if not continued and not makes_its_own:
        settings.setdefault("cache_implementation", "dynamic")
    with evaluating(model), suppress(_DoneError):
        model.generate(**batch, **settings, custom_generate=decoding)


def ends_of(generation_config: Any) -> list[int]:
    """Return the ids of the tokens that end a generation."""
    ends = getattr(generation_config, "eos_token_id", None)
    if isinstance(ends, Tensor):
        ends = ends.reshape(-1).tolist()
    return [] if ends is None else [*ends] if isinstance(ends, Iterable) else [int(ends)]
