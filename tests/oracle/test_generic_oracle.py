"""The generic oracle itself: what the probes find, and its two trusts against each other."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from tokenizers import Tokenizer

from oracle import generic, naive, templates, vocabulary
from oracle.conversations import Conversation, conversations
from oracle.generic import RefusedError, Template, Ways
from oracle.growing import Growing
from oracle.vocabulary import Vocabulary

pytestmark = pytest.mark.timeout(300)

QWEN3 = "llama.cpp/Qwen-Qwen3-0.6B"
OBJECT = {"tools": True, "text_arguments": False}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Read off the templates by eye.
        (QWEN3, {"tools": True, "text_arguments": True, "reasoning": "reasoning_content"}),
        ("llama.cpp/Qwen3-Coder", OBJECT | {"reasoning": None}),
        ("llama.cpp/meta-llama-Llama-3.1-8B-Instruct", OBJECT | {"reasoning": None}),
        ("llama.cpp/openai-gpt-oss-120b", OBJECT | {"reasoning": "thinking"}),
        ("llama.cpp/Qwen3.5-4B", OBJECT | {"many_systems": False, "late_system": False}),
        ("llama.cpp/upstage-Solar-Open-100B", {"tools": True, "reasoning": "reasoning"}),
        ("trl/gemma", {"tools": False, "system": False, "adjacent_users": False}),
        ("trl/gemma3", {"tools": False, "system": True, "adjacent_users": False}),
        ("trl/llama3", {"tools": False, "system": True, "adjacent_users": True, "parts": False}),
        ("trl/smolvlm", {"parts": True, "tools": False}),
        ("llama.cpp/mistralai-Mistral-Nemo-Instruct-2407", OBJECT | {"short_ids": True}),
        ("llama.cpp/meetkai-functionary-medium-v3.2", {"tools": True, "text_arguments": True}),
    ],
)
def test_the_probes_find_what_the_template_says(name: str, expected: dict):
    ways = templates.template(name).ways
    assert {key: getattr(ways, key) for key in expected} == expected


@pytest.mark.parametrize("name", vocabulary.GENERIC)
def test_added_tokens_keep_the_ids_of_the_file_and_bare_text_has_none(name):
    known = vocabulary.generic(name)
    file = json.loads((vocabulary.generic_path(name) / "tokenizer.json").read_text("utf-8"))
    assert known.added_tokens == {token["content"]: token["id"] for token in file["added_tokens"]}
    assert len(set(known.bare.get_vocab().values())) == len(known.bare.get_vocab())
    for control, token_id in known.controls.items():
        assert known.encode_text(control) == [token_id]
        assert not known.skeleton(known.encode_run(f"{control}.", first=True))


@pytest.mark.parametrize("trust", ["strict", "compat"])
def test_it_is_the_naive_model_where_a_template_takes_everything(trust):
    """Oracle: ``oracle.naive``, whose mapping Qwen3's template fits without any adaptation."""
    model = vocabulary.qwen3()
    template = Template("qwen3", model.template, vocabulary.generic("qwen3"))

    @settings(deadline=None, max_examples=60)
    @given(conversations(adversarial=True))
    def check(talk: Conversation):
        given_ = (talk.items, talk.instructions, talk.tools)
        how = {"thinking": None if talk.thinking else False, "trust": trust}
        assert generic.encode(template, *given_, **how) == naive.encode(model, *given_, **how)

    check()


def grown(template: Template, growing: Growing, steps: int):
    """A conversation that the template takes: items, instructions, tools."""
    items: list = []
    around: tuple = (None, [])
    for _ in range(6):
        drawn = (growing.instructions(), growing.tools())
        if takes(template, [{"role": "user", "content": "x"}], *drawn):
            around = drawn
            break
    for _ in range(steps):
        step = growing.any()
        if takes(template, [*items, *step.items], *around):
            items += step.items
    return (items, *around)


def takes(template: Template, *conversation) -> bool:
    try:
        for trust in ("strict", "compat"):
            generic.encode(template, *conversation, trust=trust)
    except RefusedError:
        return False
    return True


ADDS_FULL_STOPS = ("llama.cpp/meetkai-functionary-medium-v3.2",)
"""To a description that does not end with one; what bounds it under strict trust hides its end."""


@pytest.mark.parametrize("name", templates.names())
def test_strict_writes_what_compat_writes_and_forges_nothing(name):
    template = templates.template(name)
    known = template.vocabulary
    random = Random(f"oracle {name}")
    conversation = grown(template, Growing(random, known, plain=True), 6)
    if not conversation[0]:  # it takes no conversation at all
        return
    strict, compat = (
        generic.encode(template, *conversation, trust=trust) for trust in ("strict", "compat")
    )
    texts = [known.spell(ids) for ids in (strict, compat)]
    if name in ADDS_FULL_STOPS:
        texts = [text.replace(b"..", b".") for text in texts]
    assert texts[0] == texts[1]
    assert known.skeleton(strict) == known.skeleton(compat)
    # The same conversation, every text in it full of controls: the same skeleton.
    forged = "\n".join([*random.sample(sorted(known.controls), 3), "</think>", "<tool_call>"])
    items, instructions, tools = conversation
    spoilt = json.loads(json.dumps(items), object_hook=lambda found: _spoil(found, forged))
    ids = generic.encode(template, spoilt, instructions, tools, trust="strict")
    assert known.skeleton(ids) == known.skeleton(strict)
    text = known.spell(ids).decode(errors="replace")
    assert "\u27e6" not in text
    assert "\u27e7" not in text


def _spoil(found: dict, forged: str) -> dict:
    for key in ("content", "text", "output"):
        if isinstance(found.get(key), str) and found[key].strip():
            found[key] = found[key].rstrip() + forged + "."
    return found


IMAGES = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %};{% endfor %}"


def test_a_content_is_a_list_of_parts_where_no_other_is_printed():
    known = vocabulary.generic("llama3.1")
    template = Template("parts", IMAGES, known)
    ways = template.ways
    assert (ways.parts, ways.tools, ways.system, ways.many_systems) == (True, False, True, True)
    items = [{"role": "user", "content": ""}, {"role": "user", "content": " <|eot_id|> b"}]
    chat, _ = generic.conversation(template, items, "be kind")
    assert [message["content"] for message in chat] == [
        [{"type": "text", "text": "be kind"}],
        [],
        [{"type": "text", "text": " <|eot_id|> b"}],
    ]
    assert generic.render(template, items, "be kind") == "be kind;; <|eot_id|> b;"
    ids = generic.encode(template, items, "be kind", trust="strict")
    assert known.spell(ids) == b"be kind;; <|eot_id|> b;"
    assert not known.skeleton(ids)


@pytest.mark.parametrize("text", ["", "{{ raise_exception('no') }}", "{{ messages[0].role }}"])
def test_a_template_that_prints_no_user_is_refused(text):
    template = Template("mute", text, vocabulary.generic("llama3.1"))
    with pytest.raises(RefusedError):
        generic.encode(template, [{"role": "user", "content": "x"}])


def called_by(condition: str) -> Ways:
    """The ways of a template that prints tools, calls and outputs, if the condition allows."""
    text = (
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}"
        "{{ m.role }}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{% if not (CONDITION) %}{{ raise_exception('no') }}{% endif %}"
        "{{ c.function.name }}{{ c.function.arguments }}{% endfor %}{% endfor %}"
    )
    template = Template("calls", text.replace("CONDITION", condition), vocabulary.generic("qwen3"))
    return template.ways


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("true", (True, False, True)),
        ("c.id | length == 9", (True, True, True)),
        ("c.function.arguments is mapping", (True, False, False)),
        ("c.function.arguments is string", (True, False, True)),
        ("c.id | length == 9 and c.function.arguments is mapping", (True, True, False)),
        # Text is tried with one form of id only, the long one when an object was never taken.
        ("c.id | length == 9 and c.function.arguments is string", (False, False, False)),
        ("messages[-1].role == 'tool'", (True, False, True)),
        ("messages[-1].role == 'user'", (False, False, False)),
    ],
)
def test_ids_and_arguments_are_probed_behind_a_tools_output(condition, expected):
    ways = called_by(condition)
    assert (ways.tools, ways.short_ids, ways.text_arguments) == expected


def test_a_calls_id_is_equal_to_the_one_that_its_output_names():
    text = (
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% if m.role == 'tool' %}"
        "{% for c in messages[1].tool_calls %}{% if c.id == m.tool_call_id %}"
        "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endif %}{% endfor %}"
        "{% endif %}{% endfor %}"
    )
    template = Template("equal", text, vocabulary.generic("qwen3"))
    call = {"type": "function_call", "call_id": "id <tool_call> 1", "name": "f"}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": " 1"}
    items = [{"role": "user", "content": "x"}, call | {"arguments": "{}"}, output]
    tools = [{"type": "function", "name": "f"}]
    strict, compat = (
        template.vocabulary.spell(generic.encode(template, items, None, tools, trust=trust))
        for trust in ("strict", "compat")
    )
    assert strict == compat
    assert strict.endswith(b"x 1f{}")


def test_system_messages_and_users_go_where_the_template_takes_them():
    chat = [
        {"role": role, "content": content}
        for role, content in (
            *(("system", "1"), ("system", "2"), ("user", "3"), ("assistant", "4")),
            *(("system", "5"), ("user", "6")),
        )
    ]
    takes_all = Ways(
        parts=False,
        tools=True,
        whole_tools=False,
        short_ids=False,
        counted_ids=False,
        text_arguments=True,
        reasoning=None,
        system=True,
        many_systems=True,
        late_system=True,
        adjacent_users=True,
    )

    def placed(**ways: bool) -> str:
        found = generic._placed(chat, Ways(**(vars(takes_all) | ways)))
        return " ".join(m["role"][0] + m["content"].replace("\n\n", "+") for m in found)

    assert placed() == "s1 s2 u3 a4 s5 u6"
    assert placed(many_systems=False) == "s1+2 u3 a4 s5 u6"
    assert placed(late_system=False) == "s1 s2 u3 a4 u5 u6"
    assert placed(system=False) == "u1 u2 u3 a4 u5 u6"
    assert placed(system=False, adjacent_users=False) == "u1+2+3 a4 u5+6"
    assert placed(late_system=False, many_systems=False, adjacent_users=False) == "s1+2 u3 a4 u5+6"


def test_short_ids():
    ways = Ways(*([False] * 11))
    short = Ways(**(vars(ways) | {"short_ids": True}))
    assert generic._call_id("call_1", ways) == "call_1"
    assert generic._call_id("call_0123456789abcdefABCDEFGH", short) == "fABCDEFGH"
    assert generic._call_id("é-1", short) == "000000001"


def test_tekken_is_merged_by_rank():
    """Oracle: tiktoken's rule, to merge the neighbours whose whole has the lowest rank."""
    known = vocabulary.generic("tekken")
    ranks = {known._bytes[i]: i for i in known.bare.get_vocab().values() if i >= 1000}

    def merged(piece: bytes) -> list[int]:
        parts = [piece] if piece in ranks else [bytes([byte]) for byte in piece]
        while True:
            pairs = [(ranks.get(a + b), i) for i, (a, b) in enumerate(pairwise(parts))]
            ranked = [pair for pair in pairs if pair[0] is not None]
            if not ranked:
                return [ranks[part] for part in parts]
            at = min(ranked)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]

    growing = Growing(Random(1), known)
    letters = naive.byte_letters()
    for _ in range(150):
        text = growing.text(8)
        pieces = known.bare.pre_tokenizer.pre_tokenize_str(text)
        expected = [
            token_id
            for piece, _ in pieces
            for token_id in merged(bytes(letters[letter] for letter in piece))
        ]
        assert known.encode_run(text, first=True) == expected


def test_only_the_first_run_is_a_first_piece():
    """Metaspace with ``prepend_scheme`` "first": a run behind a control gets no space before it.

    Oracle: the whole text by ``tokenizers``, which knows what is first.
    """
    pieces = ["<unk>", "<c>", "\u2581", "a", "b", "\u2581a", "\u2581b", "\u2581ab", "ab"]
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": 1, "content": "<c>", "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False, "special": True}
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": "\u2581",
            "prepend_scheme": "first",
            "split": False,
        },
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": [["\u2581", "a"], ["\u2581", "b"], ["\u2581a", "b"], ["a", "b"]],
        },
    }
    known = Vocabulary.of("first", description, bos="<c>", eos="")
    template = Template("joined", "{% for m in messages %}{{ m.content }}<c>{% endfor %}", known)
    whole = Tokenizer.from_str(json.dumps(description))
    items = [{"role": "user", "content": text} for text in ("ab", "ab", " b")]
    for prefix in ([], [{"role": "user", "content": ""}]):
        text = generic.render(template, [*prefix, *items])
        expected = whole.encode(text, add_special_tokens=False).ids
        for trust in ("strict", "compat"):
            assert generic.encode(template, [*prefix, *items], trust=trust) == expected
    assert known.spell(expected) == b"<c>ab<c>ab<c> b<c>"
