"""What a server is built from: a profile and an engine, as the configuration names them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnwire._core import Profile
from turnwire.engine.base import Sampling
from turnwire.engine.demo_model import SMOLLM2, cache_directory, fetch_demo_model
from turnwire.engine.llamacpp import LlamaCppEngine, require_xllamacpp
from turnwire.engine.model_sampling import model_sampling
from turnwire.engine.sim import Script, SimEngine
from turnwire.errors import ConfigError
from turnwire.server.agreement import check_tokenizers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from turnwire.config import Config
    from turnwire.engine.base import Engine

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """A profile, the engine that samples for it, and how the model wants to be sampled."""

    profile: Profile
    engine: Engine
    sampling: Sampling

    async def start(self) -> None:
        """Start the engine, and see that it and the profile mean the same ids.

        Raises StartupError classes; the engine is closed then.
        """
        try:
            await self.engine.start()
            await check_tokenizers(self.engine, self.profile)
        except BaseException:
            await self.engine.close()
            raise


def build(
    config: Config,
    *,
    profile: Profile | None = None,
    engine: Engine | None = None,
    say: Callable[[str], None] = log.info,
) -> Parts:
    """Build what is not given. Blocking: reads files of many megabytes, and may fetch one.

    ``say`` gets lines for the user about a download. Raises StartupError classes. What the
    configuration asks for and cannot be had is an error: nothing falls back to the sim.
    """
    wants_llamacpp = engine is None and config.engine.kind == "llamacpp"
    if wants_llamacpp:
        require_xllamacpp()  # before anything is fetched for it
    script = Script.load(config.engine.script) if config.engine.script else Script()
    model_file = config.engine.gguf
    if model_file is None and (wants_llamacpp or (profile is None and not config.model.tokenizer)):
        model_file = fetch_demo_model(say=say)
    tokenizer = config.model.tokenizer
    sampling = model_sampling(tokenizer) if tokenizer is not None else Sampling()
    if profile is None:
        profile = load_profile(config, tokenizer or _given(model_file))
    if engine is None and wants_llamacpp:
        engine = LlamaCppEngine(
            _given(model_file),
            model=config.model.name or (None if config.engine.gguf else SMOLLM2.name),
            context_length=config.engine.context_length,
            kv_tokens=config.engine.kv_tokens,
            parallel=config.engine.parallel,
            threads=config.engine.threads,
        )
    elif engine is None:
        engine = SimEngine(script, profile, model=config.model.name or "sim")
    return Parts(profile, engine, sampling)


def load_profile(config: Config, path: Path) -> Profile:
    """Load a vocabulary and template from a Hugging Face folder or a GGUF. Raises ProfileError."""
    return Profile.load(
        str(path),
        trust=config.model.trust,
        history=config.model.history,
        verdicts=str(cache_directory() / "encoders"),
    )


def _given(path: Path | None) -> Path:
    if path is None:
        raise ConfigError("Neither a tokenizer nor a model file is known.", param="model.tokenizer")
    return path
