"""How a model's authors want it sampled: ``generation_config.json`` in its folder.

The fields are those that vLLM takes from the file by default. A request's own choice wins over the
file, and the file over the engine's default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from turnwire.engine.base import Sampling
from turnwire.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

FILE = "generation_config.json"


class _GenerationConfig(msgspec.Struct):
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None


def model_sampling(folder: Path) -> Sampling:
    """Read a model folder's defaults; all open without the file, or for a GGUF.

    Raises ConfigError, naming the file and the field, for a value that no sampler knows.
    """
    file = folder / FILE
    if not file.is_file():
        return Sampling()
    try:
        given = msgspec.json.decode(file.read_bytes(), type=_GenerationConfig)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file}: {error}", param="model.tokenizer") from None
    top_k = None if given.top_k is None else max(given.top_k, 0)  # -1 and 0 both mean no limit
    return Sampling(
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=top_k,
        min_p=given.min_p,
        repetition_penalty=given.repetition_penalty,
    )
