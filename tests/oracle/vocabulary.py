"""The models of the tests, read by other people's code from the files that ``make vocab`` fetched.

``gguf`` reads the GGUF and ``tokenizers`` is put together from its tokens and merges, so nothing of
turnwire's own loaders is believed.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from oracle import naive
from oracle.naive import Model

VOCABULARIES = Path(__file__).parents[2] / ".cache" / "vocab"

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
