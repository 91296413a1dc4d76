"""Folders with a ``tokenizer.model`` and no ``tokenizer.json``, against ``sentencepiece``."""

from __future__ import annotations

import io
import json
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import sentencepiece

from oracle import awkward
from oracle.vocabulary import VOCABULARIES
from turnwire._core import Profile
from turnwire.errors import ProfileError

if TYPE_CHECKING:
    from pathlib import Path

MODELS = sorted((VOCABULARIES / "sentencepiece").glob("*.model.*"), key=lambda path: path.suffix)
LONG = [" " * 30_000, "a" * 3_000, "▁" * 100, " " * 17 + "a" + " " * 33, "\n" * 500, "字" * 2_000]


def profile_of(folder: Path, model: bytes, config: dict[str, Any] | None = None) -> Profile:
    (folder / "tokenizer.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps(config or {}))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    return Profile.load(str(folder))


def trained(**options: Any) -> bytes:
    """A small vocabulary of its own."""
    numbers, model = Random(7), io.BytesIO()
    words = ("the", "cat", "sat", "on", "a", "mat", "1024", "naïve", "it's", "(x+y)", "世界")
    lines = [" ".join(numbers.choices(words, k=12)) for _ in range(300)]
    defaults = {
        "model_type": "bpe",
        "vocab_size": 325,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, **(defaults | options)
    )
    return model.getvalue()


def same(profile: Profile, known: sentencepiece.SentencePieceProcessor, texts: list[str]):
    for text in texts:
        ids = known.encode(text)
        assert profile.encode(text).tolist() == ids, repr(text[:300])
        assert profile.encode_reference(text).tolist() == ids, repr(text[:300])


def is_control(known: sentencepiece.SentencePieceProcessor, token_id: int) -> bool:
    return known.is_control(token_id) or known.is_unknown(token_id)


def test_the_models_are_there():
    assert len(MODELS) == 3, "run `make vocab` (tests do not skip)"


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.suffix)
def test_mistrals(tmp_path, path):
    model = path.read_bytes()
    known = sentencepiece.SentencePieceProcessor(model_proto=model)
    profile = profile_of(tmp_path, model)
    assert profile.encoder == "fastokens"
    assert profile.vocab_size == known.vocab_size()
    assert profile.stop_token_ids == {known.eos_id()}
    same(profile, known, [*awkward.texts(), *LONG])
    for token_id in filter(lambda i: is_control(known, i), range(known.vocab_size())):
        assert profile.encode(known.id_to_piece(token_id), control=True).tolist() == [token_id]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.suffix)
def test_each_stretch_between_control_tokens_is_a_text_of_its_own(tmp_path, path):
    """As mistral-common encodes each part of a message, and ``transformers`` with ``legacy``."""
    model = path.read_bytes()
    known = sentencepiece.SentencePieceProcessor(model_proto=model)
    profile = profile_of(tmp_path, model, {"legacy": True})
    clean = [text.replace("<s>", "").replace("</s>", "") for text in awkward.texts(300)]
    for first, second in zip(clean, reversed(clean), strict=True):
        if "[INST]" not in first + second and "[TOOL_CALLS]" not in first + second:
            ids = [known.bos_id(), *known.encode(first), known.eos_id(), *known.encode(second)]
            assert profile.encode(f"<s>{first}</s>{second}", control=True).tolist() == ids


def test_without_legacy_only_the_start_gets_a_space(tmp_path):
    model = MODELS[0].read_bytes()
    known = sentencepiece.SentencePieceProcessor(model_proto=model)
    profile = profile_of(tmp_path, model, {"legacy": False, "tokenizer_class": "LlamaTokenizer"})
    texts = [text.replace("<s>", "").replace("</s>", "") for text in awkward.texts(300)]
    # `transformers` gives a text that begins with a space no other.
    same(profile, known, [text for text in awkward.texts(300) if text[:1] not in (" ", "▁")])
    mark = known.encode("\x01")
    for text in texts:
        # Behind a character that joins nothing, a text gets no space.
        later = known.encode("\x01" + text)
        assert later[: len(mark)] == mark
        ids = [*known.encode("a"), known.eos_id(), *later[len(mark) :]]
        assert profile.encode(f"a</s>{text}", control=True).tolist() == ids, repr(text)


@pytest.mark.parametrize("prefix", [True, False])
def test_vocabularies_of_our_own(tmp_path, prefix):
    model = trained(add_dummy_prefix=prefix)
    known = sentencepiece.SentencePieceProcessor(model_proto=model)
    same(profile_of(tmp_path, model), known, [*awkward.texts(), *LONG])


def test_a_user_defined_piece_is_an_added_token(tmp_path):
    """``sentencepiece`` finds it in any text; here a text under strict trust is only letters."""
    model = trained(user_defined_symbols=["<tool>"])
    known = sentencepiece.SentencePieceProcessor(model_proto=model)
    profile = profile_of(tmp_path, model)
    tool = known.piece_to_id("<tool>")
    same(profile, known, [text for text in awkward.texts() if "<tool>" not in text])
    assert tool in known.encode("a<tool>b")
    assert tool not in profile.encode("a<tool>b").tolist()
    assert profile.encode("<tool>", control=True).tolist() == [tool]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model_type": "unigram", "vocab_size": 290}, "its model is not BPE"),
        ({"model_type": "char"}, "its model is not BPE"),
        ({"byte_fallback": False, "vocab_size": 60}, "it has unknown characters"),
        ({"normalization_rule_name": "nmt_nfkc"}, "it normalizes text"),
        ({"remove_extra_whitespaces": True}, "it drops spaces"),
        ({"treat_whitespace_as_suffix": True}, "its spaces end words"),
    ],
)
def test_what_would_be_encoded_otherwise_is_refused(tmp_path, options, reason):
    with pytest.raises(ProfileError, match=r"tokenizer\.model: " + reason):
        profile_of(tmp_path, trained(**options))


def test_unknown_classes_are_refused_by_name(tmp_path):
    with pytest.raises(ProfileError, match="'MineTokenizer'"):
        profile_of(tmp_path, MODELS[0].read_bytes(), {"tokenizer_class": "MineTokenizer"})
