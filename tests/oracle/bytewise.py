"""Vocabularies of single bytes, with a template's own markers as added tokens.

Nothing is merged, so one is built in no time, for any template; added tokens are matched in a text
as in a vocabulary of a hundred thousand words.
"""

from __future__ import annotations

import json
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from oracle.naive import byte_letters
from oracle.vocabulary import Vocabulary

_SPECIAL = r"<[|\uff5c][^<>{}'\"\s]{1,40}[|\uff5c]>|\[/?[A-Z_]{3,}\]|<(?:start|end)_of_turn>"
_TAG = r"</?(?:think|seed:[a-z_]+|tool_call|tool_response|arg_key|arg_value|minimax:tool_call)>"


def markers(template: str) -> dict[str, bool]:
    """What looks like a control token in a template's text, and whether it is a special one."""
    found = dict.fromkeys(re.findall(_SPECIAL, template), True)
    return found | dict.fromkeys(re.findall(_TAG, template), False)


def description(added: dict[str, bool]) -> dict[str, Any]:
    """A ``tokenizer.json``: NFC, GPT-2's words, bytes."""
    level: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    level["trim_offsets"] = True
    vocab = byte_letters()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": len(vocab) + place, "content": content, "special": special, **flags}
            for place, (content, special) in enumerate(added.items())
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


@cache
def vocabulary(template: str, bos: str, eos: str, *more: str) -> Vocabulary:
    """The vocabulary of a template's text, and ``more`` special tokens."""
    added = {token: True for token in (bos, eos, *more) if token} | markers(template)
    return Vocabulary.of("bytes", description(added), bos=bos, eos=eos)


def folder(known: Vocabulary, template: str) -> Path:
    """A model folder of the vocabulary and a template."""
    path = Path(_scratch().name) / str(len(list(Path(_scratch().name).iterdir())))
    path.mkdir()
    special = {t.content: t.special for t in known.tokenizer.get_added_tokens_decoder().values()}
    (path / "tokenizer.json").write_text(json.dumps(description(special)), encoding="utf-8")
    config = {"bos_token": known.bos or None, "eos_token": known.eos or None}
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    return path


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="turnwire-bytes-")
