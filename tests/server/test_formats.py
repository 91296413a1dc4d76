"""``text.format``: answers in JSON, by a schema, and what cannot be enforced."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from oracle import templates, vocabulary
from running import MODEL, connect, text_of
from talking import base, through_template
from turnwire import _core

ADDRESS: dict[str, Any] = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "number": {"type": "integer", "minimum": 3}},
    "required": ["street", "number"],
}
BY_SCHEMA = {"format": {"type": "json_schema", "name": "address", "schema": ADDRESS}}
LS = {"type": "function", "name": "ls", "parameters": {"type": "object"}}
OFF = {"effort": "none"}


class Address(BaseModel):
    street: str
    number: int


async def test_an_answer_by_a_schema(serve):
    server = serve()
    async with connect(server) as socket:
        response = await socket.response("Where?", text=BY_SCHEMA, reasoning=OFF)
        free = await socket.response(
            "Where?", text={"format": {"type": "json_object"}}, reasoning=OFF
        )
    jsonschema.validate(json.loads(text_of(response)), ADDRESS)
    assert response["text"]["format"] == BY_SCHEMA["format"] | {"strict": True, "description": None}
    assert isinstance(json.loads(text_of(free)), dict)


async def test_the_sdk_parses_it(serve):
    server = serve()
    client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
    response = await client.responses.parse(
        model=MODEL, input="Where?", text_format=Address, reasoning={"effort": "none"}
    )
    assert isinstance(response.output_parsed, Address)
    await client.close()


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize(
    ("fields", "why"),
    [({}, "behind reasoning"), ({"reasoning": OFF, "tools": [LS]}, "beside tools")],
)
async def test_what_cannot_be_enforced_is_refused(serve, generic, fields, why):
    template = vocabulary.qwen3().template
    profile = base("qwen3").with_template(through_template(template) if generic else template)
    server = serve(of=profile)
    async with connect(server) as socket:
        (error,) = await socket.turn("Where?", text=BY_SCHEMA, **fields)
        assert (error["type"], error["error"]["param"]) == ("error", "text.format")
        assert why in error["error"]["message"]
        # The socket goes on; and tools that may not be called are in nobody's way.
        response = await socket.response(
            "Where?", text=BY_SCHEMA, reasoning=OFF, tools=[LS], tool_choice="none"
        )
    jsonschema.validate(json.loads(text_of(response)), ADDRESS)


def test_a_model_that_does_not_reason_may_always_be_asked():
    profile = base("qwen3").with_template(templates.text_of("trl/qwen2_5"))
    turn = _core.Chains(profile).open(None, b'"x"')
    assert not turn.may_think
