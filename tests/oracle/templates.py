"""Every chat template that ``make vocab`` fetches, each with a vocabulary that fits it.

Where no vocabulary of a model's family is to be had, another stands in; the template's control
tokens are plain text in it then, or some of them are.
"""

from __future__ import annotations

from functools import cache

from oracle import vocabulary
from oracle.generic import Template

FOLDERS = ("llama.cpp", "trl")

_FITTING = (
    # What the name holds, in lower case, and the vocabulary; the first that fits.
    ("r1-distill-llama", "llama3.1"),
    ("r1-distill-qwen", "qwen3"),
    ("deepseek", "deepseek-v4"),
    ("gpt-oss", "gpt-oss"),
    ("gptoss", "gpt-oss"),
    ("gemma4", "gemma4"),
    ("gemma-4", "gemma4"),
    ("diffusion_gemma", "gemma4"),
    ("gemma", "gemma3"),
    ("minimax-m3", "minimax"),
    ("kimi-k3", "kimi-k3"),
    ("mistral-7b", "mistral-v0.1"),
    ("mistral-nemo", "mistral-v0.1"),
    ("mistral", "tekken"),
    ("ministral", "tekken"),
    ("devstral", "tekken"),
    ("llava", "mistral-v0.1"),
    ("phi", "mistral-v0.1"),
    ("llama", "llama3.1"),
    ("functionary", "llama3.1"),
    ("idefics", "llama3.1"),
)

KNOWN_DIFFERENCES = {
    "llama.cpp/llama-cpp-deepseek-r1": (
        "`tools | map(...) | tojson`: jinja2 cannot dump a generator, so there the template has no "
        "tool branch; minijinja's `map` makes a list"
    ),
    "llama.cpp/meetkai-functionary-medium-v3.1": (
        "`'...' | safe + text`: in jinja2 that escapes the text as HTML, which nobody wants"
    ),
}
"""Templates whose tools and calls the core prints in another way than jinja2, and why."""

REFUSED = ("llama.cpp/fireworks-ai-llama-3-firefunction-v2",)
"""Templates that take no conversation without variables that only their own server knows."""


@cache
def names() -> tuple[str, ...]:
    """Their names: folder and file without its ending. Without those that take no conversation."""
    found = []
    for folder in FOLDERS:
        path = vocabulary.VOCABULARIES / "templates" / folder
        files = sorted(path.glob("*.jinja"))
        if not files:
            raise FileNotFoundError(f"{path} is empty: run `make vocab` (tests do not skip)")
        found += [f"{folder}/{file.stem}" for file in files]
    return tuple(name for name in found if name not in REFUSED)


def text_of(name: str) -> str:
    """A template's text."""
    path = vocabulary.VOCABULARIES / "templates" / f"{name}.jinja"
    return path.read_text(encoding="utf-8")


def vocabulary_of(name: str) -> str:
    """The name of the vocabulary to use a template with."""
    file = name.split("/")[1].lower()
    return next((fitting for part, fitting in _FITTING if part in file), "qwen3")


@cache
def template(name: str) -> Template:
    """A template with its vocabulary."""
    return Template(name, text_of(name), vocabulary.generic(vocabulary_of(name)))
