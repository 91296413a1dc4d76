"""The sim's script: which answer follows which item, how fast, and what goes wrong.

A script is one JSON object; docs/engines.md shows an example with every key. Unknown keys and
wrong types are errors that name their place, because a misspelt ``after_tokens`` would otherwise
be a test that tests nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from turnwire.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from turnwire.engine.base import LastItem

UNSCRIPTED_TEXT = "This answer comes from turnwire's sim engine, not from a model."

_Positive = Annotated[float, Meta(gt=0)]
_Milliseconds = Annotated[float, Meta(ge=0)]
_Count = Annotated[int, Meta(ge=0)]
_AtLeastOne = Annotated[int, Meta(ge=1)]
_TokenId = Annotated[int, Meta(ge=0, lt=2**32)]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class When(_Strict, frozen=True):
    """Conditions on the turn's last item; all that are given must hold."""

    type: str | None = None
    """The item's type: ``message``, ``function_call_output``, …"""
    contains: str | None = None
    """A stretch of the item's text."""
    name: str | None = None
    """The name of the tool whose output the item is."""
    turn: _AtLeastOne | None = None
    """Which request of its affinity (its connection) this is, from 1; warm-ups do not count."""

    def holds(self, item: LastItem | None, turn: int) -> bool:
        """Whether a turn fulfils every condition. Without an item, only ``turn`` can."""
        if self.turn is not None and self.turn != turn:
            return False
        if item is None:
            return self.type is None and self.contains is None and self.name is None
        return (
            (self.type is None or self.type == item.type)
            and (self.name is None or self.name == item.name)
            and (self.contains is None or self.contains in item.text)
        )


class Call(_Strict, frozen=True):
    """One tool call of an answer."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: dict[str, Any] | str = msgspec.field(default_factory=dict)
    """An object, or the raw text of the arguments, valid JSON or not."""

    @property
    def arguments_json(self) -> str:
        """The arguments as the model would write them."""
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(self.arguments, ensure_ascii=False)


class Answer(_Strict, frozen=True):
    """What is sampled: reasoning, then text, then calls; or ``ids`` and nothing else."""

    reasoning: str | None = None
    text: str | None = None
    calls: tuple[Call, ...] = ()
    ids: tuple[_TokenId, ...] | None = None
    """Raw token ids, also such as no tokenizer gives. A stop id is added where there is none."""

    def __post_init__(self) -> None:
        if self.ids is not None and (
            self.reasoning is not None or self.text is not None or self.calls
        ):
            msg = "`ids` excludes `reasoning`, `text` and `calls`"
            raise ValueError(msg)

    def encoder_input(self) -> bytes:
        """Write it as :class:`turnwire.engine.base.OutputEncoder` takes it."""
        output: dict[str, object] = {}
        if self.reasoning is not None:
            output["reasoning"] = self.reasoning
        if self.text is not None:
            output["text"] = self.text
        if self.calls:
            output["calls"] = [
                {"name": call.name, "arguments": call.arguments_json} for call in self.calls
            ]
        return msgspec.json.encode(output)


class Delay(_Strict, frozen=True):
    """Extra waiting, on top of the clock's prefill and decode times."""

    first_token_ms: _Milliseconds = 0.0
    after_tokens: _Count = 0
    ms: _Milliseconds = 0.0
    """A single pause before token ``after_tokens`` (from 0)."""


class Fault(_Strict, frozen=True):
    """What goes wrong, once ``after_tokens`` tokens have been handed out.

    ``fail``: this request raises EngineError. ``die``: so does every running request, the prefix
    cache is lost and the engine is not ready for ``restart_ms``. ``stall``: nothing more comes,
    until the request is closed. ``cut``: the stream ends without a finish reason.
    """

    kind: Literal["fail", "die", "stall", "cut"]
    after_tokens: _Count = 0
    restart_ms: _Milliseconds = 250.0


class Act(_Strict, frozen=True):
    """What the sim does on one turn."""

    answer: Answer = Answer(text=UNSCRIPTED_TEXT)
    delay: Delay = Delay()
    fault: Fault | None = None


class Rule(Act, frozen=True):
    """An act and when it applies; ``times`` says how often at most (None: always)."""

    when: When = When()
    times: _AtLeastOne | None = None


class Settings(_Strict, frozen=True):
    """The clock and the engine that it stands for."""

    tokens_per_second: _Positive = 65.0
    prefill_tokens_per_second: _Positive = 20_000.0
    """Prompt tokens per second; cached ones cost nothing."""
    prefill_overhead_ms: _Milliseconds = 5.0
    coalesce_ms: _Milliseconds = 0.0
    """At most one output in this time; 0 makes every token its own output."""
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Standard deviation of a token's due time as a fraction of the interval."""
    seed: int = 0
    max_sequences: _AtLeastOne | None = None
    """How many requests are sampled at once; the others queue, first come first served."""
    cache_blocks: _Count = 65_536
    """Size of the prefix cache in blocks of 16 tokens."""
    context_length: _AtLeastOne = 1_048_576


class Script(_Strict, frozen=True):
    """A whole script: settings, rules in the order in which they are tried, and a last resort."""

    settings: Settings = Settings()
    rules: tuple[Rule, ...] = ()
    default: Act = Act()

    @staticmethod
    def parse(text: str | bytes, *, source: str = "script") -> Script:
        """Read a script's JSON. Raises ConfigError that names the place, as ``rules[2].when``."""
        top = _decode(text, dict[str, msgspec.Raw], source, "")
        raw_rules = _decode(top.pop("rules", b"[]"), list[msgspec.Raw], source, "rules")
        rules = [_decode(raw, Rule, source, f"rules[{i}]") for i, raw in enumerate(raw_rules)]
        default = _decode(top.pop("default", b"{}"), Act, source, "default")
        settings = _decode(msgspec.json.encode(top), Settings, source, "")
        return Script(settings=settings, rules=tuple(rules), default=default)

    @staticmethod
    def load(path: Path) -> Script:
        """Read a script file. Raises ConfigError when it cannot be read or is not a script."""
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"Cannot read the sim script {path}: {error.strerror}.") from error
        return Script.parse(text, source=str(path))


class Playbook:
    """Chooses the act for each turn; counts how often each rule has applied."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._applied = [0] * len(script.rules)

    def choose(self, item: LastItem | None, turn: int) -> Act:
        """Take the first rule that holds and is not used up, else the default."""
        for i, rule in enumerate(self._script.rules):
            if rule.times is not None and self._applied[i] >= rule.times:
                continue
            if rule.when.holds(item, turn):
                self._applied[i] += 1
                return rule
        return self._script.default


_T = TypeVar("_T")


def _decode(text: str | bytes | msgspec.Raw, kind: type[_T], source: str, place: str) -> _T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        reason, _, inner = str(error).partition(" - at `$")
        inner = inner.removesuffix("`")
        path = (place + inner).lstrip(".")
        where = f"{source}: {path}" if path else source
        raise ConfigError(f"{where}: {reason}.", param=path or None) from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{source} is not valid JSON: {error}") from error
