"""Prompts against vLLM's own renderer (``oracle.vllm``), id for id, under compat trust.

``make vllm-oracle`` runs this; the test suite does not. A conversation is equal, or it has one of
the properties that the two are known to part on (``oracle.partings``). Conversations are random, by
seeds, and come whole or in turns; ``ORACLE_CONVERSATIONS`` says how many of a model must be equal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

import pytest

from oracle import templates, vllm, vocabulary
from oracle.comparing import compare
from oracle.generic import Template
from oracle.partings import COMMON, CONTROLS, DEEPSEEK, EMPTY, HARMONY, SPELLED, WRITTEN
from talking import profile_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oracle.asked import Asked
    from oracle.naive import Trust
    from oracle.partings import Partings
    from oracle.vocabulary import Vocabulary

pytestmark = [pytest.mark.oracles, pytest.mark.timeout(3000)]


@dataclass(frozen=True)
class Model:
    """A model as vLLM serves it."""

    template: str
    vocabulary: str
    model_type: str
    parser: str
    native: bool = False
    partings: tuple[Partings, ...] = (COMMON,)
    thinks: bool = False
    effort: str | None = None
    """Ours, for a model that thinks."""
    told: tuple[tuple[str, Any], ...] = ()
    """vLLM's for that."""
    trust: Trust = "compat"
    plain: bool = False
    """Most texts spell nothing that has a meaning."""
    harmony: bool = False
    """Its prompts are compared as :func:`harmonised` leaves them."""

    def effort_of(self, asked: Asked) -> str | None:
        """What turnwire is asked for."""
        if not self.thinks:
            return None
        return self.effort if asked.thinking else "none"

    def told_of(self, asked: Asked) -> dict[str, Any]:
        """What vLLM is told to the same end."""
        if not self.thinks:
            return {}
        told = {"enable_thinking": asked.thinking, "thinking": asked.thinking}
        return told | (dict(self.told) if asked.thinking else {})

    @property
    def used(self) -> Template:
        text = templates.text_of(self.template)
        return Template(self.template, text, vocabulary.generic(self.vocabulary))


MODELS = {
    "Qwen 3": Model(
        "llama.cpp/Qwen-Qwen3-0.6B",
        "qwen3",
        "qwen3",
        "hermes",
        partings=(COMMON, SPELLED, EMPTY),
        thinks=True,
    ),
    "Qwen 2.5": Model(
        "llama.cpp/Qwen-Qwen2.5-7B-Instruct", "qwen3", "qwen2", "hermes", partings=(COMMON, SPELLED)
    ),
    "Qwen 3-Coder": Model("llama.cpp/Qwen3-Coder", "qwen3", "qwen3_moe", "qwen3_coder"),
    "Qwen 3.6": Model(
        "trl/qwen3_6", "qwen3", "qwen3_5", "qwen3_coder", partings=(COMMON, EMPTY), thinks=True
    ),
    "Qwen 3.8": Model(
        "trl/qwen3_8", "qwen3", "qwen3_5", "qwen3_coder", partings=(WRITTEN,), thinks=True
    ),
    "Devstral": Model(
        "llama.cpp/unsloth-mistral-Devstral-Small-2507",
        "tekken-v13",
        "mistral",
        "mistral",
        partings=(COMMON, SPELLED),
    ),
    "GLM 4.6": Model(
        "llama.cpp/GLM-4.6", "glm", "glm4_moe", "glm45", partings=(COMMON, EMPTY), thinks=True
    ),
    "Llama 3.1": Model(
        "llama.cpp/meta-llama-Llama-3.1-8B-Instruct", "llama3.1-named", "llama", "llama3_json"
    ),
    "gpt-oss": Model(
        "llama.cpp/openai-gpt-oss-120b",
        "gpt-oss",
        "gpt_oss",
        "auto",
        native=True,
        partings=(HARMONY, CONTROLS),
        plain=True,
        harmony=True,
    ),
    "gpt-oss, strict": Model(
        "llama.cpp/openai-gpt-oss-120b",
        "gpt-oss",
        "gpt_oss",
        "auto",
        native=True,
        partings=(HARMONY,),
        trust="strict",
        harmony=True,
    ),
    "DeepSeek V4": Model(
        "llama.cpp/deepseek-ai-DeepSeek-V4",
        "deepseek-v4",
        "deepseek_v4",
        "deepseek_v4",
        native=True,
        partings=(COMMON, DEEPSEEK),
        thinks=True,
        effort="medium",
        told=(("reasoning_effort", "low"),),
    ),
}


def harmonised(asked: Asked, ids: list[int], developers: int, known: Vocabulary) -> list[int]:
    """A prompt of gpt-oss without the developer's messages in its header, so many, which are the
    template's to say, and with recipients where OpenAI's library has them: before the channel."""
    start, channel, end = (known.controls[f"<|{name}|>"] for name in ("start", "channel", "end"))
    inside = {known.controls["<|constrain|>"], known.controls["<|message|>"]}
    closed = [place for place, token_id in enumerate(ids) if token_id == end]
    found = ids[: closed[0]]
    ids = ids[closed[developers] :]
    for message in _split(ids, start):
        ends = next((i for i, token_id in enumerate(message) if token_id in inside), 0)
        spelled = known.spell(message[:ends]).decode(errors="replace")
        if parts := re.fullmatch(r"<\|start\|>(.+)<\|channel\|>(\w+)( to=\S+)( ?)", spelled):
            author, into, recipient, blank = parts.groups()
            head = known.encode_run(author + recipient, first=False)
            message[:ends] = [start, *head, channel, *known.encode_run(into + blank, first=False)]
        found += message
    return found


def harmonised_both(
    known: Vocabulary, asked: Asked, found: list[int], theirs: list[int]
) -> tuple[list[int], list[int]]:
    """Ours has one message of the developer's in its header, theirs one for each that came."""
    leading = len(list(takewhile(lambda role: role == "system", asked.roles)))
    heads = bool(leading or asked.tools), max(leading, bool(asked.tools))
    ours, other = (
        harmonised(asked, ids, int(head), known)
        for ids, head in zip((found, theirs), heads, strict=True)
    )
    return ours, other


def _split(ids: list[int], start: int) -> Iterator[list[int]]:
    """Pieces that begin at a token each, but for the first."""
    at = [0, *(i for i, token_id in enumerate(ids) if token_id == start and i), len(ids)]
    return (ids[a:b] for a, b in pairwise(at))


@pytest.mark.parametrize("name", MODELS)
def test_prompts_are_vllms(name):
    model = MODELS[name]
    template = model.used
    with vllm.Renderer(template, model.model_type, model.parser, native=model.native) as renderer:

        def theirs(asked: Asked) -> list[int]:
            how = model.told_of(asked)
            return renderer.encode(asked.items, asked.instructions, asked.tools, **how)

        how: dict[str, Any] = {"effort": model.effort_of, "plain": model.plain}
        if model.harmony:
            how["seen_as"] = partial(harmonised_both, template.vocabulary)
        compare(
            name,
            f"vllm-rs {vllm.VERSION}",
            template,
            profile_of(template, model.trust),
            theirs,
            partings=model.partings,
            **how,
        )
