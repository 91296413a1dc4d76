"""The models of the tests, read by other people's code from the files that ``make vocab`` fetched.

``gguf`` reads the GGUF and ``tokenizers`` is put together from its tokens and merges, so nothing of
turnwire's own loaders is believed.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from oracle import naive, tekken, trained
from oracle.naive import Model

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VOCABULARIES = Path(__file__).parents[2] / ".cache" / "vocab"

GENERIC = ("qwen3", "gpt-oss", "deepseek-v4", "mistral-v0.1", "gemma3", "llama3.1", "tekken")
"""The vocabularies that the generic path is tested with: folders with a ``tokenizer.json``."""

RENAMED = {
    "llama3.1-named": (
        "llama3.1",
        {128004: "<|finetune_right_pad_id|>", 128008: "<|eom_id|>", 128010: "<|python_tag|>"},
    ),
    "tekken-v13": ("tekken", {32: "[ARGS]", 33: "[CALL_ID]", 34: "[THINK]", 35: "[/THINK]"}),
    "gemma4": (
        "gemma3",
        {
            46: "<|tool>",
            47: "<tool|>",
            48: "<|tool_call>",
            49: "<tool_call|>",
            50: "<|tool_response>",
            51: "<tool_response|>",
            52: '<|"|>',
            98: "<|think|>",
            100: "<|channel>",
            101: "<channel|>",
            105: "<|turn>",
            106: "<turn|>",
        },
    ),
}
"""Vocabularies in which reserved tokens have the names that later models give them: Meta's
``tokenizer.py`` for Llama 3.1, ``tekken.json`` of version 13, and Gemma 4's templates."""

# llama.cpp's token types (gguf.TokenType): what is matched in a text before it is split.
_CONTROL, _USER_DEFINED = 3, 4


def _there(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: run `make vocab` (tests do not skip)")
    return path


def qwen3_path() -> Path:
    """The folder with Qwen3's ``tokenizer.json`` and ``tokenizer_config.json``."""
    folder = VOCABULARIES / "qwen3"
    _there(folder / "tokenizer.json")
    return folder


def smollm2_path() -> Path:
    """SmolLM2's GGUF."""
    folder = _there(VOCABULARIES / "smollm2")
    return _there(next(iter(sorted(folder.glob("*.gguf"))), folder / "*.gguf"))


@cache
def qwen3() -> Model:
    """Qwen3: byte-level BPE with NFC, tools and thinking in its template."""
    folder = qwen3_path()
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    description = json.loads((folder / "tokenizer.json").read_text())
    return Model(
        name="qwen3",
        template=template,
        tokenizer=Tokenizer.from_str(json.dumps(description)),
        bare=Tokenizer.from_str(json.dumps(description | {"added_tokens": []})),
        tool_branch=True,
    )


@cache
def smollm2() -> Model:
    """SmolLM2: GPT-2's byte-level BPE behind single digits, and a template that knows no tools."""
    fields = GGUFReader(str(smollm2_path())).fields
    tokens, types, merges = (
        fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges")
    )

    # llama.cpp keeps a byte that has no token apart from its neighbours until the merges are done,
    # then drops it; `tokenizers` would drop it first and merge across the gap.
    missing = sorted(set(naive.byte_letters()) - set(tokens))

    def assemble() -> Tokenizer:
        tokenizer = Tokenizer(
            models.BPE(
                vocab={token: token_id for token_id, token in enumerate([*tokens, *missing])},
                merges=[tuple(merge.split(" ", 1)) for merge in merges],
            )
        )
        # Not what transformers makes of this GGUF: its conversion gets digits beside spaces wrong
        # in 133 of 5,000 lines against llama.cpp; this has none wrong.
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        return tokenizer

    tokenizer = assemble()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    return Model(
        name="smollm2",
        template=fields["tokenizer.chat_template"].contents(),
        tokenizer=tokenizer,
        bare=assemble(),
        tool_branch=False,
        mute=frozenset(range(len(tokens), len(tokens) + len(missing))),
    )


def generic_path(name: str) -> Path:
    """The folder with a vocabulary's ``tokenizer.json`` and ``tokenizer_config.json``."""
    if name in trained.NAMES:
        return trained.folder(name)
    folder = VOCABULARIES / name
    if name == "tekken" and not (folder / "tokenizer_config.json").exists():
        converted = tekken.convert(_there(folder / "tekken_240911.json"))
        _write(folder / "tokenizer.json", converted)
        _write(folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})
    if name in RENAMED and not (folder / "tokenizer_config.json").exists():
        source, names = RENAMED[name]
        files = generic_path(source)
        folder.mkdir(exist_ok=True)
        described = json.loads((files / "tokenizer.json").read_text(encoding="utf-8"))
        changed: dict[Any, str] = {}
        for token in described["added_tokens"]:
            if token["id"] in names:
                changed[token["content"]] = names[token["id"]]
                token |= {"content": names[token["id"]], "special": True}
        listed = described["model"]["vocab"]
        renamed = {names.get(token_id, token): token_id for token, token_id in listed.items()}
        described["model"]["vocab"] = renamed
        _write(folder / "tokenizer.json", described)
        config = json.loads((files / "tokenizer_config.json").read_text(encoding="utf-8"))
        for key in ("bos_token", "eos_token"):
            config[key] = changed.get(_token(config.get(key)), config.get(key))
        _write(folder / "tokenizer_config.json", config)
    _there(folder / "tokenizer.json")
    return folder


def _write(path: Path, value: Any) -> None:
    """A file that is there as a whole or not at all, whoever else writes it."""
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".write-")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False)
    Path(scratch).chmod(0o644)
    Path(scratch).replace(path)


@cache
def generic(name: str) -> Vocabulary:
    """A vocabulary as the generic path meets it: any ``tokenizer.json``."""
    folder = generic_path(name)
    description = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    return Vocabulary.of(
        name,
        description,
        bos=_token(config.get("bos_token")),
        eos=_token(config.get("eos_token")),
        template=config.get("chat_template") or "",
    )


def _token(value: str | dict[str, Any] | None) -> str:
    return (value["content"] if isinstance(value, dict) else value) or ""


@dataclass(frozen=True)
class Vocabulary(Model):
    """A ``tokenizer.json`` and what a template is told about it.

    ``bare`` still matches the added tokens that are text (``controls`` are the others).
    """

    later: Tokenizer | None = None
    """``bare`` as it encodes what does not begin the text, where that is otherwise (Metaspace)."""
    description: str = ""
    """The ``tokenizer.json`` without model and added tokens."""
    bos: str = ""
    eos: str = ""

    @classmethod
    def of(
        cls, name: str, description: dict[str, Any], *, bos: str, eos: str, template: str = ""
    ) -> Vocabulary:
        """From a ``tokenizer.json`` as it was read."""
        kept = [token for token in description["added_tokens"] if _is_text(token)]
        bare = description | {"added_tokens": kept}
        later = json.loads(json.dumps(bare["pre_tokenizer"]))
        firsts = [part for part in _parts(later) if part.get("prepend_scheme") == "first"]
        for part in firsts:
            part["prepend_scheme"] = "never"
        later_text = json.dumps(bare | {"pre_tokenizer": later})
        rest = {k: v for k, v in description.items() if k not in ("model", "added_tokens")}
        return cls(
            name=name,
            template=template,
            tokenizer=Tokenizer.from_str(json.dumps(description)),
            bare=Tokenizer.from_str(json.dumps(bare)),
            tool_branch=True,
            later=Tokenizer.from_str(later_text) if firsts else None,
            description=json.dumps(rest),
            bos=bos,
            eos=eos,
        )

    @cached_property
    def controls(self) -> dict[str, int]:
        """The added tokens that are no text: what a prompt's skeleton is made of."""
        decoder = self.tokenizer.get_added_tokens_decoder()
        return {
            token.content: token_id
            for token_id, token in decoder.items()
            if not _is_text({"content": token.content, "special": token.special})
        }

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        """The controls by length, in two passes: `tokenizers` looks for those that are matched in
        normalised text only between those that are not."""
        decoder = self.tokenizer.get_added_tokens_decoder().values()
        passes = []
        for normalized in (False, True):
            found = [token.content for token in decoder if token.normalized is normalized]
            longest_first = sorted(set(found) & set(self.controls), key=len, reverse=True)
            if longest_first:
                passes.append(re.compile(f"({'|'.join(map(re.escape, longest_first))})"))
        return passes

    def split(self, text: str) -> list[str]:
        """A text cut around its controls."""
        pieces = [text]
        for pattern in self._patterns:
            pieces = [
                part
                for piece in pieces
                for part in ([piece] if piece in self.controls else pattern.split(piece))
                if part
            ]
        return pieces

    def encode_run(self, text: str, *, first: bool) -> list[int]:
        """The ids of a text without controls, that begins the prompt or does not."""
        tokenizer = self.bare if first or self.later is None else self.later
        return tokenizer.encode(text, add_special_tokens=False).ids

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        controls = {token_id: token.encode() for token, token_id in self.controls.items()}
        byte_level = any(part.get("type") == "ByteLevel" for part in _parts(self._described))
        letters = naive.byte_letters()

        def spelled(token: str) -> bytes:
            if byte_level:
                return bytes(letters[letter] for letter in token)
            if re.fullmatch("<0x[0-9A-F]{2}>", token):
                return bytes([int(token[3:5], 16)])
            return token.replace("\u2581", " ").encode()

        pieces = self.bare.get_vocab().items()
        return {i: spelled(token) for token, i in pieces if i not in controls} | controls

    @cached_property
    def _described(self) -> Any:
        return json.loads(self.description)

    def normal(self, text: str) -> bytes:
        """As the normaliser leaves it, SentencePiece's spaces as spaces."""
        found = super().normal(text)
        return found.replace("\u2581".encode(), b" ") if "\u2581" in self.description else found

    def skeleton(self, ids: Iterable[int]) -> list[str]:
        """The controls among ``ids``, in order."""
        names = {token_id: token for token, token_id in self.controls.items()}
        return [names[token_id] for token_id in ids if token_id in names]


def _is_text(token: dict[str, Any]) -> bool:
    """Whether an added token is text that was given an id (Gemma's runs of spaces and newlines)."""
    content = token["content"]
    return not token["special"] and all(c.isspace() or c == "\u2581" for c in content)


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in a JSON value."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value or ():
        if isinstance(inner, (dict, list)):
            yield from _parts(inner)
