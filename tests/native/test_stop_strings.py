"""Stop strings (``generation_config.json``): text and tokens end at the same place.

The oracle is the text itself, cut at the first stop string by ``str.partition``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle import vocabulary
from talking import ASK, raw, said
from turnwire import _core
from turnwire.errors import ProfileError

if TYPE_CHECKING:
    from pathlib import Path

    from oracle.vocabulary import Vocabulary

CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
STOPS = ["\nUser:", "###", "é!"]
NAMES = ("qwen3", "mistral-v0.1", "gemma3")


def folder_of(scratch: Path, name: str, generation: Any) -> Path:
    folder = scratch / f"{name}-{abs(hash(json.dumps(generation)))}"
    if not folder.exists():
        folder.mkdir()
        files = vocabulary.generic_path(name)
        (folder / "tokenizer.json").symlink_to(files / "tokenizer.json")
        config = json.loads((files / "tokenizer_config.json").read_text(encoding="utf-8"))
        kept = {key: config.get(key) for key in ("bos_token", "eos_token")}
        (folder / "tokenizer_config.json").write_text(json.dumps(kept), encoding="utf-8")
        (folder / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=NAMES)
def model(request, tmp_path_factory) -> tuple[_core.Chains, Vocabulary]:
    scratch = tmp_path_factory.mktemp("stop strings")
    profile = _core.Profile.load(str(folder_of(scratch, request.param, {"stop_strings": STOPS})))
    return _core.Chains(profile), vocabulary.generic(request.param)


texts = st.lists(
    st.sampled_from(["a", " b", "\n", "User", ":", "User:", "#", "##", "é", "!", "中", "🙂", " "]),
    min_size=1,
    max_size=12,
).map(lambda pieces: "x" + "".join(pieces))  # an answer of blanks is none


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=texts, parts=st.lists(st.integers(1, 4), max_size=8), spelled=st.booleans())
def test_text_and_tokens_end_before_the_first_one(model, text, parts, spelled):
    chains, known = model
    ids = said(known, text)
    if spelled:  # character by character
        ids = [token for letter in text for token in said(known, letter)]
    turn = chains.open(None, raw(list(ASK)))
    prompt = turn.prompt.tolist()
    deltas: list[_core.Delta] = []
    rest = list(ids)
    for size in [*parts, len(ids)]:
        deltas += turn.push(rest[:size])
        rest = rest[size:]
        if turn.stopped:
            break
    stopped = turn.stopped
    deltas += turn.finish()
    told = "".join(delta.text for delta in deltas)
    whole = known.spell(ids).decode(errors="replace")
    ends = [whole.find(stop) for stop in STOPS if stop in whole]
    assert stopped == bool(ends)
    assert told == (whole[: min(ends)] if ends else whole)
    node = turn.commit()
    tokens = node.tokens().tolist()
    assert tokens[: len(prompt)] == prompt
    kept = tokens[len(prompt) :]
    assert known.spell(kept).decode(errors="replace") == told
    # What was sampled is as it was, but for what the cut token spelled before.
    same = next((at for at, (a, b) in enumerate(zip(kept, ids, strict=False)) if a != b), len(kept))
    assert known.spell(ids[: same + 1]).startswith(known.spell(kept)) or same == len(kept)


def test_the_conversation_goes_on_behind_it(model):
    chains, known = model
    turn = chains.open(None, raw(list(ASK)))
    turn.push(said(known, "Sure.\nUser: and then?"))
    assert turn.stopped
    assert turn.push(said(known, "more")) == []
    turn.finish()
    node = turn.commit()
    after = chains.open(node, raw(list(ASK)))
    assert known.spell(after.prompt.tolist()).decode().endswith("Sure.\nuser: x\nassistant:")


@pytest.mark.parametrize("wrong", [7, [7], [""], {"a": "b"}])
def test_what_is_no_stop_string_is_refused(wrong, tmp_path):
    folder = folder_of(tmp_path, "qwen3", {"stop_strings": wrong})
    with pytest.raises(ProfileError, match="'stop_strings' is neither a text nor a list"):
        _core.Profile.load(str(folder))


def test_one_alone_needs_no_list(tmp_path):
    profile = _core.Profile.load(str(folder_of(tmp_path, "qwen3", {"stop_strings": "b"})))
    turn = _core.Chains(profile).open(None, raw(list(ASK)))
    assert [delta.text for delta in turn.push(profile.encode("abc"))] == ["a"]
