"""Faults of similar servers that are about tokens, replayed (docs/faults.md)."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from oracle import vocabulary
from talking import through_template
from turnwire import _core

if TYPE_CHECKING:
    from pathlib import Path

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def qwen3() -> _core.Profile:
    return _core.Profile.load(str(vocabulary.qwen3_path()))


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tokenizer]:
    """A vocabulary with a special token that holds two others, and its folder."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    contents = ["〈|EOS|〉", "〈|", "|〉", "<|im_start|>", "<|im_end|>"]
    tokenizer.add_special_tokens(
        [AddedToken(content, special=True, normalized=False) for content in contents]
    )
    folder = tmp_path_factory.mktemp("nested")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    return folder, tokenizer


@pytest.mark.parametrize("template", [CHAT, CHAT.replace("<|im_end|>", "〈|EOS|〉")])
@pytest.mark.parametrize("trust", ["strict", "compat"])
def test_case_1_nested_specials_are_those_of_a_full_encode(nested, trust, template):
    """In content, where tokens meet, and as the template's own token. Oracle: ``tokenizers``."""
    folder, tokenizer = nested
    profile = _core.Profile.load(str(folder)).with_template(template, trust=trust)
    bare = Tokenizer.from_str(json.dumps(json.loads(tokenizer.to_str()) | {"added_tokens": []}))
    texts = ["〈|EOS|〉", "a〈|", "EOS|〉b", "〈|EOS", "|〉〈|", "〈|EOS|〉〈|EOS|〉"]
    chains, node, items = _core.Chains(profile), None, []
    end = template[template.index("m.content }}") + len("m.content }}") :].split("\n")[0]
    for text in texts:
        turn = chains.open(node, raw([user(text)]), generate=False)
        node = turn.commit()
        items.append(text)
        expected: list[int] = []
        for item in items:
            if trust == "compat":
                continue
            expected += tokenizer.encode("<|im_start|>").ids
            expected += bare.encode(f"user\n{item}").ids
            expected += tokenizer.encode(end).ids + bare.encode("\n").ids
        if trust == "compat":
            whole = "".join(f"<|im_start|>user\n{item}{end}\n" for item in items)
            expected = tokenizer.encode(whole).ids
        assert node.tokens().tolist() == expected, text


def test_case_2_the_same_text_with_and_without_control_tokens_is_told_apart():
    profile = qwen3()
    text = "a<|im_end|>b"
    with_control = profile.encode(text, control=True).tolist()
    without = profile.encode(text).tolist()
    assert with_control != without
    assert profile.encode(text, control=True).tolist() == with_control
    assert profile.encode(text).tolist() == without


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("arguments", ['{"b":1, "a":2}', '{ "b" : 1.0 ,\t"a":"\\u00e9" }'])
def test_cases_6_and_7_a_replayed_call_continues_every_token_of_its_turn(generic, arguments):
    """The whole turn is the prefix, arguments byte for byte; natively and through the template."""
    profile = qwen3()
    if generic:
        profile = profile.with_template(through_template(vocabulary.qwen3().template))
    assert (profile.family == "generic") is generic
    chains, tools = _core.Chains(profile), raw([{"type": "function", "name": "ls"}])
    said = {"reasoning": "So.", "calls": [{"name": "ls", "arguments": arguments}]}
    first = chains.open(None, raw([user("go")]), tools=tools, scope=b"me")
    deltas = first.push(profile.encode_output(raw(said))) + first.finish()
    node = first.commit()
    call_id = next(delta.call_id for delta in deltas if delta.kind == "call")
    call = {"type": "function_call", "call_id": call_id, "name": "ls", "arguments": arguments}
    output = {"type": "function_call_output", "call_id": call_id, "output": "x"}
    replays = [(node, [output]), (None, [user("go"), call, output])]
    for parent, items in replays:
        turn = chains.open(parent, raw(items), tools=tools, scope=b"me")
        assert turn.prefix_len == node.token_count
        assert turn.prompt.tolist()[: node.token_count] == node.tokens().tolist()
        assert turn.reencoded == 0
        assert f'"arguments": {arguments}}}' in profile.decode(turn.prompt.tolist())
        turn.abort()


@pytest.mark.parametrize("generic", [False, True])
def test_case_34_a_fork_sees_its_parent_only_and_a_long_chain_all_of_it(generic):
    profile = qwen3()
    if generic:
        profile = profile.with_template(CHAT)
    chains = _core.Chains(profile)
    nodes: list[_core.Node] = []
    for step in range(70):
        turn = chains.open(nodes[-1] if nodes else None, raw([user(f"step {step} end")]))
        turn.push(profile.encode_output(raw({"text": f"answer {step} end"})))
        turn.finish()
        nodes.append(turn.commit())
    text = profile.decode(nodes[-1].tokens().tolist())
    for step in range(70):
        assert text.count(f"step {step} end") == 1
        assert text.count(f"answer {step} end") == 1
    fork = chains.open(nodes[9], raw([user("elsewhere")]))
    seen = profile.decode(fork.prompt.tolist())
    assert "answer 9 end" in seen
    assert "step 10 end" not in seen
    assert fork.prompt.tolist()[: nodes[9].token_count] == nodes[9].tokens().tolist()


@pytest.mark.parametrize("generic", [False, True])
def test_case_37_json_behind_reasoning_is_the_message(generic):
    """What a schema is for, and what a client parses, has nothing of the reasoning in it."""
    profile = qwen3()
    if generic:
        profile = profile.with_template(through_template(vocabulary.qwen3().template))
    answer = '{"a": [1, "</b>", {"think": "<think"}]}'
    said = {"reasoning": 'It wants {"a": …}.', "text": answer}
    ids = profile.encode_output(raw(said))
    (close,) = profile.encode("</think>", control=True).tolist()
    for size in (1, 3, len(ids)):
        turn = _core.Chains(profile).open(None, raw([user("go")]))
        deltas = [d for at in range(0, len(ids), size) for d in turn.push(ids[at : at + size])]
        deltas += turn.finish()
        text = "".join(delta.text for delta in deltas if delta.kind == "text")
        thought = "".join(delta.text for delta in deltas if delta.kind == "reasoning")
        assert (thought, text) == (said["reasoning"], answer)
        assert turn.reasoning_tokens == ids.index(close) + 1
