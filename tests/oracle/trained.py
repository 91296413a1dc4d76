"""Vocabularies of families whose own could not be had: trained here, with the family's controls.

A byte-level BPE over a few texts, so its merges are no model's. Its added tokens are those that the
family's templates print, with the flags that such tokens have: those of reasoning and calls are
matched in texts and are not special.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from oracle.conversations import PLAIN

_SIZE = 3000
_WORDS = r"'(?:ll|re|ve|[dmst])| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_HAN = r"\p{Han}+|"


def _both(*names: str) -> tuple[str, ...]:
    return tuple(tag for name in names for tag in (f"<{name}>", f"</{name}>"))


_TOKENS = {
    # The words, the special tokens, and those that are not.
    "glm": (
        _WORDS,
        (
            *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"),
            *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        ),
        (*_both("think", "tool_call", "tool_response", "arg_key", "arg_value"), "/nothink"),
    ),
    "kimi": (
        _HAN + _WORDS,
        (
            *("[BOS]", "[EOS]", "[EOT]", "[PAD]", "[UNK]"),
            *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"),
            *("<|media_start|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"),
        ),
        (
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
            *_both("think"),
        ),
    ),
    "kimi-k3": (
        _HAN + _WORDS,
        (
            *("[BOS]", "[EOS]", "[EOT]", "[PAD]", "[UNK]"),
            *("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "<|kimi_image_placeholder|>"),
        ),
        (),
    ),
    "minimax": (
        _WORDS,
        ("]<]minimax[>[", "]~!b[", "]~b]", "[e~["),
        _both("mm:think"),
    ),
}
_ENDS = {"glm": "<|endoftext|>", "kimi": "[EOS]", "kimi-k3": "[EOS]", "minimax": "[e~["}

NAMES = tuple(_TOKENS)


@cache
def folder(name: str) -> Path:
    """A folder with the ``tokenizer.json`` and ``tokenizer_config.json`` of a family."""
    path = Path(_scratch().name) / name
    path.mkdir()
    _trained(name).save(str(path / "tokenizer.json"))
    config = {"bos_token": None, "eos_token": _ENDS[name]}
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="turnwire-vocabularies-")


def _trained(name: str) -> Tokenizer:
    words, special, plain = _TOKENS[name]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*PLAIN * 3, *map(inspect.getsource, (inspect, json))], trainer)
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])
    return tokenizer
