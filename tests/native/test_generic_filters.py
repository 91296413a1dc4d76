"""What templates do to values, one thing at a time: the core's jinja against jinja2 itself.

Each template takes tools and a call with its arguments as an object, and prints ``VALUE`` for every
member of that object, or for every message.
"""

from __future__ import annotations

import json

import pytest

from oracle import vocabulary
from oracle.generic import Template
from talking import Talk

CALLED = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}"
    "{{ m.content }};{% for call in m.tool_calls or [] %}{% set object = call.function.arguments %}"
    "{% if object is string %}{{ raise_exception('no object') }}{% endif %}"
    "{{ call.function.name }}:{% for k, v in object.items() %}VALUE|{% endfor %}"
    "{% endfor %}{% endfor %}"
)
SAID = "{% for m in messages %}VALUE;{% endfor %}"

ARGUMENTS = {
    "numbers": "[1e16, 1e22, 1e300, 1e15, 1e-4, 1e-5, 1e-7, -0.0, 2.50, 123456789.0, 5e-324]",
    "integers": "[0, -5, 9007199254740993, 18446744073709551616, 123456789012345678901234567890]",
    "words": '["a b", " x ", "", "it\'s \\"so\\"", "\\\\ \\n\\t\\u0001", "string", "User", "x."]',
    "letters": '["\\u00e9 \\u4e2d \\ud83d\\ude42", "\\u00a0x", "\\u200d\\ue000\\u00ad", "\\u007f"]',
    "controls": '["<|eot_id|>", "<|EOT_ID|> <|eot_", "<|eot_id|><|eom_id|>", "id|>", "eot_id"]',
    "nested": '[{"a b": [], "c": {}, "<|eot_id|>": [null, true, false]}, [["x y"]], null]',
}
VALUES = (
    "{{ v }}",
    "{{ [k, v] }}",
    "{{ {k: v} }}",
    "{{ v | string }}",
    "{{ v | tojson }}",
    "{{ v | tojson(indent=2) }}",
    "{{ v | tojson(ensure_ascii=true, separators=(',', ':')) }}",
    "{{ [v] | tojson | tojson }}",
    "{% for x in v %}{{ x }} {% endfor %}",
    "{% for x in v %}{{ x | string | trim | upper }} {% endfor %}",
    "{% for x in v %}{{ x | string | title }}{{ x | string | capitalize }} {% endfor %}",
    "{% for x in v %}{{ (x | string).split('|') }}{{ x | string | replace('a', 'b') }}{% endfor %}",
    "{% for x in v %}{{ x | string | length }}{{ (x | string)[1:3] }}{{ x == 'a b' }} {% endfor %}",
    "{% for x in v %}{{ x | string | indent(2) }}{{ x | e }}{% endfor %}",
)

TEXTS = (
    "{{ m.content | trim }}",
    "{{ m.content | tojson }}",
    "{{ m | tojson(indent=1) }}",
    "{{ m.content | tojson(ensure_ascii=true) }}",
    "{{ m.content }}{{ m.missing | trim }}{{ m.missing | length }}{{ m.missing | string }}",
    "{{ '{\n' | indent(4, first=true) }}{{ 'a\n\nb\n' | indent(2, blank=true) }}{{ m.content }}",
    "{% if m.content is string and m.content | trim | length > 0 %}{{ m.content }}{% endif %}",
    "{% if loop.index0 and m.content == messages[0].content %}same{% endif %}{{ m.content }}",
)
NONCHARACTERS = '["\\ufdd0\\ufde0\\ufdd1", "\\ufdd2\\ufdd3 \\ufdd4\\ufde1\\ufdef", "\\uffff"]'
CONTENTS = (
    " a b \n",
    "\u00e9 \"'\\ <|eot_id|>\n",
    "\ufdd0\ufde0\ufdd1 \ufdd3\ufdd2 \u00a0\u200d x",
    "a b",
)

each_trust = pytest.mark.parametrize("trust", ["strict", "compat"])


@each_trust
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("kind", ARGUMENTS)
def test_an_argument_is_printed_as_jinja2_prints_it(kind, value, trust):
    prints_alike(value, ARGUMENTS[kind], trust)


@each_trust
@pytest.mark.parametrize("value", ["{{ v | join }}", "{{ v | tojson }}", "{{ {k: v} | tojson }}"])
def test_a_clients_noncharacters_are_only_characters(value, trust):
    prints_alike(value, NONCHARACTERS, trust)


def prints_alike(value: str, arguments: str, trust: str) -> None:
    """One call whose members ``a`` and ``a b`` are the arguments."""
    text = CALLED.replace("VALUE", value)
    talk = Talk(Template(value, text, vocabulary.generic("llama3.1")), trust, value)
    assert talk.template.ways.tools
    talk.instructions, talk.tools = None, []
    call = {"type": "function_call", "call_id": "c", "name": "f"}
    given = f'{{"a": {arguments}, "a b": {arguments}}}'
    output = {"type": "function_call_output", "call_id": "c", "output": "done"}
    new = [{"role": "user", "content": "x"}, call | {"arguments": given}, output]
    talk.reads_as(talk.open(new).prompt.tolist(), talk.expected(new))


@each_trust
@pytest.mark.parametrize("value", TEXTS)
def test_a_text_is_printed_as_jinja2_prints_it(value, trust):
    text = SAID.replace("VALUE", value)
    talk = Talk(Template(value, text, vocabulary.generic("llama3.1")), trust, "said")
    talk.instructions, talk.tools = "be kind", []
    for content in CONTENTS:
        new = [{"role": "user", "content": content}, {"role": "user", "content": "a b"}]
        talk.reads_as(talk.open(new).prompt.tolist(), talk.expected(new))


@each_trust
@pytest.mark.parametrize(
    "value",
    [
        "{% for key, place in v | dictsort %}{{ key }}{{ place }} {% endfor %}",
        "{% for key, place in v | dictsort(by='value') %}{{ key }}{{ place }} {% endfor %}",
        "{{ v | tojson(sort_keys=true) }}",
        "{{ v.keys() | sort }}{{ v.keys() | list | length }}",
    ],
)
def test_keys_are_sorted_as_jinja2_sorts_them(value, trust):
    keys = ("zeta", "\u00e9", "B y", "a x", "Alpha", "eot_id", " lead", "", "<|eot_id|>", "\u4e2d")
    value = f"{{% if v is mapping %}}{value}{{% endif %}}"  # a probe's is a string
    prints_alike(value, json.dumps({key: -place for place, key in enumerate(keys)}), trust)
