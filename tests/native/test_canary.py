"""The canary: what it raises an alarm at, and what becomes of the profile then.

That it raises none at what is right, every conversation of ``talking.Talk`` shows.
"""

from __future__ import annotations

import pytest

from oracle import generic, templates, vocabulary
from oracle.generic import Template
from talking import ASK, NOW, base, raw
from turnwire import _core
from turnwire.errors import InvariantError

TURNS = 6
"""So many questions no probe asks; the planted templates print something behind them."""

NAMES = (
    "trl/qwen3",
    "trl/qwen3_6",
    "llama.cpp/Qwen3-Coder",
    "llama.cpp/deepseek-ai-DeepSeek-V4",
    "llama.cpp/meta-llama-Llama-3.1-8B-Instruct",
    "llama.cpp/GLM-4.6",
)


def planted(name: str) -> Template:
    known = "glm" if "GLM" in name else templates.vocabulary_of(name)
    odd = f"{{% if messages | length == {2 * TURNS - 1} %}}!{{% endif %}}"
    return Template(f"{name}, planted", templates.text_of(name) + odd, vocabulary.generic(known))


def said(text: str) -> bytes:
    return raw([{"type": "message", "role": "user", "content": text}])


def committed(chains: _core.Chains, parent: _core.Node | None, text: str) -> _core.Node:
    turn = chains.open(parent, said(text), now=NOW)
    turn.push(chains.profile.encode("Yes.").tolist())
    turn.finish()
    return turn.commit()


@pytest.mark.parametrize("trust", ["strict", "compat"])
@pytest.mark.parametrize("name", NAMES)
def test_a_template_that_parts_in_the_wild_takes_over(name, trust):
    template = planted(name)
    profile = base(template.vocabulary.name).with_template(template.text, trust=trust)
    assert profile.not_native is None
    chains = _core.Chains(profile)
    node = None
    for _ in range(TURNS - 1):
        node = committed(chains, node, "secret")
        assert chains.verify(node)
    odd = committed(chains, node, "secret")
    where = f"of {2 * TURNS - 1} items otherwise than its template, 0 bytes before its end"
    with pytest.raises(InvariantError, match=where) as error:
        chains.verify(odd)
    assert "secret" not in str(error.value)
    assert profile.not_native == str(error.value)

    # The template has it now: the conversation that was native, and new ones.
    assert not chains.verify(odd)
    again = chains.open(node, said("secret"), now=NOW)
    assert again.kind != "cold"
    assert profile.decode(again.prompt).endswith("!")
    items = [*ASK, {"type": "message", "role": "user", "content": "secret"}]
    turn = chains.open(None, raw(items), now=NOW)
    assert turn.prompt.tolist() == generic.encode(template, items, trust=trust)


def test_what_the_template_prints_is_not_compared():
    template = templates.template("llama.cpp/Apertus-8B-Instruct")
    profile = base(template.vocabulary.name).with_template(template.text)
    chains = _core.Chains(profile)
    assert profile.family == "generic"
    assert not chains.verify(committed(chains, None, "hello"))
