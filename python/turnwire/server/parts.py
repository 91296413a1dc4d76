"""What a server is built from: a profile and an engine, as the configuration names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnwire._core import Profile
from turnwire.engine.sim import Script, SimEngine
from turnwire.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from turnwire.config import Config
    from turnwire.engine.base import Engine


@dataclass(frozen=True, slots=True)
class Parts:
    """A profile and the engine that samples for it."""

    profile: Profile
    engine: Engine


def build(config: Config, *, profile: Profile | None = None, engine: Engine | None = None) -> Parts:
    """Build what is not given. Blocking: may read files of many megabytes.

    Raises StartupError classes. What the configuration asks for and cannot be had is an error:
    nothing falls back to the sim.
    """
    if profile is None:
        if config.model.tokenizer is None:
            raise ConfigError("model.tokenizer is not set", param="model.tokenizer")
        profile = load_profile(config, config.model.tokenizer)
    if engine is None:
        script = Script.load(config.engine.script) if config.engine.script else Script()
        engine = SimEngine(script, profile, model=config.model.name or "sim")
    return Parts(profile, engine)


def load_profile(config: Config, path: Path) -> Profile:
    """Load a vocabulary and template from a Hugging Face folder or a GGUF. Raises ProfileError."""
    load = Profile.from_hf if path.is_dir() else Profile.from_gguf
    return load(str(path), trust=config.model.trust)
