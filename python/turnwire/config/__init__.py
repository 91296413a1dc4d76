"""Every setting, named once: read from flags, environment and file, checked, and printed.

The settings themselves stand in :mod:`turnwire.config.sections`.

A value is taken from the first of these that has it: command-line flags, the environment
(``TURNWIRE_SECTION__NAME``), a TOML file, the default below. An unknown name is an error that says
which, so that a typing mistake cannot switch a limit off. ``docs/configuration.md`` lists the same
fields, and a test keeps it complete.

Secrets are :class:`pydantic.SecretStr`: no ``repr``, log line or ``--print-config`` shows them.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from turnwire.config.sections import (
    AuthSection,
    EngineSection,
    LimitsSection,
    LogSection,
    MemorySection,
    ModelSection,
    Section,
    ServerSection,
    StoreSection,
    ToolsSection,
    WebSocketSection,
)
from turnwire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ENV_PREFIX = "TURNWIRE_"
ENV_DELIMITER = "__"


class Config(BaseSettings):
    """The whole configuration.

    ``Config()`` reads the environment; :func:`load` a file and flags as well.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    SECTIONS: ClassVar[tuple[str, ...]] = (
        "server", "websocket", "limits", "auth", "model", "engine", "tools", "store", "memory",
        "log",
    )  # fmt: skip

    server: ServerSection = ServerSection()
    websocket: WebSocketSection = WebSocketSection()
    limits: LimitsSection = LimitsSection()
    auth: AuthSection = AuthSection()
    model: ModelSection = ModelSection()
    engine: EngineSection = EngineSection()
    tools: ToolsSection = ToolsSection()
    store: StoreSection = StoreSection()
    memory: MemorySection = MemorySection()
    log: LogSection = LogSection()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put flags over environment over file (no ``.env`` files, no secrets folder)."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def public(self) -> bool:
        """Whether the server listens beyond this machine."""
        return not is_loopback(self.server.host)

    def check(self) -> None:
        """Raise ConfigError for a combination that is not safe or cannot work."""
        if self.public and not self.auth.keys and self.auth.anonymous != "everywhere":
            raise ConfigError(
                f"server.host is {self.server.host}, which other machines can reach, and there are "
                'no API keys. Set auth.keys (for instance TURNWIRE_AUTH__KEYS=\'{"me": "sk-…"}\') '
                "or listen on 127.0.0.1.",
                param="auth.keys",
            )
        if self.engine.kind in {"vllm", "sglang"} and self.engine.url is None:
            raise ConfigError(
                f"engine.kind is '{self.engine.kind}', which runs elsewhere. Set engine.url.",
                param="engine.url",
            )
        if self.engine.kind == "sim" and self.engine.url is not None:
            raise ConfigError(
                "The sim of engine.kind runs in this process. For `turnwire sim` elsewhere, set "
                "engine.kind to 'vllm': it speaks vLLM's dialect.",
                param="engine.url",
            )


def is_loopback(host: str) -> bool:
    """Whether ``host`` names this machine only. A name other than localhost counts as public."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def load(
    file: Path | None = None, flags: Mapping[str, Mapping[str, object]] | None = None
) -> Config:
    """Return the configuration of flags, environment and ``file`` (or ``$TURNWIRE_CONFIG``).

    ``flags`` holds only what was given, by section. Raises ConfigError that names the setting, and
    never quotes a value (it may be a secret).
    """
    if file is None and (named := os.environ.get(f"{ENV_PREFIX}CONFIG")):
        file = Path(named)
    if file is not None and not file.is_file():
        raise ConfigError(f"no such configuration file: {file}")
    _refuse_unknown_environment()
    layered = type("Config", (Config,), {"model_config": SettingsConfigDict(toml_file=file)})
    given = {section: dict(values) for section, values in (flags or {}).items() if values}
    try:
        config = cast("Config", layered(**given))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    except ValidationError as error:
        raise ConfigError(_explain(error), param=_path(error.errors()[0]["loc"])) from None
    except ValueError as error:  # pydantic-settings: a variable that should hold JSON does not
        raise ConfigError(f"a {ENV_PREFIX}* variable cannot be read: {error}") from None
    config.check()
    return config


def _refuse_unknown_environment() -> None:
    """Raise ConfigError for a variable of no section: pydantic-settings would ignore it."""
    for name in os.environ:
        section, delimiter, _ = name.removeprefix(ENV_PREFIX).lower().partition(ENV_DELIMITER)
        if name.startswith(ENV_PREFIX) and delimiter and section not in Config.SECTIONS:
            raise ConfigError(f"unknown setting in the environment: {name}", param=name)


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


def _explain(error: ValidationError) -> str:
    lines = []
    for fault in error.errors(include_input=False, include_url=False):
        path = _path(fault["loc"])
        if fault["type"] == "extra_forbidden":
            near = difflib.get_close_matches(path, [name for name, _ in fields()], n=1)
            lines.append(
                f"unknown setting '{path}'" + (f" (did you mean '{near[0]}'?)" if near else "")
            )
        else:
            lines.append(f"{path}: {fault['msg']}")
    return "; ".join(lines)


def fields() -> Iterator[tuple[str, Any]]:
    """Yield every setting as ``(section.name, pydantic field)``."""
    for section in Config.SECTIONS:
        model = cast("type[Section]", Config.model_fields[section].annotation)
        for name, field in model.model_fields.items():
            yield f"{section}.{name}", field


def print_toml(config: Config) -> str:
    """Return the configuration as a TOML file, secrets hidden, unset values as comments."""
    lines: list[str] = []
    for section in Config.SECTIONS:
        lines.append(f"[{section}]")
        for name, value in getattr(config, section).model_dump(mode="json").items():
            lines.append(f"# {name} =" if value is None else f"{name} = {toml_value(value)}")
        lines.append("")
    return "\n".join(lines)


def toml_value(value: object) -> str:
    """Return a plain value as TOML."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(key)} = {toml_value(item)}" for key, item in value.items())
            + "}"
        )
    return json.dumps(value, ensure_ascii=False)
