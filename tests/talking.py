"""Conversations through the wall on the generic path, with the oracle's idea of every prompt.

A vocabulary costs seconds to load, so each is loaded once and shared by its templates.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from itertools import takewhile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from counting import Compared
from oracle import generic, harmony, templates, vocabulary
from oracle.generic import NOW, RefusedError
from oracle.growing import Growing
from turnwire import _core
from turnwire.errors import InvalidValueError, UnsupportedParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oracle.generic import Template
    from oracle.growing import Step
    from oracle.vocabulary import Vocabulary

ASK = ({"type": "message", "role": "user", "content": "x"},)
_PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="turnwire-profiles-")


@cache
def base(name: str) -> _core.Profile:
    """A vocabulary under a template that nobody needs."""
    files = vocabulary.generic_path(name)
    folder = Path(_scratch().name) / name
    folder.mkdir()
    (folder / "tokenizer.json").symlink_to(files / "tokenizer.json")
    config = json.loads((files / "tokenizer_config.json").read_text(encoding="utf-8"))
    config = {key: config.get(key) for key in ("bos_token", "eos_token")}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(_PLAIN, encoding="utf-8")
    return _core.Profile.load(str(folder), trust="strict", verdicts=str(folder.parent))


def through_template(template: str) -> str:
    """The same template but for one probe: enough for no native renderer to print the same."""
    probe = "tools and tools[0].function.name == 'read_file' and tools[-1].function.name == 'ls'"
    return template + "{% if add_generation_prompt and " + probe + " %}?{% endif %}"


@cache
def _under(name: str, template: str, trust: Any, history: Any) -> _core.Profile:
    return base(name).with_template(template, trust=trust, history=history)


def profile_of(template: Template, trust: str) -> _core.Profile:
    """A template's profile; one that keeps reasoning, where the template is switched to that."""
    history = "retain" if template.switches else "template"
    return _under(template.vocabulary.name, template.text, trust, history)


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


def common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many ids, or letters, two prompts begin with alike."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@cache
def _rests(template: Template, trust: str) -> bool:
    """Whether the model can be asked not to reason."""
    try:
        _core.Chains(profile_of(template, trust)).open(None, raw(ASK), effort="none").abort()
    except UnsupportedParameterError:
        return False
    return True


class Talk:
    """One conversation, through the wall and as a list of items for the oracle.

    With an ``effort``, ``told`` is what the template is told for it.
    """

    def __init__(
        self,
        template: Template,
        trust: str,
        seed: object,
        *,
        plain: bool = False,
        effort: str | None = None,
        told: Mapping[str, Any] | None = None,
    ) -> None:
        self.template = template
        self.known = template.vocabulary
        self.trust: Any = trust
        self.profile = profile_of(template, trust)
        self.chains = _core.Chains(self.profile)
        self.random = Random(f"{template.name} {trust} {seed}")
        self.growing = self.grow(plain=plain)
        self.node: _core.Node | None = None
        self.items: list[Any] = []
        self.opens = 0
        self.turns = 0
        self.thinking = self.random.random() < 0.7 or not _rests(template, trust)
        self.effort, self.told = effort, told or {}
        self.instructions: str | None = None
        self.tools: list[Any] = []
        by_openai = self.profile.family == "harmony"
        self._compared = Compared(
            "openai-harmony" if by_openai else "jinja2 and tokenizers", self.profile.family
        )
        self.head()

    def grow(self, *, plain: bool) -> Growing:
        """Steps for this conversation."""
        native = self.profile.family != "generic"
        return Growing(
            self.random,
            self.known,
            plain=plain,
            # A native renderer keeps a client's spelling, where its template prints an object.
            dumped=native and not self.template.ways.text_arguments,
            calls=self.template.name not in templates.KNOWN_DIFFERENCES,
        )

    def head(self) -> None:
        """Draws instructions and tools that the template takes."""
        for _ in range(8):
            self.instructions, self.tools = self.growing.instructions(), self.growing.tools()
            if self.expected(() if self.items else ASK) is not None:
                return
        self.instructions, self.tools = None, []

    def expected(self, new: Sequence[Any], *, generate: bool = True) -> list[int] | None:
        """The oracle's prompt; None when the template refuses the conversation."""
        # OpenAI's own renderer is the reference for gpt-oss, behind the header.
        oracle = harmony if self.profile.family == "harmony" else generic
        try:
            return oracle.encode(
                self.template,
                [*self.items, *new],
                self.instructions,
                self.tools,
                generate=generate,
                trust=self.trust,
                **(self.told if self.thinking else {"thinking": False}),
            )
        except RefusedError:
            return None

    def open(self, new: Sequence[Any], *, generate: bool = True) -> _core.Turn:
        """A turn that the template takes."""
        try:
            return self._open(new, generate=generate)
        except InvalidValueError as error:
            self.differ(f"the core refuses {json.dumps(list(new))}: {error.message}")

    def _open(self, new: Sequence[Any], *, generate: bool) -> _core.Turn:
        self.opens += 1
        return self.chains.open(
            self.node,
            raw(list(new)),
            instructions=raw(self.instructions),
            tools=raw(self.tools),
            effort=self.effort if self.thinking else "none",
            generate=generate,
            now=NOW,
        )

    def refused(self, new: Sequence[Any], *, generate: bool = True) -> None:
        """A turn that the template refuses is refused by the wall."""
        try:
            turn = self._open(new, generate=generate)
        except InvalidValueError as error:
            assert error.param == "input"
            return
        text = self.spell(turn.prompt.tolist())
        self.differ(f"the core takes {json.dumps(list(new))} and prints\n  {text[-400:]!r}")

    def step(self) -> Step:
        """A next step that the template takes, if one is found; what it does not take, the wall
        refuses."""
        for attempt in range(12):
            step = self.growing.any()
            if self.expected(step.items) is not None:
                return step
            if attempt < 2:
                self.refused(step.items)
        return self.growing.user()

    def warm(self, new: Sequence[Any]) -> None:
        """Adds items and samples nothing."""
        turn = self.open(new, generate=False)
        assert turn.finish() == []
        self._commit(turn)
        self.items += new

    def answer(self, turn: _core.Turn, new: Sequence[Any], ids: Sequence[int]) -> None:
        """Samples ids in a turn that was opened with ``new``, and remembers both."""
        deltas = turn.push(ids) + turn.finish()
        self._commit(turn)
        self.turns += 1
        self.items += [*new, *({**item, "_turn": self.turns} for item in items_of(deltas))]

    def _commit(self, turn: _core.Turn) -> None:
        """Every fourth time the canary looks at it: what is right is no alarm."""
        self.node = turn.commit()
        if self.opens % 4 == 0:
            self.chains.verify(self.node)

    def saying(self, ids: Sequence[int]) -> list[int]:
        """Ids as an answer that ends well, in the model's format."""
        head = "<|channel|>final<|message|>" if self.profile.family == "harmony" else ""
        return [*self.known.encode_text(head), *ids, min(self.profile.stop_token_ids)]

    def same(self, found: Sequence[int], expected: Sequence[int] | None) -> None:
        """Equal ids, or a message that shows where they part."""
        self._compared()
        found, expected = list(found), list(expected or ())
        if found == expected:
            return
        at = common(found, expected)
        before, after = slice(max(0, at - 20), at), slice(at, at + 12)
        self.differ(
            f"ids part at {at} of {len(found)} and {len(expected)}, behind "
            f"{self.spell(expected[before])!r}\n"
            f"  core:   {found[after]} {self.spell(found[after])!r}\n"
            f"  oracle: {expected[after]} {self.spell(expected[after])!r}"
        )

    def reads_as(self, found: Sequence[int], expected: Sequence[int] | None) -> None:
        """The same text and controls, or a message that shows where they part."""
        self._compared()
        ours, theirs = self.spell(found), self.spell(expected or ())
        if ours != theirs:
            at = common(ours, theirs)
            around = slice(max(0, at - 80), at + 60)
            self.differ(
                f"texts part at {at}\n  core:   {ours[around]!r}\n  oracle: {theirs[around]!r}"
            )
        controls, wanted = map(self.known.skeleton, (found, expected or ()))
        if controls != wanted:
            at = common(controls, wanted)
            self.differ(
                f"controls part behind {controls[:at][-6:]}\n"
                f"  core:   {controls[at : at + 6]}\n  oracle: {wanted[at : at + 6]}"
            )

    def spell(self, ids: Sequence[int]) -> str:
        return self.known.spell(ids).decode(errors="replace")

    def differ(self, how: str) -> NoReturn:
        pytest.fail(
            f"{self.template.name} with {self.known.name} under {self.trust}, "
            f"open {self.opens}: {how}\n  instructions: {self.instructions!r}\n"
            f"  tools: {json.dumps(self.tools)}\n  last items: {json.dumps(self.items[-4:])}",
            pytrace=False,
        )


def said(known: Vocabulary, text: str) -> list[int]:
    """A text's ids as a model samples them: not as the beginning of a prompt."""
    newline = known.encode_run("\n", first=False)
    whole = known.encode_run("\n" + text, first=False)
    if whole[: len(newline)] == newline:
        return whole[len(newline) :]
    return known.encode_run(text, first=False)


def sampled(talk: Talk, text: str) -> list[int]:
    """The ids of what a model says: controls as controls."""
    ids: list[int] = []
    for piece in talk.known.split(text):
        control = talk.known.controls.get(piece)
        ids += said(talk.known, piece) if control is None else [control]
    return ids


def spelled_otherwise(talk: Talk, ids: list[int]) -> list[int]:
    """The same bytes, one token in three spelled by smaller ones."""
    found: list[int] = []
    for token_id in ids:
        text = talk.known.spell([token_id])
        if len(text) > 1 and text.isalnum() and text.isascii() and talk.random.random() < 0.3:
            halves = (text[:1].decode(), text[1:].decode())
            found += [smaller for half in halves for smaller in said(talk.known, half)]
        else:
            found.append(token_id)
    return found


def items_of(deltas: Sequence[_core.Delta]) -> list[dict[str, Any]]:
    """The output items, as a client would send them back."""
    items: list[dict[str, Any]] = []
    last = ""
    for delta in deltas:
        if delta.kind == "call":
            call = {"type": "function_call", "call_id": delta.call_id, "name": delta.name}
            items.append(call | {"arguments": ""})
        elif delta.kind == "arguments":
            items[-1]["arguments"] += delta.text
        elif delta.kind == last:
            items[-1]["content"][0]["text"] += delta.text
        elif delta.kind == "reasoning":
            part = {"type": "reasoning_text", "text": delta.text}
            items.append({"type": "reasoning", "summary": [], "content": [part]})
        else:
            part = {"type": "output_text", "text": delta.text}
            items.append({"type": "message", "role": "assistant", "content": [part]})
        last = delta.kind
    return items


def outputs_for(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Outputs for the calls among items."""
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "done"}
        for item in items
        if item.get("type") == "function_call"
    ]
