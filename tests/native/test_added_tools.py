"""Tools that come as items: ``additional_tools``, and what a search for tools has found.

At the front of a conversation they are declared as the request's own are, by the template (jinja2
says how); later, by an item. Either way their calls come back by the client's own names.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from oracle import generic, templates, vocabulary
from oracle.generic import Template
from talking import ASK, NOW, base, raw
from turnwire import _core
from turnwire.errors import (
    InvalidValueError,
    MissingParameterError,
    UnpairedCallError,
    UnsupportedParameterError,
)

NAMES = (
    "trl/qwen3",
    "trl/qwen3_6",
    "llama.cpp/openai-gpt-oss-120b",
    "llama.cpp/deepseek-ai-DeepSeek-V4",
    "llama.cpp/meta-llama-Llama-3.1-8B-Instruct",
    "llama.cpp/GLM-4.6",
    "llama.cpp/HuggingFaceTB-SmolLM3-3B",
)
each_family = pytest.mark.parametrize("name", NAMES)

FIND: dict[str, Any] = {
    "type": "function",
    "name": "find",
    "description": "Finds.",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
}
FULL: dict[str, Any] = FIND | {"name": "crm__find", "description": "Customers.\n\nFinds."}
"""How the model is told of it."""
CRM: dict[str, Any] = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [FIND | {"defer_loading": True}],
}
LS: dict[str, Any] = {
    "type": "function",
    "name": "ls",
    "description": "Lists.",
    "parameters": {"type": "object", "properties": {"dir": {"type": "string"}}},
}
SEARCH: dict[str, Any] = {
    "type": "tool_search",
    "execution": "client",
    "description": "Looks for tools.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
}
SEARCHES: dict[str, Any] = SEARCH | {"type": "function", "name": "tool_search"}
MORE = {"type": "additional_tools", "role": "developer", "tools": [CRM]}
MORE_TOLD = {
    "type": "message",
    "role": "developer",
    "content": "From now on you can call these tools as well:\n"
    + json.dumps(
        [{"type": "function", "function": {k: v for k, v in FULL.items() if k != "type"}}]
    ),
}


def template_of(name: str) -> Template:
    known = "glm" if "GLM" in name else templates.vocabulary_of(name)
    return Template(name, templates.text_of(name), vocabulary.generic(known))


def chains_of(name: str) -> _core.Chains:
    template = template_of(name)
    return _core.Chains(base(template.vocabulary.name).with_template(template.text))


def prompt(name: str, items: Any, tools: Any = ()) -> list[int]:
    """jinja2's, with these tools in the request."""
    return generic.encode(template_of(name), items, None, list(tools), trust="strict")


def opened(chains: _core.Chains, parent: _core.Node | None, items: Any, **given: Any) -> _core.Turn:
    return chains.open(parent, raw(items), now=NOW, **given)


def answered(turn: _core.Turn, ids: Any) -> tuple[_core.Node, list[_core.Delta]]:
    deltas = turn.push(ids) + turn.finish()
    return turn.commit(), deltas


def calling(chains: _core.Chains, name: str, arguments: str) -> list[int]:
    """What the model samples to call a tool."""
    profile = chains.profile
    if profile.family == "harmony":
        text = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"
        return [*profile.encode(text, control=True).tolist(), min(profile.stop_token_ids)]
    return list(profile.encode_output(raw({"calls": [{"name": name, "arguments": arguments}]})))


@each_family
def test_at_the_front_they_are_declared_as_the_requests_own(name):
    chains = chains_of(name)
    own = opened(chains, None, ASK, tools=raw([LS, CRM | {"tools": [FIND]}]))
    assert own.prompt.tolist() == prompt(name, ASK, [LS, FULL])
    added = opened(chains, None, [MORE, *ASK], tools=raw([LS]))
    assert added.prompt.tolist() == own.prompt.tolist()
    assert added.may_call
    # Behind a warm-up as well, as Codex sends them.
    warm = opened(chains, None, [], generate=False)
    warm.finish()
    late = opened(chains, warm.commit(), [MORE, *ASK])
    assert late.prompt.tolist() == prompt(name, ASK, [FULL])


@each_family
def test_they_stay_with_the_conversation(name):
    chains = chains_of(name)
    first = opened(chains, None, [MORE, *ASK])
    node, deltas = answered(first, calling(chains, "crm__find", '{"q": "x"}'))
    call = next(delta for delta in deltas if delta.kind == "call")
    assert (call.namespace, call.name) == ("crm", "find")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Ada"}
    second = opened(chains, node, [output])
    assert second.kind == "extend"
    assert second.prefix_len == node.token_count
    # With other tools of the request's own they are still there.
    third = opened(chains, node, [output], tools=raw([LS]))
    assert third.kind == "rebase"
    _, deltas = answered(third, calling(chains, "crm__find", "{}"))
    assert [delta.namespace for delta in deltas if delta.kind == "call"] == ["crm"]


@each_family
def test_later_an_item_tells_of_them(name):
    chains = chains_of(name)
    warm = opened(chains, None, ASK, tools=raw([LS]), generate=False)
    warm.finish()
    turn = opened(chains, warm.commit(), [MORE, *ASK], tools=raw([LS]))
    whole = opened(chains, None, [*ASK, MORE_TOLD, *ASK], tools=raw([LS]))
    assert turn.prompt.tolist() == whole.prompt.tolist()
    if chains.profile.family != "harmony":  # whose template loses the operator's late words
        assert turn.prompt.tolist() == prompt(name, [*ASK, MORE_TOLD, *ASK], [LS])
    _, deltas = answered(turn, calling(chains, "crm__find", "{}"))
    assert [(d.namespace, d.name) for d in deltas if d.kind == "call"] == [("crm", "find")]


@each_family
def test_a_search_and_what_it_has_found(name):
    chains = chains_of(name)
    turn = opened(chains, None, ASK, tools=raw([SEARCH]))
    assert turn.prompt.tolist() == prompt(name, ASK, [SEARCHES])
    echoed = json.loads(turn.echo[1])
    assert echoed == [SEARCH]
    node, deltas = answered(turn, calling(chains, "tool_search", '{"query": "customers"}'))
    call = next(delta for delta in deltas if delta.kind == "search_call")
    query = "".join(delta.text for delta in deltas if delta.kind == "query")
    assert json.loads(query) == {"query": "customers"}
    assert not {delta.kind for delta in deltas} & {"call", "arguments"}

    with pytest.raises(UnpairedCallError):
        opened(chains, node, ASK)
    found = {"type": "tool_search_output", "call_id": call.call_id, "tools": [CRM]}
    second = opened(chains, node, [found], tools=raw([SEARCH]))
    assert second.kind == "extend"
    assert "Customers." in chains.profile.decode(second.prompt.tolist()[node.token_count :])
    after, deltas = answered(second, calling(chains, "crm__find", '{"q": "Ada"}'))
    call = next(delta for delta in deltas if delta.kind == "call")
    assert (call.namespace, call.name) == ("crm", "find")
    assert chains.verify(after) or chains.profile.family == "generic"


@each_family
def test_what_others_have_searched_is_rendered_as_the_function_it_is(name):
    """History of a server that executed the search itself has no call ids."""
    arguments = '{"query": "customers"}'
    history = [
        *ASK,
        {
            "type": "tool_search_call",
            "execution": "server",
            "call_id": None,
            "arguments": {"query": "customers"},
        },
        {"type": "tool_search_output", "execution": "server", "call_id": None, "tools": [CRM]},
    ]
    declared = MORE_TOLD["content"].split("\n", 1)[1]
    as_functions = [
        *ASK,
        {
            "type": "function_call",
            "call_id": "tool_search_1",
            "name": "tool_search",
            "arguments": arguments,
        },
        {"type": "function_call_output", "call_id": "tool_search_1", "output": declared},
    ]
    chains = chains_of(name)
    turn = opened(chains, None, history, tools=raw([SEARCH]))
    same = opened(chains, None, as_functions, tools=raw([SEARCH]))
    assert turn.prompt.tolist() == same.prompt.tolist()
    _, deltas = answered(turn, calling(chains, "crm__find", "{}"))
    assert [delta.namespace for delta in deltas if delta.kind == "call"] == ["crm"]


def test_a_conversation_that_is_found_again_has_the_tools_that_it_says():
    chains = chains_of("trl/qwen3")
    first = opened(chains, None, [MORE, *ASK], scope=b"s")
    ids = [*chains.profile.encode("Yes.").tolist(), min(chains.profile.stop_token_ids)]
    node, _ = answered(first, ids)
    said = {"role": "assistant", "content": "Yes."}
    again = opened(chains, None, [MORE, *ASK, said, *ASK], scope=b"s")
    assert (again.known_items, again.kind) == (2, "extend")
    assert again.prompt.tolist()[: node.token_count] == node.tokens().tolist()
    without = opened(chains, None, [*ASK, said, *ASK], scope=b"s")
    assert without.known_items == 2
    assert not without.may_call
    assert "crm__find" not in chains.profile.decode(without.prompt.tolist())


def test_a_tool_that_is_loaded_again_is_the_newest():
    chains = chains_of("trl/qwen3")
    other = {"type": "custom", "name": "crm__find", "description": "Another."}
    front = {"type": "additional_tools", "role": "developer", "tools": [other]}
    turn = opened(chains, None, [MORE, front, *ASK])
    _, deltas = answered(turn, calling(chains, "crm__find", '{"input": "x"}'))
    assert [delta.kind for delta in deltas if delta.kind != "input"] == ["custom_call"]


def test_a_tool_that_came_as_an_item_can_be_chosen():
    chains = chains_of("trl/qwen3")
    choice = {"type": "function", "namespace": "crm", "name": "find"}
    turn = opened(chains, None, [MORE, *ASK], tool_choice=raw(choice))
    assert turn.constraint
    assert [name for name, _ in turn.constraint[2]] == ["crm__find"]
    none = opened(chains, None, [MORE, *ASK], tool_choice=b'"none"')
    assert not none.may_call
    assert none.prompt.tolist() == prompt("trl/qwen3", ASK)


def test_hosted_ones_are_left_out():
    chains = chains_of("trl/qwen3")
    more = MORE | {"tools": [{"type": "web_search"}, CRM]}
    turn = opened(chains, None, [more, *ASK], tools=raw([{"type": "mcp"}]))
    assert turn.left_out == ["mcp", "web_search"]
    assert turn.prompt.tolist() == prompt("trl/qwen3", ASK, [FULL])


@pytest.mark.parametrize(
    ("items", "tools", "error", "param"),
    [
        ([{"type": "additional_tools"}], [], MissingParameterError, "input[0].tools"),
        ([{"type": "additional_tools", "tools": {}}], [], InvalidValueError, "input[0].tools"),
        (
            [{"type": "additional_tools", "tools": [{"type": "function"}]}],
            [],
            MissingParameterError,
            "input[0].tools[0].name",
        ),
        (
            [{"type": "tool_search_output", "call_id": "c"}],
            [],
            MissingParameterError,
            "input[0].tools",
        ),
        (
            [{"type": "tool_search_output", "call_id": "c", "tools": []}],
            [],
            UnpairedCallError,
            "input",
        ),
        (
            [{"type": "tool_search_call", "call_id": "c"}],
            [],
            MissingParameterError,
            "input[0].arguments",
        ),
        (ASK, [{"type": "tool_search"}], UnsupportedParameterError, "tools[0].execution"),
        (
            ASK,
            [{"type": "tool_search", "execution": "server"}],
            UnsupportedParameterError,
            "tools[0].execution",
        ),
        (ASK, [SEARCH | {"parameters": []}], InvalidValueError, "tools[0].parameters"),
        (ASK, [SEARCH, LS | {"name": "tool_search"}], InvalidValueError, "tools[1].name"),
        (ASK, [LS | {"defer_loading": True}], UnsupportedParameterError, "tools[0].defer_loading"),
    ],
)
def test_errors_name_the_field(items, tools, error, param):
    chains = chains_of("trl/qwen3")
    with pytest.raises(error) as raised:
        opened(chains, None, items, tools=raw(tools))
    assert raised.value.param == param
