"""Tokenizers by name: real ones from the package index, every kind of file, and what is said when there is none."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import gguf
import pytest
import sentencepiece
import transformers
from packaging.version import Version
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from numerate import NumericVocab, tokenizers
from numerate.lab.models.loading import load_encoder, load_model
from numerate.tokenizers import PACKAGED, load_tokenizer, packaged_file

SENTENCE = "It is 12345.678, -7 and 1,000"
TEXTS = [SENTENCE, "", " ", "  two  spaces 12", "a\t\tb\nc\n\n   007", " " * 23 + "x 3", "-7", "①²½ ４２ ٣", "日本語 🙂 é 10"]
TEXTS += ["def f(x):\n    return x + 1"]


@pytest.fixture(scope="module")
def packaged() -> dict[str, PreTrainedTokenizerFast]:
    return {name: load_tokenizer(name) for name in PACKAGED}


class TestPackaged:
    @pytest.mark.parametrize(
        ("name", "size", "vocab_size", "eos", "tokens"),
        [
            ("smollm2", 10, 49152, "<|im_end|>", "It Ġis Ġ 1 2 3 4 5 . 6 7 8 , Ġ- 7 Ġand Ġ 1 , 0 0 0"),
            ("deepseek", 1110, 129280, "<｜end▁of▁sentence｜>", "It Ġis Ġ 123 45 . 678 , Ġ- 7 Ġand Ġ 1 , 000"),
            ("mistral", 10, 32768, "</s>", "▁It ▁is ▁ 1 2 3 4 5 . 6 7 8 , ▁- 7 ▁and ▁ 1 , 0 0 0"),
        ],
    )
    def test_tokens(self, packaged, name: str, size: int, vocab_size: int, eos: str, tokens: str):
        vocab = NumericVocab.from_tokenizer(packaged[name])
        assert (vocab.size, vocab.vocab_size, packaged[name].eos_token) == (size, vocab_size, eos)
        assert all((vocab.point_ids, vocab.minus_ids, vocab.comma_ids))
        assert packaged[name].tokenize(SENTENCE) == tokens.split()
        assert packaged[name](SENTENCE).keys() == {"input_ids", "attention_mask"}

    @pytest.mark.parametrize("name", PACKAGED)
    @pytest.mark.parametrize("text", TEXTS)
    def test_decodes_what_it_encodes(self, packaged, name: str, text: str):
        assert packaged[name].decode(packaged[name].encode(text, add_special_tokens=False)) == text

    @pytest.mark.parametrize("text", TEXTS)
    def test_mistral_is_what_sentencepiece_makes_of_it(self, packaged, text: str):
        original = sentencepiece.SentencePieceProcessor(model_file=str(packaged_file("mistral")))
        assert packaged["mistral"].encode(text, add_special_tokens=False) == original.encode(text)

    @pytest.mark.parametrize("name", PACKAGED)
    def test_a_missing_package_is_named_with_its_command(self, monkeypatch, name: str):
        monkeypatch.setitem(PACKAGED, name, PACKAGED[name]._replace(module="no_such_package"))
        with pytest.raises(ModuleNotFoundError, match=PACKAGED[name].install):
            load_tokenizer(name)


@pytest.fixture
def small() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "7": 1, "42": 2, "apples": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", eos_token="apples")


class TestFiles:
    def test_json_gzip_and_home(self, small, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        small.backend_tokenizer.save(str(tmp_path / "mine.json"))
        assert load_tokenizer("~/mine.json").encode("42 apples 7") == [2, 3, 1]
        (tmp_path / "mine.json.gz").write_bytes(gzip.compress(small.backend_tokenizer.to_str().encode()))
        assert load_tokenizer(str(tmp_path / "mine.json.gz")).get_vocab() == small.get_vocab()

    @pytest.mark.parametrize("name", [".", "tokenizer.json"])
    def test_a_saved_tokenizer_knows_its_special_tokens(self, small, tmp_path, name: str):
        small.save_pretrained(tmp_path)
        loaded = load_tokenizer(tmp_path / name)
        assert loaded.encode("42 apples 7") == [2, 3, 1]
        assert loaded.eos_token == "apples"


@pytest.fixture
def no_prompt(monkeypatch):
    """Fail where somebody is asked."""

    def ask(*args):
        pytest.fail(f"asked at a prompt: {args}")

    monkeypatch.setattr("builtins.input", ask)


REMOTE = """
import pathlib
from transformers import PreTrainedTokenizerFast
pathlib.Path({marker!r}).write_text("ran")
class Mine(PreTrainedTokenizerFast):
    pass
"""
CONFIGS = {
    "another class": {"tokenizer_class": "LlamaTokenizerFast", "add_prefix_space": True},
    "no such class": {"tokenizer_class": "NoSuchTokenizer"},
    "remote code": {"auto_map": {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}, "tokenizer_class": "Mine"},
    "more tokens": {"added_tokens_decoder": {"9": {"content": "4", "special": False}}, "additional_special_tokens": ["12"]},
    "roles it has not": {"eos_token": "12", "pad_token": {"content": "<none>"}, "bos_token": 7},
    "a list": [],
    "broken": "{",
}


class TestNamedFile:
    """What lies beside a named file changes nothing of what it reads."""

    @pytest.fixture
    def file(self, tmp_path) -> Path:
        """A byte-level tokenizer of single digits, with a special and a plain added token."""
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        backend = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens([AddedToken("<end>", lstrip=True)])
        backend.add_tokens([AddedToken("ab")])
        backend.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "mine.py").write_text(REMOTE.format(marker=str(tmp_path / "marker")))
        return tmp_path / "tokenizer.json"

    @pytest.mark.parametrize("name", CONFIGS)
    def test_config_beside_it(self, file: Path, no_prompt, name: str):
        config = CONFIGS[name]
        (file.parent / "tokenizer_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        raw, loaded = Tokenizer.from_file(str(file)), load_tokenizer(file)
        for text in [*TEXTS, "a 12.5 <end>abc", "4  <end> -7"]:
            assert loaded.encode(text) == raw.encode(text).ids, text
        assert loaded.get_vocab() == raw.get_vocab()
        assert type(loaded) is PreTrainedTokenizerFast
        assert (loaded.eos_token, loaded.pad_token, loaded.bos_token) == (None, None, None)
        assert not (file.parent / "marker").exists()
        roles = {"eos_token": {"content": "<end>", "lstrip": False}, "pad_token": "<end>", "unk_token": "ab"}
        (file.parent / "tokenizer_config.json").write_text(json.dumps(roles))  # of its own special tokens
        loaded = load_tokenizer(file)
        assert (loaded.eos_token, loaded.pad_token, loaded.unk_token) == ("<end>", "<end>", None)
        assert loaded.encode("a <end> ab 12") == raw.encode("a <end> ab 12").ids

    def test_a_folder_with_remote_code_needs_the_flag(self, file: Path, no_prompt, monkeypatch, tmp_path_factory):
        monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        (file.parent / "tokenizer_config.json").write_text(json.dumps(CONFIGS["remote code"]))
        with pytest.raises(ValueError, match=r"comes with Python code.*trust_remote_code=True.*pass its tokenizer.json"):
            load_tokenizer(file.parent)
        assert not (file.parent / "marker").exists()
        assert type(load_tokenizer(file.parent, trust_remote_code=True)).__name__ == "Mine"
        assert (file.parent / "marker").read_text() == "ran"

    @pytest.mark.parametrize("load", [load_encoder, load_model])
    def test_a_model_with_remote_code_needs_the_flag(self, file: Path, no_prompt, load):
        (file.parent / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}')
        with pytest.raises(ValueError, match=r"model=.* comes with Python code.*--set trust_remote_code=true"):
            load(str(file.parent))
        assert not (file.parent / "marker").exists()

    def test_gguf(self, file: Path):
        write_gguf(file.parent / "model.gguf", "default")
        alone = load_tokenizer(file.parent / "model.gguf").backend_tokenizer.to_str()
        (file.parent / "tokenizer_config.json").write_text('{"eos_token": "7", "added_tokens_decoder": {}, "bos_token": "8"}')
        beside = load_tokenizer(file.parent / "model.gguf")
        assert beside.backend_tokenizer.to_str() == alone
        assert (beside.eos_token, beside.bos_token) == ("<|end|>", "<|begin|>")


def write_gguf(path: Path, pre: str | None, architecture: str = "llama", *, begin: bool = True) -> None:
    """A byte-level tokenizer and no weights; two spaces are a token of their own, and four."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ĠĠ", "ĠĠĠĠ", "<|begin|>", "<|end|>"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 2) + [3, 3])
    writer.add_token_merges(["Ġ Ġ", "ĠĠ ĠĠ"])
    if begin:
        writer.add_bos_token_id(len(tokens) - 2)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class TestGGUF:
    @pytest.mark.parametrize(
        ("pre", "tokens"), [("default", ["Ġ", "Ġ", "1", "2"]), (None, ["Ġ", "Ġ", "1", "2"]), ("smollm", ["ĠĠ", "1", "2"])]
    )
    def test_reads_how_digits_are_split(self, tmp_path, pre: str | None, tokens: list[str]):
        write_gguf(tmp_path / "model.gguf", pre)
        tokenizer = load_tokenizer(tmp_path / "model.gguf")
        assert tokenizer.tokenize("  12") == tokens == load_tokenizer(tmp_path).tokenize("  12")  # the only one of a folder
        assert tokenizer.eos_token == "<|end|>"
        write_gguf(tmp_path / "other.gguf", pre)
        with pytest.raises(FileNotFoundError, match=r"found several: model.gguf, other.gguf\).*name the file"):
            load_tokenizer(tmp_path)

    @pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2"])
    def test_special_tokens_are_those_of_the_file(self, tmp_path, architecture: str):
        write_gguf(tmp_path / "model.gguf", "default", architecture)
        tokenizer = load_tokenizer(tmp_path / "model.gguf")
        roles = [getattr(tokenizer, f"{role}_token") for role in ("bos", "eos", "unk", "pad")]
        assert roles == ["<|begin|>", "<|end|>", None, None]
        assert tokenizer.encode("1<|end|>", add_special_tokens=False) == [16, 259]
        assert not {"<s>", "</s>"} & {*tokenizer.get_vocab()}

    def test_without_a_start_token(self, tmp_path):
        write_gguf(tmp_path / "model.gguf", "default", begin=False)
        if Version(transformers.__version__) < Version("5.18"):
            with pytest.raises(ValueError, match=r"no start token .*expected transformers 5.18 or later"):
                load_tokenizer(tmp_path)
        else:
            tokenizer = load_tokenizer(tmp_path)
            assert (tokenizer.bos_token, tokenizer.eos_token) == (None, "<|end|>")


CORPUS = [f"{word} {number} has {number / 7:.3f} of -{number}" for number in range(200) for word in ("Alpha", "beta", "γάμμα")]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def trained(request, tmp_path_factory) -> Path:
    """A SentencePiece model with everything that its conversion has to mind."""
    prefix = tmp_path_factory.mktemp("sentencepiece") / request.param
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(prefix),
        model_type=request.param,
        vocab_size=400,
        byte_fallback=True,
        split_digits=request.param == "bpe",
        normalization_rule_name="nmt_nfkc" if request.param == "unigram" else "identity",
        remove_extra_whitespaces=request.param == "unigram",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return prefix.with_suffix(".model")


class TestSentencePiece:
    @pytest.mark.parametrize("text", [*TEXTS, "Alpha 12 has 1.714 of -12", "ﬁve ４２ Alpha", "γάμμα"])
    def test_is_what_sentencepiece_makes_of_it(self, trained: Path, text: str):
        original = sentencepiece.SentencePieceProcessor(model_file=str(trained))
        tokenizer = load_tokenizer(trained)
        found = tokenizer.convert_ids_to_tokens(tokenizer.encode(text, add_special_tokens=False))
        assert found == original.encode(text, out_type=str)
        assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token) == ("<s>", "</s>", "<unk>")
        assert tokenizer.encode("</s>", add_special_tokens=False)[-1] == 2

    def test_folders_and_models_of_words(self, trained: Path, tmp_path):
        (tmp_path / "tokenizer.model").write_bytes(trained.read_bytes())
        assert load_tokenizer(tmp_path).get_vocab() == load_tokenizer(trained).get_vocab()
        options = {"model_prefix": str(tmp_path / "words"), "model_type": "word", "hard_vocab_limit": False, "minloglevel": 2}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), **options)
        with pytest.raises(ValueError, match="its type is 3.*BPE or Unigram"):
            load_tokenizer(tmp_path / "words.model")

    def test_without_the_package(self, trained: Path, monkeypatch):
        monkeypatch.setitem(sys.modules, "sentencepiece", None)
        with pytest.raises(ModuleNotFoundError, match="pip install sentencepiece protobuf"):
            load_tokenizer(trained)


class TestErrors:
    @pytest.mark.parametrize("name", ["nowhere/tokenizer.json", "a.gguf", "./nowhere", "~/nowhere/x", "/nowhere", "a/b/c"])
    def test_a_path_that_does_not_exist(self, name: str):
        with pytest.raises(FileNotFoundError, match=rf"name='{name}' does not exist: expected a folder, a file, 'smollm2'"):
            load_tokenizer(name)

    @pytest.mark.parametrize(
        ("name", "content", "said"),
        [
            ("mine.json", b"not json", "expected the tokenizer.json"),
            ("mine.json", b"{}", "expected the tokenizer.json"),
            ("mine.json.gz", b"not gzip", "expected the tokenizer.json"),
            ("mine.json.gz", gzip.compress(b"x" * 99, mtime=0)[:20], "expected the tokenizer.json"),
            ("tokenizer.model", b"not a model", "expected a SentencePiece model"),
            ("tokenizer.model", b"", "expected a SentencePiece model"),
            ("model.gguf", b"PK\x03\x04", "expected a GGUF file"),
            ("model.gguf", b"GGUF\x03\x00\x00\x00", "expected a GGUF file with a tokenizer"),
        ],
    )
    def test_files_that_are_no_tokenizer(self, tmp_path, name: str, content: bytes, said: str):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name}' .*: {said}") as raised:
            load_tokenizer(tmp_path / name)
        assert "\n" not in str(raised.value)

    def test_folders_that_are_no_tokenizer(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"is a folder without a tokenizer.json.*save_pretrained"):
            load_tokenizer(tmp_path)
        (tmp_path / "tokenizer.json").write_text("{}")
        (tmp_path / "tokenizer_config.json").write_text("{}")
        with pytest.raises(ValueError, match="cannot be read.*expected a tokenizer saved with"):
            load_tokenizer(tmp_path)

    def test_without_transformers(self, monkeypatch):
        monkeypatch.setattr(tokenizers, "find_spec", lambda name: None)
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'numerate\[lab\]'"):
            load_tokenizer("deepseek")


class TestHub:
    @pytest.fixture
    def offline(self, monkeypatch):
        def refuse(*args, **kwargs):
            raise ConnectionError("no route\nto host")

        monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)

    def test_out_of_reach(self, offline):
        with pytest.raises(OSError, match=r"'someone/some-model' is not a file.*\(no route\): expected .* a Hub id") as raised:
            load_tokenizer("someone/some-model")
        assert "\n" not in str(raised.value)
        with pytest.raises(OSError, match=r"Did you mean 'deepseek'\?"):
            load_tokenizer("deepsek")

    @pytest.mark.parametrize("reachable", [True, False])
    def test_the_cache_answers_where_the_hub_does_not(self, small, monkeypatch, reachable: bool):
        def model_info(*args, **kwargs):
            if not reachable:
                raise ConnectionError("no route")

        calls = []
        monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
        monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *args, **kwargs: calls.append((args, kwargs)) or small)
        assert load_tokenizer("someone/some-model") is small
        assert calls == [(("someone/some-model",), {"local_files_only": not reachable, "trust_remote_code": False})]

    def test_remote_code_needs_the_flag(self, monkeypatch, no_prompt):
        """The Hub's own answer is simulated; that transformers raises it where the flag is False is tested with folders."""

        def from_pretrained(*args, trust_remote_code, **kwargs):
            if not trust_remote_code:
                raise ValueError("Please pass the argument `trust_remote_code=True`")
            return "trusted"

        monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *args, **kwargs: None)
        monkeypatch.setattr(AutoTokenizer, "from_pretrained", from_pretrained)
        with pytest.raises(ValueError, match="'someone/some-model' comes with Python code.*--trust-remote-code"):
            load_tokenizer("someone/some-model")
        assert load_tokenizer("someone/some-model", trust_remote_code=True) == "trusted"


def test_nothing_heavy_is_imported_before_it_is_needed():
    heavy = {"transformers", "tokenizers", "sentencepiece", "gguf", "matplotlib", "typer", "rich"}
    heavy |= {package.module for package in PACKAGED.values()}
    code = f"import sys, numerate, numerate.tokenizers as t; t.packaged_file('mistral'); print({heavy!r} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
