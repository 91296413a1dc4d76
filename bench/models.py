"""The models that are measured: real vocabularies under their templates, one of each family."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

from oracle import templates, vocabulary
from turnwire import _core

QWEN = "Qwen 3"
MODELS = {
    QWEN: ("qwen3", "llama.cpp/Qwen-Qwen3-0.6B"),
    "gpt-oss": ("gpt-oss", "llama.cpp/openai-gpt-oss-120b"),
    "DeepSeek V4": ("deepseek-v4", "llama.cpp/deepseek-ai-DeepSeek-V4"),
}


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="turnwire-bench-")


@cache
def folder_of(model: str) -> Path:
    """What a checkpoint of the model has beside its weights."""
    name, template = MODELS[model]
    files = vocabulary.generic_path(name)
    folder = Path(_scratch().name) / name
    folder.mkdir()
    (folder / "tokenizer.json").symlink_to((files / "tokenizer.json").resolve())
    config = json.loads((files / "tokenizer_config.json").read_text(encoding="utf-8"))
    config = {key: config.get(key) for key in ("bos_token", "eos_token")}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(templates.text_of(template), encoding="utf-8")
    return folder


@cache
def profile_of(model: str) -> _core.Profile:
    """The model's profile; served by its native renderer."""
    found = _core.Profile.load(str(folder_of(model)))
    assert found.not_native is None, found.not_native
    return found
