"""The naive model of gpt-oss's prompts: OpenAI's own renderer (``openai-harmony``) behind the template's
header.

That library decides how a message is written. Which of the reasoning a prompt still has it decides
otherwise than its guide says (decision 0014), so it is told not to, and :func:`said` leaves that
out: what an answer stands behind.
"""

from __future__ import annotations

import os
from functools import cache
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

import openai_harmony as harmony
from openai_harmony import Message, Role

from oracle import generic, vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oracle.generic import Template
    from oracle.naive import Item, Trust

_WHOLE = harmony.RenderConversationConfig(auto_drop_analysis=False)
_QUESTION: Item = {"type": "message", "role": "user", "content": "probe_question"}


@cache
def encoding() -> harmony.HarmonyEncoding:
    """The format's renderer, with the vocabulary that ``make vocab`` fetched."""
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(vocabulary.VOCABULARIES / "o200k")
    return harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def spoken(channel: str, text: str) -> Message:
    """A message of the model's."""
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)


def called(name: str, arguments: str) -> Message:
    """A call."""
    message = spoken("commentary", arguments).with_recipient(f"functions.{name}")
    return message.with_content_type("<|constrain|>json")


def returned(name: str, text: str) -> Message:
    """A tool's output."""
    author = harmony.Author.new(Role.TOOL, f"functions.{name}")
    message = Message.from_author_and_content(author, text)
    return message.with_channel("commentary").with_recipient("assistant")


def instructed(text: str) -> Message:
    """A developer's instructions."""
    content = harmony.DeveloperContent.new().with_instructions(text)
    return Message.from_role_and_content(Role.DEVELOPER, content)


def leading(items: Sequence[Item]) -> int:
    """How many of the items stand in the header."""
    instructs = takewhile(lambda item: item.get("role") in ("system", "developer"), items)
    return len(list(instructs))


def said(items: Sequence[Item]) -> list[Message]:
    """The items behind the header as harmony's messages."""
    names = {i["call_id"]: i["name"] for i in items if i.get("type") == "function_call"}
    found: list[Message] = []
    for item, following in pairwise([*items, {}]):
        kind = item.get("type", "message")
        if kind == "function_call":
            found.append(called(item["name"], item["arguments"]))
        elif kind == "function_call_output":
            found.append(returned(names[item["call_id"]], text_of(item["output"])))
        elif kind == "reasoning":
            found += [spoken("analysis", text) for text in [text_of(item["content"])] if text]
        elif item["role"] == "user":
            found.append(Message.from_role_and_content(Role.USER, text_of(item["content"])))
        elif item["role"] != "assistant":
            found.append(instructed(text_of(item["content"])))
        elif not _calls_behind(item, following):
            found.append(spoken("final", text_of(item["content"])))
        elif text := text_of(item["content"]):
            found.append(spoken("commentary", text))
    return found


def _calls_behind(item: Item, following: Item) -> bool:
    """Whether calls of the same answer follow a text: it is a preamble of them."""
    called = following.get("type") == "function_call"
    return called and item.get("_turn") == following.get("_turn")


def without_ended_reasoning(found: list[Message], *, generate: bool) -> list[Message]:
    """Reasoning that led to an answer is gone, once anything follows that."""
    followed = found if generate else found[:-1]
    answers = [index for index, message in enumerate(followed) if message.channel == "final"]
    last = max(answers, default=-1)
    return [m for index, m in enumerate(found) if index > last or m.channel != "analysis"]


def text_of(content: str | Sequence[Item]) -> str:
    """A content's text, in parts or not."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def render(messages: Sequence[Message], *, generate: bool) -> list[int]:
    """Messages as tokens. The library takes all of their text for text, as strict trust does."""
    conversation = harmony.Conversation.from_messages(list(messages))
    if generate:
        return encoding().render_conversation_for_completion(
            conversation, Role.ASSISTANT, config=_WHOLE
        )
    return encoding().render_conversation(conversation, config=_WHOLE)


def encode(
    template: Template,
    items: Sequence[Item],
    instructions: str | None = None,
    tools: Sequence[Any] | None = None,
    *,
    generate: bool = True,
    trust: Trust = "compat",
    **told: Any,
) -> list[int]:
    """The prompt's ids. Raises RefusedError where the template refuses the header."""
    front = leading(items)
    messages = without_ended_reasoning(said(items[front:]), generate=generate)
    how = {"trust": trust} | told
    ids = _header(template, items[:front], instructions, tools, how)
    ids += render(messages, generate=generate)
    if trust == "strict":
        return ids
    # Control tokens that a text spells are matched.
    known = template.vocabulary
    return known.encode_text(known.spell(ids).decode())


def _header(
    template: Template,
    items: Sequence[Item],
    instructions: str | None,
    tools: Sequence[Any] | None,
    how: dict[str, Any],
) -> list[int]:
    """What the model's template prints before the first message."""
    question = render(said([_QUESTION]), generate=False)
    asked = [*items, _QUESTION]
    ids = generic.encode(template, asked, instructions, tools, generate=False, **how)
    assert ids[-len(question) :] == question
    return ids[: -len(question)]
