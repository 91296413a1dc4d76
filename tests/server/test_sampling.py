"""Whose choice of sampling counts: the request's, then the model's files', then the engine's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from oracle import vocabulary
from running import connect
from turnwire.engine.base import Sampling
from turnwire.engine.model_sampling import model_sampling
from turnwire.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

# As Qwen3 publishes it; one field more, that no request of this API has.
PUBLISHED = {
    "bos_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "repetition_penalty": 1.05,
}


def folder_with(folder: Path, config: object) -> Path:
    """A model's folder with this ``generation_config.json``."""
    for file in vocabulary.qwen3_path().iterdir():
        if file.name != "generation_config.json":
            (folder / file.name).symlink_to(file.resolve())
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


async def test_the_models_files_decide_what_a_request_leaves_open(serve, tmp_path):
    folder = folder_with(tmp_path, PUBLISHED)
    server = serve(model={"tokenizer": folder})
    async with connect(server) as socket:
        default = await socket.response("Hello")
        own = await socket.response("Hello", temperature=0, top_p=0.5)
    assert (default["temperature"], default["top_p"]) == (0.6, 0.95)
    assert (own["temperature"], own["top_p"]) == (0, 0.5)
    filed = Sampling(temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1.05)
    asked = Sampling(temperature=0, top_p=0.5, top_k=20, repetition_penalty=1.05)
    assert [recording.sampling for recording in server.engine.recordings] == [filed, asked]


def test_a_folder_without_the_file_leaves_all_open(tmp_path):
    assert model_sampling(tmp_path) == Sampling()
    assert model_sampling(tmp_path / "model.gguf") == Sampling()


def test_no_limit_on_top_k_has_one_form(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"top_k": -1, "top_p": null}')
    assert model_sampling(tmp_path) == Sampling(top_k=0)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ([], "generation_config.json"),
    ],
)
def test_a_value_that_no_sampler_knows_is_named(config, named, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=named):
        model_sampling(tmp_path)
