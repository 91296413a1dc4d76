"""What a server is built from: a profile and an engine, as the configuration names them."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnwire._core import Chains, Profile
from turnwire.engine.base import Sampling
from turnwire.engine.demo_model import SMOLLM2, cache_directory, fetch_demo_model
from turnwire.engine.llamacpp import LlamaCppEngine, require_xllamacpp
from turnwire.engine.llamacpp_remote import LlamaCppRemote
from turnwire.engine.model_sampling import model_sampling
from turnwire.engine.remote import Waits
from turnwire.engine.sglang import SglangEngine
from turnwire.engine.sim import Script, SimEngine
from turnwire.engine.vllm import VllmEngine
from turnwire.errors import ConfigError, ProfileError
from turnwire.server.agreement import check_templates, check_tokenizers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
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
    refuse: bool = True
    """Whether a disagreement between the two ends the start, or is only logged."""
    one_file: bool = False
    """Whether both read the same template: one that the engine runs otherwise is only logged."""

    async def start(self) -> None:
        """Start the engine, and see that it and the profile mean the same ids.

        Raises StartupError classes; the engine is closed then.
        """
        engine, profile = self.engine, self.profile
        try:
            await engine.start()
            await _agree(check_tokenizers(engine, profile), refuse=self.refuse)
            templates = check_templates(engine, profile, prompts_of(profile))
            await _agree(templates, refuse=self.refuse and not self.one_file)
        except BaseException:
            await engine.close()
            raise


async def _agree(checking: Awaitable[object], *, refuse: bool) -> None:
    try:
        await checking
    except ProfileError as error:
        if refuse:
            raise
        log.warning("%s Served all the same (engine.disagreement).", error.message)


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
    if engine is None and config.engine.url is not None:
        engine = remote_engine(config)
        if profile is None and config.model.tokenizer is None:
            raise ConfigError(
                f"The engine at {config.engine.url} samples ids; the model's vocabulary and "
                "template are needed here too. Set model.tokenizer (--tokenizer) to its Hugging "
                "Face folder or GGUF.",
                param="model.tokenizer",
            )
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
    return Parts(
        profile,
        engine,
        sampling,
        refuse=config.engine.disagreement == "refuse",
        one_file=wants_llamacpp and tokenizer is None,
    )


def prompts_of(profile: Profile) -> Callable[[bytes], list[int]]:
    """Return what turns a request's items into the prompt that ``profile`` renders."""
    chains = Chains(profile)

    def prompt(items: bytes) -> list[int]:
        turn = chains.open(None, items)
        try:
            return turn.prompt.tolist()
        finally:
            turn.abort()

    return prompt


def remote_engine(config: Config) -> Engine:
    """Describe the engine at ``engine.url``; nothing is sent yet."""
    section = config.engine
    assert section.url is not None
    waits = Waits(
        start=section.start_seconds,
        connect=section.connect_seconds,
        first_token=section.first_token_seconds,
        silence=section.silence_seconds,
    )
    api_key = section.api_key.get_secret_value() if section.api_key is not None else ""
    if section.kind == "llamacpp":
        return LlamaCppRemote(
            section.url,
            model=config.model.name or section.model,
            api_key=api_key,
            context_length=section.context_length,
            waits=waits,
            text_budget=section.prompt_text_bytes,
        )
    salt: bytes | None = None
    if section.cache_salt != "none":
        secret = section.cache_salt_secret
        salt = secret.get_secret_value().encode() if secret else secrets.token_bytes(32)
    engine = SglangEngine if section.kind == "sglang" else VllmEngine
    return engine(
        section.url,
        model=section.model,
        api_key=api_key,
        context_length=section.context_length,
        priorities=section.priorities,
        salt=salt,
        waits=waits,
        text_budget=section.prompt_text_bytes,
    )


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
