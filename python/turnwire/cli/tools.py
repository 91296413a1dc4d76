"""The demo's three tools. They really run, inside one folder and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE = {
    "harbour.txt": "The ferry leaves at noon. Bring the blue folder and two tickets.\n",
    "kitchen.txt": "Flour, butter, four eggs, a little salt. Bake it for an hour, then wait.\n",
    "orchard.txt": "Apples in the first row, pears in the second. The ladder is behind the shed.\n",
}
"""A folder for those who bring none."""

MAX_BYTES = 2000
"""Longest stretch of a file that is read out."""


class FolderTools:
    """``list_files``, ``read_file`` and ``word_count`` over the files of ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
        self._calls: dict[str, Callable[[dict[str, Any]], object]] = {
            "list_files": lambda _: self.names,
            "read_file": lambda given: self._text(given)[:MAX_BYTES],
            "word_count": lambda given: len(self._text(given).split()),
        }

    def definitions(self) -> list[dict[str, Any]]:
        """Return the tools as a request's ``tools``. ``path`` can only be a file that is there."""
        path = {
            "type": "object",
            "properties": {"path": {"type": "string", "enum": self.names}},
            "required": ["path"],
            "additionalProperties": False,
        }
        nothing = {"type": "object", "properties": {}, "additionalProperties": False}
        return [
            _function("list_files", "List the files of the folder.", nothing),
            _function("read_file", "Read a file of the folder.", path),
            _function("word_count", "Count the words of a file of the folder.", path),
        ]

    def call(self, name: str, arguments: str) -> str:
        """Run one call. What goes wrong is the model's to read, not an exception."""
        try:
            given = json.loads(arguments or "{}")
            return json.dumps(self._calls[name](given), ensure_ascii=False)
        except (KeyError, TypeError, ValueError, OSError) as error:
            return json.dumps({"error": f"{type(error).__name__}: {error}"})

    def _text(self, given: dict[str, Any]) -> str:
        if given["path"] not in self.names:
            raise ValueError(f"no such file: {given['path']}")
        return Path(self._folder, given["path"]).read_text(errors="replace")


def _function(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": parameters,
        "strict": False,
    }
