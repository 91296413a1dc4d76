"""Text dialects for peers that cannot send ids: chat completions and the Responses API.

No tokenizer runs here, since its time would be charged to the peer: prompts count as one token per
four bytes of text, and an answer's text is spread evenly over its tokens. A tool call is said at
the end, whole.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from turnwire.engine.base import LastItem

if TYPE_CHECKING:
    from turnwire.engine.sim.script import Answer
    from turnwire.engine.sim.wire import Usage

BYTES_PER_TOKEN = 4

Item = dict[str, Any]


class ChatBody(msgspec.Struct, frozen=True):
    """A ``POST /v1/chat/completions``; what does not matter to the clock is not read."""

    messages: list[Item]
    stream: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")

    @property
    def limit(self) -> int | None:
        """Tokens that may be sampled."""
        return self.max_completion_tokens or self.max_tokens

    def sizes(self) -> tuple[int, int]:
        """Tokens of the prompt, and of its last message."""
        return _sizes(self.messages, bytes(self.tools))

    def last_item(self) -> LastItem | None:
        """Say what the conversation ends with."""
        if not self.messages:
            return None
        last = self.messages[-1]
        kind = "function_call_output" if last.get("role") == "tool" else "message"
        return LastItem(kind, text_of(last.get("content")), _called(self.messages, last))

    def voice(self, model: str, answer: Answer, tokens: int) -> ChatVoice:
        """Say ``answer`` in this dialect."""
        return ChatVoice(model, answer, tokens)


class ResponsesBody(msgspec.Struct, frozen=True):
    """A ``POST /v1/responses``, its whole history in ``input``."""

    input: str | list[Item]
    stream: bool = False
    max_output_tokens: int | None = None
    instructions: str | None = None
    tools: msgspec.Raw = msgspec.Raw(b"")

    @property
    def limit(self) -> int | None:
        """Tokens that may be sampled."""
        return self.max_output_tokens

    @property
    def items(self) -> list[Item]:
        """The input as items."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": self.input}]
        return self.input

    def sizes(self) -> tuple[int, int]:
        """Tokens of the prompt, and of its last item."""
        return _sizes(self.items, bytes(self.tools) + (self.instructions or "").encode())

    def last_item(self) -> LastItem | None:
        """Say what the conversation ends with."""
        if not self.items:
            return None
        last = self.items[-1]
        text = text_of(last.get("content", last.get("output")))
        calls = {item.get("call_id"): item.get("name", "") for item in self.items}
        return LastItem(last.get("type", "message"), text, calls.get(last.get("call_id"), ""))

    def voice(self, model: str, answer: Answer, tokens: int) -> ResponsesVoice:
        """Say ``answer`` in this dialect."""
        return ResponsesVoice(model, answer, tokens)


def text_of(content: object) -> str:
    """Return the text of a message's content, a string or parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return ""


def _sizes(items: list[Item], more: bytes) -> tuple[int, int]:
    sizes = [len(msgspec.json.encode(item)) // BYTES_PER_TOKEN for item in items]
    return sum(sizes) + len(more) // BYTES_PER_TOKEN, sizes[-1] if sizes else 0


def _called(messages: list[Item], last: Item) -> str:
    """Name the tool whose output ``last`` is."""
    for message in reversed(messages):
        for call in message.get("tool_calls") or ():
            if call.get("id") == last.get("tool_call_id"):
                return str(call.get("function", {}).get("name", ""))
    return ""


def _server_sent(event: object) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


class _Spread:
    """A text, spread evenly over so many tokens."""

    def __init__(self, text: str, tokens: int) -> None:
        self._text = text
        self._tokens = max(tokens - 1, 1)  # the last one is the stop id
        self._said = 0

    def upto(self, count: int) -> str:
        """Return what is new after ``count`` tokens."""
        end = len(self._text) * min(count, self._tokens) // self._tokens
        new, self._said = self._text[self._said : end], max(end, self._said)
        return new

    @property
    def said(self) -> str:
        return self._text[: self._said]


class ChatVoice:
    """One answer as chat completion chunks."""

    def __init__(self, model: str, answer: Answer, tokens: int) -> None:
        self._base = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": "sim",
        }
        self._text = _Spread(answer.text or "", tokens)
        self._calls = [
            {
                "id": f"call_{uuid.uuid4().hex}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_json},
            }
            for call in answer.calls
        ]

    def said(self, count: int) -> bytes:
        """Return the events that are due after ``count`` tokens."""
        text = self._text.upto(count)
        return self._chunk({"role": "assistant", "content": text}) if text else b""

    def end(self, reason: str, usage: Usage) -> bytes:
        """Return the last events."""
        events = b""
        if self._calls and reason == "stop":
            calls = [{"index": i, **call} for i, call in enumerate(self._calls)]
            events += self._chunk({"role": "assistant", "tool_calls": calls})
        events += self._chunk({}, self._reason(reason))
        counted = {"choices": [], "usage": msgspec.Raw(usage.encode())}
        return events + _server_sent({**self._head, **counted}) + b"data: [DONE]\n\n"

    def whole(self, reason: str, usage: Usage) -> bytes:
        """Return the reply to a request that does not stream."""
        message: Item = {"role": "assistant", "content": self._text.said or None}
        if self._calls and reason == "stop":
            message["tool_calls"] = self._calls
        choice = {"index": 0, "message": message, "finish_reason": self._reason(reason)}
        return msgspec.json.encode(
            {
                **self._base,
                "object": "chat.completion",
                "choices": [choice],
                "usage": msgspec.Raw(usage.encode()),
            }
        )

    @property
    def _head(self) -> Item:
        return {**self._base, "object": "chat.completion.chunk"}

    def _reason(self, reason: str) -> str:
        return "tool_calls" if self._calls and reason == "stop" else reason

    def _chunk(self, delta: Item, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return _server_sent({**self._head, "choices": [choice]})


class ResponsesVoice:
    """One answer as the Responses API's events."""

    def __init__(self, model: str, answer: Answer, tokens: int) -> None:
        self._response = {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
        }
        self._message = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant"}
        self._text = _Spread(answer.text or "", tokens)
        self._calls = [
            {
                "id": f"fc_{uuid.uuid4().hex}",
                "type": "function_call",
                "call_id": f"call_{uuid.uuid4().hex}",
                "name": call.name,
                "arguments": call.arguments_json,
                "status": "completed",
            }
            for call in answer.calls
        ]
        self._number = 0
        self._began = self._opened = False

    def said(self, count: int) -> bytes:
        """Return the events that are due after ``count`` tokens."""
        events, text = self._begin(), self._text.upto(count)
        if text and not self._opened:
            self._opened = True
            item = {**self._message, "status": "in_progress", "content": []}
            events += self._event("response.output_item.added", output_index=0, item=item)
            events += self._part_event("response.content_part.added", part=_part(""))
        if text:
            events += self._part_event("response.output_text.delta", delta=text)
        return events

    def end(self, reason: str, usage: Usage) -> bytes:
        """Return the last events."""
        events = self._begin()
        output = self._output(reason)
        if self._opened:
            text = self._text.said
            events += self._part_event("response.output_text.done", text=text)
            events += self._part_event("response.content_part.done", part=_part(text))
        for index, item in enumerate(output):
            if item["type"] == "function_call":
                begun = {**item, "arguments": "", "status": "in_progress"}
                events += self._event("response.output_item.added", output_index=index, item=begun)
                where = {"output_index": index, "item_id": item["id"]}
                arguments = item["arguments"]
                kind = "response.function_call_arguments"
                events += self._event(f"{kind}.delta", **where, delta=arguments)
                events += self._event(f"{kind}.done", **where, arguments=arguments)
            events += self._event("response.output_item.done", output_index=index, item=item)
        kind = "incomplete" if reason == "length" else "completed"
        return events + self._event(f"response.{kind}", response=self._final(reason, usage))

    def whole(self, reason: str, usage: Usage) -> bytes:
        """Return the reply to a request that does not stream."""
        return msgspec.json.encode(self._final(reason, usage))

    def _begin(self) -> bytes:
        if self._began:
            return b""
        self._began = True
        response = {**self._response, "status": "in_progress", "output": []}
        created = self._event("response.created", response=response)
        return created + self._event("response.in_progress", response=response)

    def _output(self, reason: str) -> list[Item]:
        text = self._text.said
        message = {**self._message, "status": "completed", "content": [_part(text)]}
        calls: list[Item] = self._calls if reason == "stop" else []
        return [*([message] if text else []), *calls]

    def _final(self, reason: str, usage: Usage) -> Item:
        cut = reason == "length"
        return {
            **self._response,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._output(reason),
            "usage": {
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached},
                "output_tokens": usage.completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt + usage.completion,
            },
        }

    def _part_event(self, kind: str, **fields: object) -> bytes:
        where = {"item_id": self._message["id"], "output_index": 0, "content_index": 0}
        return self._event(kind, **where, **fields)

    def _event(self, kind: str, **fields: object) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %s\n" % kind.encode() + _server_sent(event)


def _part(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
