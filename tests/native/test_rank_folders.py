"""Folders with tiktoken's or tekken's ranks and no ``tokenizer.json``, against ``tiktoken``."""

from __future__ import annotations

import base64
import json
import unicodedata
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from oracle import awkward, ranks
from turnwire._core import Chains, Profile
from turnwire.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RANKS = 50_000
KIMI_CODE = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
CHAT = ("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>")
TOOLS = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
NAMED = dict(enumerate((*CHAT, *TOOLS), RANKS))
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_' + message.role + '|>' + message.role }}<|im_middle|>"
    "{{ message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)


def folder(path: Path, files: dict[str, bytes], config: dict[str, Any]) -> str:
    for name, content in files.items():
        (path / name).write_bytes(content)
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return str(path)


def entries(named: dict[int, str]) -> dict[str, Any]:
    special = {name: name not in TOOLS for name in named.values()}
    return {str(i): {"content": name, "special": special[name]} for i, name in named.items()}


def same(profile: Profile, expected: Callable[[str], list[int]], texts: list[str], **how: bool):
    for text in texts:
        ids = expected(text)
        assert profile.encode(text, **how).tolist() == ids, repr(text[:300])
        assert profile.encode_reference(text, **how).tolist() == ids, repr(text[:300])


def nfd(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def ranks_file() -> bytes:
    return "\n".join(ranks.lines(RANKS)).encode() + b"\n"


def test_tekken(tmp_path):
    known = ranks.Tekken.of(json.loads(ranks.TEKKEN.read_bytes()))
    profile = Profile.load(folder(tmp_path, {"tekken.json": ranks.TEKKEN.read_bytes()}, {}))
    assert profile.encoder == "fastokens"
    assert profile.vocab_size == known.encoding.n_vocab + len(known.specials)
    assert profile.stop_token_ids == {known.specials.index("</s>")}
    same(profile, known.encode, awkward.texts())
    for token_id, special in enumerate(known.specials):
        assert profile.encode(special, control=True).tolist() == [token_id]
    for rank in range(0, known.encoding.n_vocab, 97):
        piece = known.encoding.decode_single_token_bytes(rank).decode(errors="replace")
        assert profile.decode([len(known.specials) + rank]) == piece


@pytest.mark.parametrize("seed", range(40))
def test_any_ranks_at_all(tmp_path, seed):
    """Tokens that no training would give: few letters, any order, most of them out of reach."""
    numbers = Random(seed)
    made = {bytes(numbers.choices(b"ab \xc3\xa9", k=numbers.randrange(2, 7))) for _ in range(90)}
    tokens = [*made, *(bytes([byte]) for byte in range(256))]
    numbers.shuffle(tokens)
    specials = ["<unk>", "<s>", "</s>"]
    file = {
        "config": {
            "pattern": r"[\p{L}\p{M}]+|\s+|[^\s\p{L}\p{M}]+",
            "default_vocab_size": len(specials) + len(tokens),
            "default_num_special_tokens": len(specials),
            "version": "v11",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(tokens)
        ],
        "special_tokens": [
            {"rank": token_id, "token_str": name, "is_control": True}
            for token_id, name in enumerate(specials)
        ],
    }
    known = ranks.Tekken.of(file)
    profile = Profile.load(folder(tmp_path, {"tekken.json": json.dumps(file).encode()}, {}))
    texts = ["".join(numbers.choices("abé ", k=numbers.randrange(1, 30))) for _ in range(200)]
    same(profile, known.encode, texts)


def test_a_file_with_openais_name(tmp_path):
    encoding = ranks.o200k(tmp_path)
    end = encoding.eot_token
    config = {"eos_token": "<|endoftext|>", "added_tokens_decoder": entries({end: "<|endoftext|>"})}
    files = {"o200k_base.tiktoken": ranks.O200K.read_bytes()}
    profile = Profile.load(folder(tmp_path, files, config))
    assert profile.stop_token_ids == {end}
    texts = awkward.texts(400)
    same(profile, lambda text: encoding.encode(text, disallowed_special=()), texts)
    named = {"<|endoftext|>"}
    same(profile, lambda text: encoding.encode(text, allowed_special=named), texts, control=True)


def test_the_first_qwens_folder(tmp_path):
    encoding = ranks.qwen(ranks.lines(RANKS))
    config = {"tokenizer_class": "QWenTokenizer", "eos_token": "<|im_end|>"}
    profile = Profile.load(folder(tmp_path, {"qwen.tiktoken": ranks_file()}, config))
    assert profile.stop_token_ids == {RANKS + 2}
    for control in (False, True):
        # With added tokens on, no mark is tried that would compose with the `>` of one: see docs.
        texts = [text for text in awkward.texts() if not (control and ">\u0338" in nfd(text))]
        same(
            profile,
            lambda text, control=control: ranks.qwen_encode(encoding, text, control=control),
            texts,
            control=control,
        )


@pytest.fixture(scope="module")
def kimi() -> ranks.Kimi:
    return ranks.Kimi(ranks.lines(RANKS), NAMED, CHAT)


@pytest.fixture(scope="module")
def kimi_folder(tmp_path_factory) -> str:
    config = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": KIMI_CODE,
        "added_tokens_decoder": entries(NAMED),
        "additional_special_tokens": [name for name in CHAT if name.startswith("<|")],
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
    }
    return folder(tmp_path_factory.mktemp("kimi"), {"tiktoken.model": ranks_file()}, config)


@pytest.fixture(scope="module")
def kimi_profile(kimi_folder) -> Profile:
    return Profile.load(kimi_folder)


def long_texts() -> list[str]:
    """Texts that Kimi's code cuts: at runs, at 400,000 characters, and through a control token."""
    numbers = Random(0x4B32)
    words = ("a ", "the ", "字字 ", "\n\n", "x1 ", "é")
    long = "".join(numbers.choice(words) for _ in range(240_000))
    filler = "ab " * 133_333  # one character short of 400,000
    return [
        " " * 30_000,
        "\n" * 30_000 + "a",
        "x" + "\x1c " * 25_000,
        "0123456789" * 7_000,
        "漢字" * 25_001,
        "a" * 24_999 + " " + "ab" * 12_501 + "\u3000" * 25_001 + "b",
        long[:450_000],
        filler + "<|im_end|>" + filler,
        filler + "<|tool_call_begin|>" + filler,
        "a" * 20_000 + "<|tool_call_begin|>" + "a" * 20_000,
        "a" * 20_000 + "<|im_end|>" + "a" * 20_000 + "<|im_user|>" + long[:401_000],
    ]


def test_kimi(kimi, kimi_profile):
    assert kimi_profile.encoder == "fastokens"
    assert kimi_profile.stop_token_ids == {RANKS + 1}
    texts = awkward.texts()
    same(kimi_profile, lambda text: kimi.whole(text, control=False), texts)
    same(kimi_profile, kimi.prompt, texts, control=True)
    # What is not cut is the same however the code is called.
    same(kimi_profile, lambda text: kimi.whole(text, control=True), texts, control=True)
    [cuts] = [words for what, _, words in kimi_profile.audit() if what == "safe cuts"]
    assert f"{len(CHAT)} of 256 control tokens on both sides; not after {TOOLS[0]}" in cuts
    for name, token_id in kimi.encoding._special_tokens.items():
        assert kimi_profile.encode(name, control=True).tolist() == [token_id]


def test_kimi_cuts_long_texts_where_its_code_does(kimi, kimi_profile):
    texts = long_texts()
    moved = 0
    for text in texts:
        uncut = kimi.encoding.encode(text, allowed_special="all")
        moved += uncut != kimi.prompt(text)
        ids = kimi.whole(text, control=False)
        assert kimi_profile.encode(text).tolist() == ids, repr(text[:60])
        ids = kimi.prompt(text)
        assert kimi_profile.encode(text, control=True).tolist() == ids, repr(text[:60])
    assert moved > len(texts) // 2, "the cuts must show"
    # Called with a text and nothing else, the code counts on across every token: see docs.
    assert any(kimi.whole(text, control=True) != kimi.prompt(text) for text in texts)


def test_a_kimi_chat_is_cut_like_the_whole_prompt(kimi, kimi_folder):
    """Law 4, where pieces are long: cuts are made only where counting begins anew."""
    profile = Profile.load(kimi_folder, trust="compat")
    chains, node, text = Chains(profile), None, ""
    ask = "<|im_assistant|>assistant<|im_middle|>"
    for content in (
        "a" * 30_000,
        "hello <|tool_call_begin|>" + "b" * 24_990,
        "c" * 24_990 + TOOLS[0] + "d" * 25_010 + " " * 25_001,
    ):
        text += f"<|im_user|>user<|im_middle|>{content}<|im_end|>"
        items = [{"type": "message", "role": "user", "content": content}]
        turn = chains.open(node, json.dumps(items).encode(), now=0)
        assert turn.prompt.tolist() == kimi.prompt(text + ask)
        turn.push([*kimi.whole("ok", control=False), RANKS + CHAT.index("<|im_end|>")])
        turn.finish()
        node = turn.commit()
        text += f"{ask}ok<|im_end|>"


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("tiktoken.model", {}, "neither 'auto_map' nor 'tokenizer_class'"),
        ("tiktoken.model", {"tokenizer_class": "TikTokenTokenizer"}, "'TikTokenTokenizer'"),
        ("x.tiktoken", {"auto_map": {"AutoTokenizer": "tok.Mine"}}, "'tok.Mine'"),
    ],
)
def test_unknown_code_is_refused_by_name(tmp_path, name, config, words):
    with pytest.raises(ProfileError) as caught:
        Profile.load(folder(tmp_path, {name: ranks_file()}, config))
    assert f"{name}: it does not say how text is split into words" in str(caught.value)
    assert words in str(caught.value)
