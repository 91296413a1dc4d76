"""Do the engine and the profile mean the same ids? Asked once, when an engine is attached (law 8).

A tokenizer that is almost right is worse than none: every prompt would be a little wrong, and
nothing would say so. So where the engine can encode text itself, it is asked, and one difference
ends the start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from turnwire.engine.base import TextEncoder
from turnwire.errors import EngineError, ProfileError, StartupError

if TYPE_CHECKING:
    from turnwire._core import Profile
    from turnwire.engine.base import Engine

log = logging.getLogger(__name__)

PROBES = (
    "Hello, world! It's what they'd've said: I'll, we're, don't.",
    "a  b   c\td\u00a0e\u3000f",
    "line\n\nline\r\nline \n  indented\n\t\ttabs\n",
    "1 22 333 4444 3.14159 1,000,000 0x1F 7th",
    "x = {'key': [1, 2.5, None]};  if (a != b) { return a->c; }",
    "naïve café Ångström Straße œuvre",
    "日本語のテキスト、한국어 텍스트\uff0c中文文本。",
    "שלום مرحبا नमस्ते สวัสดี",
    "e\u0301 vs \u00e9; \ufb01 ligature; Ⅷ ½ ²",
    "👩‍👩‍👧‍👦 🇫🇷 👍🏽 😀😀",
    "https://example.com/path?q=1&r=2#frag <b>bold</b> &amp;",
    "snake_case camelCase kebab-case SCREAMING_CASE i18n",
    " leading and trailing ",
    "\n",
    "....!!!???----====####",
    "﷽ \u200b\u200d\ufeff \u2028\u2029",
)
"""What tokenizers differ over: white space, digits, contractions, marks, scripts, code."""

CONTROL = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
"""Text in which both sides read the control tokens."""


async def check_tokenizers(engine: Engine, profile: Profile) -> None:
    """Compare the engine's own ids with the profile's, where it can encode text.

    Raises ProfileError, with the first text that they encode differently, and StartupError when
    the engine does not answer.
    """
    if not isinstance(engine, TextEncoder):
        return
    for text, control in [*((probe, False) for probe in PROBES), (CONTROL, True)]:
        ours = profile.encode(text, control=control).tolist()
        try:
            theirs = list(await engine.tokenize(text, special=control))
        except EngineError as error:
            raise StartupError(f"The engine cannot encode text: {error}") from error
        if ours != theirs:
            raise ProfileError(
                f"'{profile.name}' cannot be served: the engine encodes {text!r} as {theirs}, and "
                f"the tokenizer as {ours}. Is it the one of this model?"
            )
    log.info("the engine's tokenizer agrees on %d texts", len(PROBES) + 1)
