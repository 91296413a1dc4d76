"""What a template is shown of what a client wrote, so that none of it forges or steers (strict).

*Texts* (contents, reasoning, outputs, raw arguments) are hidden behind placeholders, each behind
one of its own: a template that compares two texts must not be steered by them. A placeholder says
how it was changed on its way through the template: ``tojson``, or Python's repr of what holds it,
leaves a mark on it, and it is filled with the escapes that its marks ask for.

*Words* (names, ids, and all strings in tools and argument objects) stay visible, for templates
compare, split and escape them. A character at both ends of one keeps it apart from what the
template writes around it, and one in each control token that it spells breaks that. Those
characters are taken out in the end.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

# Characters that no template writes, that Python's repr leaves alone and that have no case. The
# bound of a word sorts behind nearly all others, as a noncharacter does.
_OPEN, _CLOSE = "\u27e6", "\u27e7"
_BOUND = "\ufd3e"
_PLACEHOLDER = re.compile(_OPEN + "([0-9]{6})([01'\"]*)" + _CLOSE)

_WORD = re.compile("[A-Za-z0-9_-]+")
_FRAMED = re.compile("[^A-Za-z0-9_-]+([A-Za-z0-9_-]+)[^A-Za-z0-9_-]+")
_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def marked(dumped: str, *, ascii_only: bool) -> str:
    """JSON text (dumped without ``ensure_ascii``) whose placeholders are marked: from here on they
    stand for escaped text."""
    mark = "1" if ascii_only else "0"

    def change(match: re.Match[str]) -> str:
        if match[1]:
            return f"{_OPEN}{match[1]}{match[2]}{mark}{_CLOSE}"
        return json.dumps(match[0])[1:-1] if ascii_only and match[0] != _BOUND else match[0]

    return re.sub(f"{_PLACEHOLDER.pattern}|[^\0-\x7e]", change, dumped)


class Opaque(str):
    """A string with a placeholder in it, which knows what it hides when a list of it is printed."""

    __slots__ = ("hidden",)
    hidden: str

    def __repr__(self) -> str:
        quote = repr(self.hidden)[0]
        body = _PLACEHOLDER.sub(f"{_OPEN}\\1\\2{quote}{_CLOSE}", str.__repr__(self)[1:-1])
        return f"{quote}{body}{quote}"


def _escaped(text: str, mark: str) -> str:
    if mark == "'":  # as in a text with both quotes
        return repr(text + '"')[1:-2]
    if mark == '"':
        return repr("'" + text)[2:-1]
    return json.dumps(text, ensure_ascii=mark == "1")[1:-1]


class Controls:
    """A vocabulary's control tokens, as words may spell them: in any case."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._beginning: dict[str, list[str]] = defaultdict(list)
        framed = set()
        for token in tokens:
            if len(token) < 2:
                raise ValueError(f"a word that spells {token!r} cannot be broken")
            low = token.translate(_LOWER)
            self._beginning[low[0]].append(low)
            if match := _FRAMED.fullmatch(low):
                framed.add(match[1])
        self.framed = frozenset(framed)
        """The words that a template could turn into a token by what it writes around them."""

    def are_framed_by(self, word: str) -> bool:
        """Whether some token is this word between punctuation."""
        return word.translate(_LOWER) in self.framed

    def broken(self, text: str) -> str:
        """A text with a character behind the first of every token in it."""
        low = text.translate(_LOWER)
        out = []
        for at, letter in enumerate(low):
            out.append(text[at])
            if any(low.startswith(token, at) for token in self._beginning.get(letter, ())):
                out.append(_BOUND)
        return "".join(out)


class Plain:
    """Hides nothing: compat trust."""

    def text(self, text: str) -> str:
        return text

    def word(self, text: str) -> str:
        return text

    def value(self, value: Any) -> Any:
        return value


@dataclass
class Hidden(Plain):
    """Hides a client's texts and bounds its words."""

    controls: Controls
    _hidden: list[str] = field(default_factory=list)

    def text(self, text: str) -> str:
        """A message's content, reasoning, output or raw arguments: hidden whatever it says."""
        lead, core, rest = _around(text)
        if not core:
            return text
        masked = Opaque(f"{lead}{_OPEN}{len(self._hidden):06}{_CLOSE}{rest}")
        masked.hidden = text
        self._hidden.append(core)
        return masked

    def word(self, text: str) -> str:
        """A name, key, id or string inside JSON."""
        if _BOUND in text:
            raise ValueError(f"the oracle bounds words by {_BOUND!r}, a client must not write it")
        lead, core, rest = _around(text)
        if not core or (_WORD.fullmatch(text) and not self.controls.are_framed_by(text)):
            return text
        core = self.controls.broken(core).replace(_OPEN, _OPEN + _BOUND)  # no placeholder
        return f"{lead}{_BOUND}{core}{_BOUND}{rest}"

    def value(self, value: Any) -> Any:
        """A JSON value, its keys too."""
        if isinstance(value, str):
            return self.word(value)
        if isinstance(value, list):
            return [self.value(inner) for inner in value]
        if isinstance(value, dict):
            return {self.word(key): self.value(inner) for key, inner in value.items()}
        return value

    def fill(self, masked: str) -> str:
        """A run with the client's texts in their places, and nothing around its words."""

        def filled(match: re.Match[str]) -> str:
            if match[0] == _BOUND:
                return ""
            text = self._hidden[int(match[1])]
            for mark in match[2]:
                text = _escaped(text, mark)
            return text

        return re.sub(f"{_PLACEHOLDER.pattern}|{_BOUND}", filled, masked)


def _around(text: str) -> tuple[str, str, str]:
    """A text's leading white space, its core, and the white space behind; no core, no lead."""
    core = text.strip()
    lead = text[: len(text) - len(text.lstrip())] if core else ""
    return lead, core, text[len(lead) + len(core) :]
