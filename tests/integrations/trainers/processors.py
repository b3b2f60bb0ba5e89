"""Processors of vision-language models as transformers has them, small, with tokenizers made here, and rows with pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

QUESTION = "How many dots are in the picture? "
ANSWERS = ["There are 12 dots.", "I count 97, and no 3 more", "100.5", "About -8.", "It is 1099 dots"]
PICTURES = [(12, 12), (8, 20), (24, 8), (8, 8), (16, 30)]  # height and width


class Family(NamedTuple):
    """A processor, the text that stands for a picture, and the token that it becomes many of."""

    make: Callable[[], Any]
    picture: str
    patch: str


def tokenizer(*special: str, digits: str = r"\p{N}", pieces: bool = False, **named: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer that was trained on the texts of this file, with a beginning, an end, and special tokens.

    Args:
        *special: further special tokens.
        digits: what digits are split into.
        pieces: a space is a letter of its own, as SentencePiece has it; else bytes are.
        **named: special tokens by the name of the tokenizer's attribute.
    """
    raw = Tokenizer(models.BPE(unk_token="<unk>" if pieces else None))
    split = pre_tokenizers.Split(Regex(digits), "isolated")
    if pieces:
        raw.normalizer = normalizers.Replace(" ", "▁")
        raw.pre_tokenizer, raw.decoder = split, decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    else:
        raw.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        raw.decoder = decoders.ByteLevel()
    begin, end = "<s>", "</s>"
    alphabet = [*map(chr, range(32, 127)), "▁", "\n"] if pieces else pre_tokenizers.ByteLevel.alphabet()
    words = [QUESTION, *ANSWERS, *map(str, range(0, 1200, 7))]
    extra = [begin, end, "<pad>", "<unk>"]
    raw.train_from_iterator(
        words, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, special_tokens=extra, show_progress=False)
    )
    raw.post_processor = processors.TemplateProcessing(single=f"{begin} $A", pair=f"{begin} $A $B:1", special_tokens=[(begin, 0)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token=begin, eos_token=end, pad_token="<pad>", extra_special_tokens=named
    )
    made.add_tokens([AddedToken(text, special=True) for text in special])
    return made


def _pictures(name: str, **settings: Any) -> Any:
    """Return an image processor that needs no torchvision."""
    for full in (f"{name}ImageProcessorPil", f"{name}ImageProcessor"):
        if hasattr(transformers, full):
            return getattr(transformers, full)(**settings)
    raise ValueError(f"no image processor of {name}")


def _without_videos(kind: Any, *parts: Any, **settings: Any) -> Any:
    """Return a processor without its part for videos, which needs torchvision."""
    with mock.patch.object(kind, "check_argument_for_proper_class"):
        return kind(*parts, **settings)


def qwen2_vl() -> Any:
    tokens = tokenizer("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    size = {"shortest_edge": 64, "longest_edge": 1024}
    pictures = _pictures("Qwen2VL", patch_size=4, merge_size=2, size=size)
    return _without_videos(transformers.Qwen2VLProcessor, pictures, tokens)


def idefics3() -> Any:
    """Return the processor that SmolVLM has too; a picture is cut into parts, in rows and columns."""
    rows = [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]
    tokens = tokenizer("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *rows)
    pictures = _pictures("Idefics3", size={"longest_edge": 32}, max_image_size={"longest_edge": 16})
    return transformers.Idefics3Processor(pictures, tokens, image_seq_len=4)


def llava() -> Any:
    pictures = _pictures("CLIP", size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    tokens = tokenizer("<image>", pieces=True)
    return transformers.LlavaProcessor(pictures, tokens, patch_size=4, vision_feature_select_strategy="full")


def paligemma() -> Any:
    pictures = _pictures("Siglip", size={"height": 16, "width": 16})
    pictures.image_seq_length = 16
    return transformers.PaliGemmaProcessor(pictures, tokenizer(pieces=True))


def gemma3() -> Any:
    pictures = _pictures("Gemma3", size={"height": 16, "width": 16})
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    return transformers.Gemma3Processor(pictures, tokenizer(pieces=True, **named), image_seq_length=4)


def internvl() -> Any:
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    pictures = _pictures("GotOcr2", size={"height": 16, "width": 16}, crop_to_patches=True, max_patches=4)
    tokens = tokenizer(**named, video_token="<video>")
    return _without_videos(transformers.InternVLProcessor, pictures, tokens, image_seq_length=4)


def pixtral() -> Any:
    pictures = _pictures("Pixtral", patch_size=4, size={"longest_edge": 32})
    return transformers.PixtralProcessor(pictures, tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]"), patch_size=4)


def mllama() -> Any:
    """Return a processor whose text does not grow, but has a mask of each token's pictures."""
    pictures = _pictures("Mllama", size={"height": 16, "width": 16}, max_image_tiles=2)
    return transformers.MllamaProcessor(pictures, tokenizer("<|image|>", "<|python_tag|>", digits=r"\p{N}{1,3}"))


FAMILIES = {
    "qwen2_vl": Family(qwen2_vl, "<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>"),
    "idefics3": Family(idefics3, "<image>", "<image>"),
    "llava": Family(llava, "<image>", "<image>"),
    "paligemma": Family(paligemma, "<image>", "<image>"),
    "gemma3": Family(gemma3, "<start_of_image>", "<image_soft_token>"),
    "internvl": Family(internvl, "<IMG_CONTEXT>", "<IMG_CONTEXT>"),
    "pixtral": Family(pixtral, "[IMG]", "[IMG]"),
    "mllama": Family(mllama, "<|image|>", "<|image|>"),
}


def rows(answers: list[str] = ANSWERS) -> list[dict[str, Any]]:
    """Return questions about pictures, and answers with numbers."""
    rng = np.random.default_rng(0)
    sizes = (PICTURES * len(answers))[: len(answers)]
    return [
        {"picture": rng.integers(0, 256, (*size, 3), dtype=np.uint8), "question": QUESTION, "answer": answer}
        for size, answer in zip(sizes, answers, strict=True)
    ]


class Collator:
    """Calls a processor, as training scripts of vision-language models do.

    Args:
        name: of the family.
        whole: whether questions are trained too; pictures are not.
        settings: of the call.
    """

    def __init__(self, name: str, *, whole: bool = False, side: str = "right", **settings: Any) -> None:
        self.family, self.name, self.whole = FAMILIES[name], name, whole
        self.settings = {"padding": True, "padding_side": side, "return_tensors": "pt"} | settings
        self.processor = self.family.make()

    def __call__(self, chosen: list[dict[str, Any]]) -> dict[str, Tensor]:
        end, given = self.processor.tokenizer.eos_token, {"images": [[row["picture"]] for row in chosen], **self.settings}
        questions = [self.family.picture + row["question"] for row in chosen]
        if self.name == "paligemma" and not self.whole:  # makes labels itself
            return dict(self.processor(text=questions, suffix=[row["answer"] for row in chosen], **given))
        texts = [question + row["answer"] + end for question, row in zip(questions, chosen, strict=True)]
        batch = dict(self.processor(text=texts, **given))
        trained = batch["attention_mask"].bool()  # [B, T]
        if self.whole:
            special = torch.tensor([self.processor.tokenizer.convert_tokens_to_ids(self.family.patch)])
            trained = trained & ~torch.isin(batch["input_ids"], special)
        else:
            asked = self.processor(text=questions, **given)["attention_mask"].sum(1)  # [B]
            trained = trained & (trained.long().cumsum(1) > asked[:, None])
        return batch | {"labels": torch.where(trained, batch["input_ids"], -100)}
