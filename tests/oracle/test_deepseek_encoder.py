"""DeepSeek V4's prompts against the encoder in Python that DeepSeek publishes, as vLLM ships it.

``make vllm-oracle`` runs this. Where the encoder and llama.cpp's template part is in
``oracle.partings``; the template is what turnwire follows.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from oracle import generic, naive, templates
from oracle.comparing import RefusedError, compare
from oracle.partings import DEEPSEEK
from oracle.vllm import ORACLES, VERSION
from talking import profile_of

if TYPE_CHECKING:
    from types import ModuleType

    from oracle.asked import Asked

pytestmark = [pytest.mark.oracles, pytest.mark.timeout(3000)]

TEMPLATE = "llama.cpp/deepseek-ai-DeepSeek-V4"


@cache
def encoder() -> ModuleType:
    path = ORACLES / "vllm-encoders" / "deepseek_v4_encoding.py"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: run `make oracles` (tests do not skip)")
    spec = importlib.util.spec_from_file_location("deepseek_v4_encoding", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def encoded(asked: Asked) -> str:
    """The prompt; tools belong to the first system message, as in vLLM."""
    chat: list[dict[str, Any]] = generic._identified(
        asked.chat, asked.items, templates.template(TEMPLATE).ways
    )
    if definitions := naive.tool_definitions(asked.tools):
        if asked.roles[:1] != ["system"]:
            chat.insert(0, {"role": "system", "content": ""})
        chat[0]["tools"] = definitions
    for message in chat:
        if "reasoning_content" in message:  # vLLM's name for it
            message["reasoning"] = message.pop("reasoning_content")
    mode = "thinking" if asked.thinking else "chat"
    try:
        return encoder().encode_messages(chat, thinking_mode=mode)
    except Exception as error:  # it checks little, and raises what Python does
        raise RefusedError(repr(error)) from error


def test_prompts_are_deepseeks_encoders():
    template = templates.template(TEMPLATE)
    compare(
        "DeepSeek V4",
        f"DeepSeek's encoder in vLLM {VERSION}",
        template,
        profile_of(template, "compat"),
        lambda asked: template.vocabulary.encode_text(encoded(asked)),
        partings=(DEEPSEEK,),
        effort=lambda asked: "medium" if asked.thinking else "none",
    )
