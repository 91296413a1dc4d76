"""Mistral's tekken files as a ``tokenizer.json``.

A tekken file lists bytes by rank, as tiktoken's do, and a regular expression. The conversion is
that of transformers' ``TikTokenConverter``: a token's merges are all the ways to cut it into two
tokens, in the order of its rank; what is a token as a whole is not merged (``ignore_merges``).
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from oracle.naive import byte_letters

if TYPE_CHECKING:
    from pathlib import Path

# mistral-common's DEPRECATED_SPECIAL_TOKENS: what a file without a list of its own has.
_SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)


def convert(path: Path) -> dict[str, Any]:
    """The description that ``tokenizers`` reads, of a tekken file."""
    file = json.loads(path.read_text(encoding="utf-8"))
    config = file["config"]
    specials = special_tokens(file)
    kept = config["default_vocab_size"] - len(specials)
    ranks = {
        base64.b64decode(token["token_bytes"]): token["rank"] for token in file["vocab"][:kept]
    }
    letters = {byte: letter for letter, byte in byte_letters().items()}

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        halves = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        both = [pair for pair in halves if pair[0] in ranks and pair[1] in ranks]
        both.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [[spelled(left), spelled(right)] for left, right in both]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = {"type": "Split", "pattern": {"Regex": config["pattern"]}, "behavior": "Isolated"}
    added = [_added(token_id, token) for token_id, token in enumerate(specials)]
    # `tokenizers` gives an added token the id that the model has for it, or else the next free one.
    vocabulary = {token: token_id for token_id, token in enumerate(specials)}
    vocabulary |= {spelled(token): rank + len(specials) for token, rank in ranks.items()}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split | {"invert": False}, byte_level | {"use_regex": False}],
        },
        "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def special_tokens(file: dict[str, Any]) -> list[str]:
    """The special tokens by id; those without a name are ``<SPECIAL_20>`` and so on."""
    count = file["config"]["default_num_special_tokens"]
    named = [token["token_str"] for token in file.get("special_tokens") or ()] or list(_SPECIALS)
    return named + [f"<SPECIAL_{token_id}>" for token_id in range(len(named), count)]


def _added(token_id: int, token: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": token, **flags, "special": True}
