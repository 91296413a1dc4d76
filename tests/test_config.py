"""Settings: where they come from, what is refused, what is hidden, and that all are documented."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from turnwire import config
from turnwire.config import Config
from turnwire.errors import ConfigError

DOCUMENT = Path(__file__).parents[1] / "docs" / "configuration.md"
KEY = "sk-SECRET-0123456789"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    import os  # noqa: PLC0415

    for name in list(os.environ):
        if name.startswith("TURNWIRE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "turnwire.toml"
        path.write_text(text)
        return path

    return write


def test_the_defaults_are_the_issues():
    defaults = config.load()
    assert (defaults.server.host, defaults.server.port) == ("127.0.0.1", 8787)
    assert defaults.limits.frame_bytes == 32 * 1024 * 1024
    assert defaults.limits.active_per_connection == 16
    assert defaults.limits.lanes_per_connection == 32
    assert defaults.limits.connection_seconds == 3600
    assert defaults.server.keep_alive_seconds == 15
    assert defaults.server.origins == ()
    assert defaults.websocket.enabled is True
    assert defaults.websocket.compression is False
    assert defaults.engine.kind == "llamacpp"


def test_flags_win_over_environment_over_file_over_defaults(file, monkeypatch):
    path = file("[server]\nport = 1\ndrain_seconds = 1\nroot_path = '/file'\n")
    monkeypatch.setenv("TURNWIRE_SERVER__PORT", "2")
    monkeypatch.setenv("TURNWIRE_SERVER__DRAIN_SECONDS", "2")
    loaded = config.load(path, {"server": {"port": 3}}).server
    assert (loaded.port, loaded.drain_seconds, loaded.root_path) == (3, 2, "/file")
    assert loaded.host == "127.0.0.1"


def test_the_file_can_be_named_in_the_environment(file, monkeypatch):
    monkeypatch.setenv("TURNWIRE_CONFIG", str(file("[server]\nport = 4\n")))
    assert config.load().server.port == 4


def test_lists_and_maps_in_the_environment(monkeypatch):
    monkeypatch.setenv("TURNWIRE_SERVER__ORIGINS", "https://a.example, https://b.example")
    monkeypatch.setenv("TURNWIRE_MODEL__ALIASES", '["x", "y"]')
    monkeypatch.setenv("TURNWIRE_AUTH__KEYS", json.dumps({"ci": KEY}))
    loaded = config.load()
    assert loaded.server.origins == ("https://a.example", "https://b.example")
    assert loaded.model.aliases == ("x", "y")
    assert loaded.auth.keys["ci"].get_secret_value() == KEY


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nprot = 1\n", "unknown setting 'server.prot' (did you mean 'server.port'?)"),
        ("[sevrer]\nport = 1\n", "unknown setting 'sevrer'"),
        ("port = 1\n", "unknown setting 'port'"),
        ("[server]\nport = 'x'\n", "server.port"),
        ("[server]\nport = 70000\n", "server.port"),
        ("[limits]\nturns = 0\n", "limits.turns"),
        ("[engine]\nkind = 'gpt'\n", "engine.kind"),
        ("[server\n", "not valid TOML"),
        ("[auth.keys]\na = 'short'\n", "key 'a' is shorter than 16 characters"),
        ("[auth.keys]\na = 'sha256:12'\n", "64 hexadecimal digits"),
    ],
)
def test_what_is_wrong_is_named(file, text, message):
    with pytest.raises(ConfigError) as refused:
        config.load(file(text))
    assert message in refused.value.message


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no such configuration file"):
        config.load(tmp_path / "none.toml")


@pytest.mark.parametrize("name", ["TURNWIRE_SERVER__PROT", "TURNWIRE_SEVRER__PORT"])
def test_a_misspelt_variable_is_named(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match=r"(?i)prot|sevrer"):
        config.load()


def test_a_variable_that_is_no_json_is_an_error_without_its_value(monkeypatch):
    monkeypatch.setenv("TURNWIRE_AUTH__KEYS", f"{{{KEY}")
    with pytest.raises(ConfigError) as refused:
        config.load()
    assert KEY not in refused.value.message


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "myhost.example"])
def test_a_public_bind_needs_keys(host):
    with pytest.raises(ConfigError, match=r"auth\.keys"):
        config.load(flags={"server": {"host": host}})
    gate = {"auth": {"anonymous": "everywhere"}}
    assert config.load(flags={"server": {"host": host}, **gate}).public
    keys = {"auth": {"keys": {"me": KEY}}}
    assert config.load(flags={"server": {"host": host}, **keys}).public


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_does_not(host):
    assert not config.load(flags={"server": {"host": host}}).public


def test_no_secret_is_ever_shown(file):
    loaded = config.load(file(f"[auth.keys]\nme = '{KEY}'\n"))
    for shown in (repr(loaded), str(loaded), config.print_toml(loaded), loaded.model_dump_json()):
        assert KEY not in shown
    with pytest.raises(ConfigError) as refused:
        config.load(file("[auth.keys]\nme = 'SHORT-SECRET'\n"))
    assert "SHORT-SECRET" not in str(refused.value)
    with pytest.raises(ValidationError) as invalid:
        Config(auth={"keys": {"me": "SHORT-SECRET"}})
    assert "SHORT-SECRET" not in str(invalid.value)


def test_what_is_printed_can_be_read_back(file):
    loaded = config.load(flags={"server": {"port": 5, "origins": ["https://é.example"]}})
    again = config.load(file(config.print_toml(loaded)))
    assert again.model_dump() == loaded.model_dump()


def test_it_cannot_be_changed():
    with pytest.raises(ValidationError):
        Config().server.port = 1


def test_every_setting_is_described_and_documented():
    text = DOCUMENT.read_text()
    rows = dict(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \| (.*?) \|", text, re.MULTILINE))
    described = dict(config.fields())
    assert rows.keys() == described.keys()
    for name, field in described.items():
        assert field.description, name
        section, key = name.split(".")
        default = getattr(getattr(Config(), section), key)
        assert rows[name] == f"`{config.toml_value(default)}`" if default is not None else "unset"


def test_the_documented_example_is_valid(file):
    example = re.search(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert example is not None
    tomllib.loads(example[1])
    config.load(file(example[1]))
