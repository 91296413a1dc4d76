"""Prompts against ``renderers``, a package in which RL trainers print by hand what templates do.

``make vllm-oracle`` runs this. That package encodes what a model says apart from what stands
before it, so a text that begins in white space may come in other tokens; such prompts must be the
same text with the same added tokens, and are counted.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from oracle import generic, naive, templates, vocabulary
from oracle.comparing import RefusedError, compare
from oracle.generic import Template
from oracle.partings import CALLS, FIRST, OBJECTS, SPELLED, SYSTEMS, THINKS, UNASKED
from oracle.vllm import ORACLES
from talking import profile_of

if TYPE_CHECKING:
    from oracle.asked import Asked
    from oracle.partings import Partings
    from oracle.vocabulary import Vocabulary

pytestmark = [pytest.mark.oracles, pytest.mark.timeout(3000)]

VERSION = "0.1.12"


@dataclass(frozen=True)
class Model:
    """A model as the package knows it."""

    module: str
    renderer: str
    vocabulary: str
    template: str
    partings: tuple[Partings, ...] = (OBJECTS,)


MODELS = {
    "Qwen 3": Model(
        "qwen3",
        "Qwen3Renderer",
        "qwen3",
        "llama.cpp/Qwen-Qwen3-0.6B",
        partings=(THINKS,),
    ),
    "Qwen 3.6": Model(
        "qwen36", "Qwen36Renderer", "qwen3", "trl/qwen3_6", partings=(OBJECTS, UNASKED, THINKS)
    ),
    "Qwen 3.8": Model("qwen38", "Qwen38Renderer", "qwen3", "trl/qwen3_8"),
    "Llama 3.1": Model(
        "llama_3",
        "Llama3Renderer",
        "llama3.1-named",
        "llama.cpp/meta-llama-Llama-3.1-8B-Instruct",
        partings=(OBJECTS, SPELLED, FIRST, SYSTEMS),
    ),
    "GLM 4.5": Model(
        "glm45", "GLM45Renderer", "glm", "trl/glm4moe", partings=(OBJECTS, CALLS, THINKS)
    ),
}


class Tokenizer:
    """What the package asks of a tokenizer, over Hugging Face's."""

    unk_token_id = None

    def __init__(self, known: Vocabulary, template: Template) -> None:
        self._known = known
        self._template = template
        self.chat_template = template.text
        self.name_or_path = template.name
        self.bos_token, self.eos_token = known.bos, known.eos
        self.eos_token_id = known.tokenizer.token_to_id(known.eos)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._known.tokenizer.token_to_id(token)

    def encode(self, text: str, **_: Any) -> list[int]:
        return self._known.encode_text(text)

    def decode(self, ids: list[int], **_: Any) -> str:
        return self._known.spell(ids).decode(errors="replace")

    def apply_chat_template(self, chat: list[Any], *, tools: Any = None, **how: Any) -> Any:
        text = self._template.render(
            chat,
            tools,
            generate=how.get("add_generation_prompt", False),
            thinking=how.get("enable_thinking"),
        )
        return self.encode(text) if how.get("tokenize", True) else text


def renderer_of(model: Model, template: Template) -> Any:
    folder = ORACLES / "renderers"
    if not (folder / "renderers").exists():
        raise FileNotFoundError(f"{folder} is missing: run `make oracles` (tests do not skip)")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # behind everything: what is installed here is used
    module = importlib.import_module(f"renderers.{model.module}")
    return getattr(module, model.renderer)(Tokenizer(template.vocabulary, template))


@pytest.mark.filterwarnings("default")  # theirs are not ours
@pytest.mark.parametrize("name", MODELS)
def test_prompts_are_those_of_renderers(name):
    model = MODELS[name]
    known = vocabulary.generic(model.vocabulary)
    template = Template(model.template, templates.text_of(model.template), known)
    renderer = renderer_of(model, template)
    otherwise = 0

    def theirs(asked: Asked) -> list[int]:
        chat = generic._placed(
            generic._identified(asked.chat, asked.items, template.ways), template.ways
        )
        definitions = naive.tool_definitions(asked.tools)
        try:
            return renderer.render_ids(chat, tools=definitions, add_generation_prompt=True)
        except Exception as error:  # it raises what the template would, and whatever Python does
            raise RefusedError(repr(error)) from error

    def seen_as(_: Asked, found: list[int], other: list[int]) -> tuple[list[int], list[int]]:
        nonlocal otherwise
        same = known.spell(found) == known.spell(other)
        if found != other and same and known.skeleton(found) == known.skeleton(other):
            otherwise += 1
            return other, other
        return found, other

    compare(
        name,
        f"renderers {VERSION}",
        template,
        profile_of(template, "compat"),
        theirs,
        partings=model.partings,
        seen_as=seen_as,
    )
    print(f"Of all asked, {otherwise:,} are the same text in other tokens.")
