"""Placeholders and bounds: nothing is lost, nothing forged, by whatever a template does to them."""

from __future__ import annotations

import json

from oracle import vocabulary
from oracle.generic import Template
from oracle.hidden import Controls, Hidden, marked


def test_placeholders_are_filled_as_they_were_changed():
    hide = Hidden(Controls(()))
    said = ' \n"é" \\ <b>\t '
    masked = hide.text(said)
    assert masked.startswith(" \n")
    assert masked.endswith("\t ")
    assert hide.fill(masked) == said
    for ascii_only in (False, True):
        dumped = marked(json.dumps([masked, "é\x7f"], ensure_ascii=False), ascii_only=ascii_only)
        assert hide.fill(dumped) == json.dumps([said, "é\x7f"], ensure_ascii=ascii_only)
        twice = marked(json.dumps(dumped, ensure_ascii=False), ascii_only=False)
        assert json.loads(json.loads(hide.fill(twice))) == [said, "é\x7f"]
    assert hide.text("a b") != hide.text("a b")
    assert hide.text(" \n") == " \n"
    for quoted in ("it's", 'say "x"', """it's "x" """, "\\ \n", "\x01\u2028", "é", " x\t"):
        assert hide.fill(repr([hide.text(quoted)])) == repr([quoted])


def test_words_stay_visible_and_no_control_is_in_them():
    controls = Controls(("<think>", "<|im_end|>", "|>|", "[INST]"))
    hide = Hidden(controls)
    assert hide.word("read_file") == "read_file"
    for text in (
        "think",
        "THINK",
        "a b",
        " <THink>\n",
        "<|im_end|>|",
        "é",
        "<<think>",
        "\u27e6000000\u27e7",
    ):
        shown = hide.word(text)
        assert shown != text
        assert shown.strip()[0] == shown.strip()[-1] == "\ufd3e"
        assert not any(control in shown.lower() for control in ("<think>", "<|im_end|>", "|>|"))
        assert hide.fill(shown) == text
        for ascii_only in (False, True):
            dumped = marked(json.dumps(shown, ensure_ascii=False), ascii_only=ascii_only)
            assert hide.fill(dumped) == json.dumps(text, ensure_ascii=ascii_only)
        assert hide.fill(repr({shown: [shown]})) == repr({text: [text]})
    assert hide.word("<|im_end|>|") == "\ufd3e<\ufd3e|im_end|\ufd3e>|\ufd3e"
    assert [hide.word(blank) for blank in ("", " \n")] == ["", " \n"]
    value = {"a b": ["x", {"think": 1.0}], "c": "\n d", "e": None}
    assert json.loads(hide.fill(json.dumps(hide.value(value), ensure_ascii=False))) == value


def test_words_are_sorted_by_what_bounds_them_and_then_by_what_they_say():
    template = Template(
        "sorted",
        "{% for k, v in messages[0].tool_calls[0].function.arguments "
        "| dictsort %}{{ k }}{{ v | tojson }}{% endfor %}",
        vocabulary.generic("llama3.1"),
    )
    written = {"zeta": 1, "é": 2, "B y": 3, "a x": 4, "Alpha": 5}
    hide = Hidden(template.controls)
    call = {"function": {"name": "f", "arguments": hide.value(written)}}
    text = template.render([{"role": "assistant", "tool_calls": [call]}], masked=True)
    assert hide.fill(text) == "Alpha5zeta1a x4B y3é2"


def test_words_that_a_template_could_frame():
    tokens = (
        "<think>",
        "</tool_call>",
        "<|im_start|>",
        "<\uff5cUser\uff5c>",
        "[INST]",
        "plain",
        "<a b>",
    )
    controls = Controls(tokens)
    assert controls.framed == {"think", "tool_call", "im_start", "user", "inst"}
    assert all(map(controls.are_framed_by, ("think", "Think", "INST", "User", "user")))
    assert not any(map(controls.are_framed_by, ("plain", "a", "thinks")))
