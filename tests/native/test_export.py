"""Committed turns as bytes: what continues from them continues with the very same ids.

The oracle is the node that was exported, or where another profile renders it again, that profile's
own cold prompt for the same items (which `test_generic.py` and its kin hold to jinja2).
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from native.test_added_tools import FULL, LS, MORE
from oracle import templates, vocabulary
from oracle.generic import NOW
from talking import Talk, items_of, outputs_for, profile_of, raw, through_template
from turnwire import _core
from turnwire.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.timeout(600)

EFFORTS = ("none", None)

LOADED = {**MORE, "tools": [{**LS, "name": "later"}]}


NAMES = (
    "llama.cpp/Qwen-Qwen3-0.6B",
    "llama.cpp/deepseek-ai-DeepSeek-V3.1",
    "llama.cpp/openai-gpt-oss-120b",
    "llama.cpp/Kimi-K2-Instruct",
    "llama.cpp/Mistral-Small-3.2-24B-Instruct-2506",
    "trl/gemma3",
)


def test_there_are_templates_of_several_kinds():
    families = {profile_of(templates.template(name), "strict").family for name in NAMES}
    assert "generic" in families
    assert len(families) >= 4, families


class Written(Talk):
    """A conversation of which every turn is written down, with its parent's place."""

    def __init__(self, name: str, trust: str, seed: object) -> None:
        super().__init__(templates.template(name), trust, seed)
        self.blobs: list[bytes] = []
        self.nodes: list[_core.Node] = []

    def grown(self, turns: int) -> Iterator[list[Any]]:
        """Goes on by so many turns, sampled in tokens of its own choice, under changing headers;
        yields what could be asked next."""
        owed: list[Any] = []
        for _ in range(turns):
            if self.random.random() < 0.2:
                self.head()
            new = [*owed] if owed else [*self.step().items]
            warm = not owed and self.random.random() < 0.2
            try:
                turn = self._open(new, generate=not warm)
            except InvalidValueError:
                continue
            deltas = turn.push(self.noise()) if not warm else []
            answer = items_of(deltas + turn.finish())
            owed = outputs_for(answer)
            self.node = turn.commit()
            self.items += [*new, *answer]
            self.nodes.append(self.node)
            self.blobs.append(self.node.export())
            yield [*owed, {"role": "user", "content": "And now?"}]

    def noise(self) -> list[int]:
        """An answer, maybe after a thought, maybe a call, maybe cut off."""
        answer: dict[str, Any] = {"text": self.growing.text(least=1)}
        if self.random.random() < 0.4:
            answer["reasoning"] = "hm \u00e9 " + self.growing.text()
        if self.tools and self.random.random() < 0.5:
            answer = {"calls": [{"name": "ls", "arguments": "{}"}]}
        try:
            ids = list(self.profile.encode_output(raw(answer)))
        except Exception:  # noqa: BLE001 -- a family that has no such answer
            ids = list(self.profile.encode_output(raw({"text": "fine"})))
        cut = self.random.random() < 0.2
        return ids[: self.random.randint(1, len(ids))] if cut else ids


def chained(chains: _core.Chains, blobs: Sequence[bytes]) -> _core.Node | None:
    node: _core.Node | None = None
    for blob in blobs:
        node = chains.hydrate(node, blob)
    return node


def asked(chains: _core.Chains, node: _core.Node | None, new: list[Any], **more: Any) -> list[int]:
    turn = chains.open(node, raw(new), now=NOW, **more)
    try:
        return turn.prompt.tolist()
    finally:
        turn.abort()


def same(one: _core.Node, other: _core.Node) -> None:
    assert one.tokens().tolist() == other.tokens().tolist()
    assert one.item_types == other.item_types
    found, wanted = one.spans(), other.spans()
    assert [(s.start, s.end, s.kind, s.origin, s.items) for s in found] == [
        (s.start, s.end, s.kind, s.origin, s.items) for s in wanted
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_hydrated_chain_goes_on_with_the_very_same_ids(name):
    compared = 0
    for trust in ("strict", "compat"):
        for seed in range(3):
            compared += goes_on(Written(name, trust, f"export {seed}"))
    assert compared > 20


def goes_on(talk: Written) -> int:
    """Every turn of ``talk`` is the same when it is hydrated; says how often one went on."""
    other = _core.Chains(talk.profile)
    compared = 0
    for new in talk.grown(8):
        node = chained(other, talk.blobs)
        assert node is not None
        same(node, talk.nodes[-1])
        # Two blobs are one blob of two turns: what a deleted response leaves to its child.
        merged = [b"".join(talk.blobs[:3]), *talk.blobs[3:]]
        same(chained(other, merged), talk.nodes[-1])
        for header in ({}, {"instructions": raw(talk.instructions), "tools": raw(talk.tools)}):
            for effort in EFFORTS if talk.effort is None else (talk.effort,):
                try:
                    wanted = asked(talk.chains, talk.node, new, effort=effort, **header)
                except Exception as error:  # noqa: BLE001 -- the same, whatever it is
                    with pytest.raises(type(error)):
                        asked(other, node, new, effort=effort, **header)
                    continue
                assert asked(other, node, new, effort=effort, **header) == wanted
                compared += 1
        assert node.export() == talk.blobs[-1]
    return compared


CHILD = """
import base64, json, sys
from turnwire import _core
given = json.load(sys.stdin)
profile = _core.Profile.load(given["path"], trust="strict")
chains = _core.Chains(profile)
node = None
for blob in given["blobs"]:
    node = chains.hydrate(node, base64.b64decode(blob))
new = json.dumps(given["new"]).encode()
print(json.dumps(chains.open(node, new, now=given["now"]).prompt.tolist()))
"""


def test_another_process_goes_on_with_the_very_same_ids(profile):
    chains = _core.Chains(profile)
    node, blobs = None, []
    for text in ("Hello", "More \u4e2d", "Again"):
        turn = chains.open(node, raw(text), now=NOW, instructions=raw("Be terse."))
        turn.push(profile.encode_output(raw({"reasoning": "hm", "text": f"so: {text}"})))
        turn.finish()
        node = turn.commit()
        blobs.append(base64.b64encode(node.export()).decode())
    new = [{"role": "user", "content": "Last"}]
    given = {"path": str(vocabulary.qwen3_path()), "blobs": blobs, "new": new, "now": NOW}
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == asked(chains, node, new)


@pytest.mark.parametrize("name", NAMES)
def test_another_profile_renders_the_items_again(name):
    compared = sum(renders_again(Written(name, "strict", f"other {seed}")) for seed in range(6))
    assert compared > 3


def renders_again(talk: Written) -> int:
    template = through_template(talk.template.text)
    other_profile = profile_of(talk.template, "strict").with_template(template, trust="compat")
    assert other_profile.fingerprint != talk.profile.fingerprint
    other = _core.Chains(other_profile)
    compared = 0
    for new in talk.grown(5):
        header = {"instructions": raw(talk.instructions), "tools": raw(talk.tools)}
        try:
            wanted = asked(other, None, [*talk.items, *new], **header)
            node = chained(other, talk.blobs)
        except InvalidValueError:
            continue
        assert asked(other, node, new, **header) == wanted
        compared += 1
    return compared


def test_a_past_that_was_found_is_written_whole_and_without_unsent_reasoning(profile):
    chains = _core.Chains(profile)
    items: list[Any] = [{"role": "user", "content": "One"}]
    turn = chains.open(None, raw(items), scope=b"me", now=NOW)
    turn.push(profile.encode_output(raw({"reasoning": "SECRET-CANARY", "text": "Two"})))
    items += [item for item in items_of(turn.finish()) if item["type"] != "reasoning"]
    turn.commit()
    items = [items[0], {"role": "assistant", "content": "Two"}, {"role": "user", "content": "3"}]
    turn = chains.open(None, raw(items), scope=b"me", now=NOW)
    assert turn.known_items == 2
    turn.push(profile.encode_output(raw({"text": "Four"})))
    turn.finish()
    blob = turn.commit().export()
    assert b"SECRET-CANARY" not in blob
    other = _core.Chains(profile)
    node = other.hydrate(None, blob)
    new = [{"role": "user", "content": "Five"}]
    whole = [*items, {"role": "assistant", "content": "Four"}, *new]
    assert asked(other, node, new) == asked(_core.Chains(profile), None, whole)


def test_a_turn_is_written_in_proportion_to_what_it_brought(profile):
    chains = _core.Chains(profile)
    turn = chains.open(None, raw("word " * 20_000), now=NOW)
    turn.push(profile.encode_output(raw({"text": "Two"})))
    turn.finish()
    first = turn.commit()
    turn = chains.open(first, raw("3"), now=NOW)
    turn.push(profile.encode_output(raw({"text": "Four"})))
    turn.finish()
    assert len(first.export()) > 100_000
    assert len(turn.commit().export()) < 1000


def blob_of(profile: _core.Profile) -> tuple[bytes, bytes]:
    chains = _core.Chains(profile)
    turn = chains.open(
        None, raw([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])
    )
    turn.push(profile.encode_output(raw({"reasoning": "hm", "text": "a"})))
    turn.finish()
    first = turn.commit()
    turn = chains.open(first, raw("next"), tools=raw([{"type": "function", "name": "ls"}]))
    turn.push(profile.encode_output(raw({"calls": [{"name": "ls", "arguments": "{}"}]})))
    turn.finish()
    return first.export(), turn.commit().export()


def test_bytes_that_are_no_export_are_refused(profile):
    chains = _core.Chains(profile)
    root, child = blob_of(profile)
    parent = chains.hydrate(None, root)
    bad = [b"", b"tw", b"\0" * 100, root[:-1], root + b"x", b"tx" + root[2:], b"tw\2" + root[3:]]
    bad += [root[:at] + bytes([root[at] ^ 1]) + root[at + 1 :] for at in range(len(root))]
    for blob in bad:
        with pytest.raises(InvalidValueError) as caught:
            chains.hydrate(None, blob)
        assert caught.value.param == "blob"
    same(chains.hydrate(parent, child), chains.hydrate(chains.hydrate(None, root), child))


def test_tools_that_came_as_items_come_back(profile):
    """At the front and later; the header that declares them is the same, and so are the calls."""
    chains, other = _core.Chains(profile), _core.Chains(profile)
    user = {"type": "message", "role": "user", "content": "x"}
    for items in ([MORE, user], [user, MORE]):
        node, found = None, None
        for new in (items, [user], [LOADED, user]):
            turn = chains.open(node, raw(new), tools=raw([LS]), now=NOW)
            turn.push(profile.encode_output(raw({"text": "fine"})))
            turn.finish()
            node = turn.commit()
            found = other.hydrate(found, node.export())
            same(found, node)
            for tools in ([LS], [], [LS, FULL]):
                opened = [
                    one.open(tip, raw([user]), tools=raw(tools), now=NOW)
                    for one, tip in ((chains, node), (other, found))
                ]
                live, back = opened
                assert back.prompt.tolist() == live.prompt.tolist()
                assert back.kind.replace("fork", "extend") == live.kind.replace("fork", "extend")
                assert back.echo == live.echo
                calls = profile.encode_output(
                    raw({"calls": [{"name": "crm__find", "arguments": '{"q":"a"}'}]})
                )
                said = [[(d.kind, d.name) for d in turn.push(calls)] for turn in opened]
                assert said[0] == said[1]
                for turn in opened:
                    turn.abort()
