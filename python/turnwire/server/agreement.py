"""Do the engine and the profile mean the same ids? Asked once, when an engine is attached (law 8).

A tokenizer or a template that is almost right is worse than none: every prompt would be a little
wrong, and nothing would say so. So where the engine can encode text or render messages itself, it
is asked, and one difference ends the start.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from turnwire.engine.base import TemplateRenderer, TextEncoder
from turnwire.errors import EngineError, ProfileError, RequestError, StartupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnwire._core import Profile
    from turnwire.engine.base import Engine

log = logging.getLogger(__name__)

PROBES = (
    "Hello, world! It's what they'd've said: I'll, we're, don't.",
    "a  b   c\td\u00a0e\u3000f",
    "line\n\nline\r\nline \n  indented\n\t\ttabs\n",
    "1 22 333 4444 3.14159 1,000,000 0x1F 7th",
    "x = {'key': [1, 2.5, None]};  if (a != b) { return a->c; }",
    "naïve café Ångström Straße œuvre",
    "日本語のテキスト、한국어 텍스트\uff0c中文文本。",
    "שלום مرحبا नमस्ते สวัสดี",
    "e\u0301 vs \u00e9; \ufb01 ligature; Ⅷ ½ ²",
    "👩‍👩‍👧‍👦 🇫🇷 👍🏽 😀😀",
    "https://example.com/path?q=1&r=2#frag <b>bold</b> &amp;",
    "snake_case camelCase kebab-case SCREAMING_CASE i18n",
    " leading and trailing ",
    "\n",
    "....!!!???----====####",
    "﷽ \u200b\u200d\ufeff \u2028\u2029",
)
"""What tokenizers differ over: white space, digits, contractions, marks, scripts, code."""

CONTROL = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
"""Text in which both sides read the control tokens."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The same words as a request's items and as chat messages."""

    name: str
    items: tuple[dict[str, Any], ...]
    messages: tuple[dict[str, Any], ...]

    @staticmethod
    def of(name: str, *said: tuple[str, str]) -> Conversation:
        """Make one of (role, text) pairs."""
        messages = tuple({"role": role, "content": text} for role, text in said)
        items = tuple(
            {"type": "message", "role": role, "content": [_part(role, text)]} for role, text in said
        )
        return Conversation(name, items, messages)


def _part(role: str, text: str) -> dict[str, str]:
    return {"type": "output_text" if role == "assistant" else "input_text", "text": text}


ASKED = ("user", "What is in  the folder?\n\nTwo lines, 12 345 characters.")

CONVERSATIONS = (
    Conversation.of("a question", ASKED),
    Conversation.of("a system message and a question", ("system", "Answer briefly."), ASKED),
    Conversation.of(
        "two turns",
        ("system", "Answer briefly."),
        ASKED,
        ("assistant", "A café, naïve: 日本語."),
        ("user", "And then?"),
    ),
)
"""What is rendered by both. Tools are left out: engines add fields of their own to definitions."""

CALL = Conversation(
    "a tool call and its output",
    (
        {"type": "message", "role": "user", "content": "How warm is it?"},
        {
            "type": "function_call",
            "call_id": "call_123456789",
            "name": "weather",
            "arguments": '{"city": "Rome"}',
        },
        {"type": "function_call_output", "call_id": "call_123456789", "output": "It is 21."},
    ),
    (
        {"role": "user", "content": "How warm is it?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "call_123456789",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_123456789", "content": "It is 21."},
    ),
)

NOT_CALLED = tuple(
    {name: value for name, value in message.items() if name != "tool_calls"}
    for message in CALL.messages
)
"""The same without the call: a template that prints no calls renders both alike."""

OWN_CALLS = frozenset({"harmony"})
"""Families whose calls are meant to differ from what the template prints (0014)."""

AROUND = 12
"""Tokens that are shown on either side of a difference."""

PromptOf: TypeAlias = "Callable[[bytes], list[int]]"


async def check_agreement(engine: Engine, profile: Profile, prompt_of: PromptOf) -> list[str]:
    """Compare the engine's own tokenizer and template with ours; return what was found equal.

    ``prompt_of`` renders a request's items (JSON) as the profile does. Raises ProfileError at the
    first difference, and StartupError when the engine does not answer.
    """
    return [
        *await check_tokenizers(engine, profile),
        *await check_templates(engine, profile, prompt_of),
    ]


async def check_tokenizers(engine: Engine, profile: Profile) -> list[str]:
    """Compare the engine's own ids with the profile's, where it can encode text.

    Raises ProfileError, with the first text that they encode differently, and StartupError when
    the engine does not answer.
    """
    if not isinstance(engine, TextEncoder):
        return []
    for text, control in [*((probe, False) for probe in PROBES), (CONTROL, True)]:
        ours = profile.encode(text, control=control).tolist()
        try:
            theirs = list(await engine.tokenize(text, special=control))
        except EngineError as error:
            raise StartupError(f"The engine cannot encode text: {error}") from error
        if ours != theirs:
            raise ProfileError(
                f"'{profile.name}' cannot be served: the engine encodes {text!r} as {theirs}, and "
                f"the tokenizer as {ours}. Is it the one of this model?"
            )
    log.info("the engine's tokenizer agrees on %d texts", len(PROBES) + 1)
    return [f"its tokenizer, on {len(PROBES) + 1} texts"]


async def check_templates(engine: Engine, profile: Profile, prompt_of: PromptOf) -> list[str]:
    """Compare the engine's own rendering of conversations with ours, where it can render.

    What one of the two refuses to render is not compared, and said. Raises ProfileError with the
    first token that differs.
    """
    if not isinstance(engine, TemplateRenderer):
        return []
    agreed = []
    conversations = CONVERSATIONS if profile.family in OWN_CALLS else (*CONVERSATIONS, CALL)
    for conversation in conversations:
        try:
            theirs = list(await engine.render(conversation.messages, ()))
            if conversation is CALL and theirs == list(await engine.render(NOT_CALLED, ())):
                continue  # without a place for calls in the template, they are text of our own
            ours = prompt_of(msgspec.json.encode(conversation.items))
        except (EngineError, RequestError) as error:
            log.warning("%s cannot be compared: %s", conversation.name, error.message)
            continue
        if ours != theirs:
            raise ProfileError(_difference(profile, conversation.name, ours, theirs))
        agreed.append(conversation.name)
    log.info("the engine's template agrees on %d conversations", len(agreed))
    return [f"its template, on {name}" for name in agreed]


def _difference(profile: Profile, name: str, ours: list[int], theirs: list[int]) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    before = profile.decode(ours[max(at - AROUND, 0) : at])
    return (
        f"'{profile.name}' cannot be served: for {name} the engine's own template gives "
        f"{len(theirs)} tokens and ours {len(ours)}. They differ at token {at}, after {before!r}: "
        f"the engine has {_shown(profile, theirs, at)}, ours {_shown(profile, ours, at)}. Does the "
        "engine serve this model with this chat template?"
    )


def _shown(profile: Profile, ids: list[int], at: int) -> str:
    if at >= len(ids):
        return "nothing more"
    known = [token for token in ids[at : at + AROUND] if token < profile.vocab_size]
    return f"{ids[at]} ({profile.decode(known)!r})"
