"""The house keeps its floors: what docs/design.md says of rooms and words, checked on the source.

Each rule is a function from sources to complaints, and each is shown a small bad example below, so
that none can pass by looking at nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]

Sources = Mapping[str, str]
"""Path from the package's (or crate's) own root → text."""


def read(folder: str, suffix: str) -> dict[str, str]:
    root = ROOT / folder
    found = {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob(f"*{suffix}"))}
    assert found, f"no {suffix} files under {folder}: the test looks at nothing"
    return found


# --- Python: imports point down, strangers never meet -----------------------------------------

STRANGERS = frozenset({"protocol", "_core", "engine", "store", "policy"})
GROUND = frozenset({"errors", "config"})

MAY_IMPORT: dict[str, frozenset[str]] = {
    # The front of the package, and who builds the parts.
    "__init__": STRANGERS | GROUND | {"server"},
    "__main__": frozenset({"cli"}),
    "cli": STRANGERS | GROUND | {"server"},
    "server": STRANGERS | GROUND,
    # Five strangers. `pip install turnwire` brings the protocol without the server's libraries,
    # so it must not need config, which needs pydantic.
    "protocol": frozenset({"errors"}),
    "_core": frozenset({"errors"}),
    "engine": GROUND,
    "store": GROUND,
    "policy": GROUND,
    "config": frozenset({"errors"}),
    "errors": frozenset(),
}

# Where the five strangers meet. The last one builds the parts from the configuration.
MEETING_PLACES = frozenset({"server/turns.py", "server/admission.py", "server/parts.py"})

# Protocol is sans-I/O: no sockets, no clock, no chance, no threads; and of libraries msgspec only.
PROTOCOL_MAY_IMPORT = frozenset(
    {"__future__", "abc", "collections", "dataclasses", "enum", "functools", "itertools", "json"}
    | {"math", "re", "string", "types", "typing", "typing_extensions", "msgspec", "turnwire"}
)


def room_of(path: str) -> str:
    return Path(path).parts[0].removesuffix(".pyi").removesuffix(".py")


def imports(path: str, source: str, *, types: bool = True) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of everything that a file imports, lazily and for types too."""
    package = ["turnwire", *Path(path).parts[:-1]]
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                base = package[: len(package) - node.level + 1] + base
            # `from turnwire import errors` names a room only in its last part.
            for alias in node.names:
                yield node.lineno, ".".join([*base, alias.name])
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value


def wrong_imports(sources: Sources) -> list[str]:
    found = []
    for path, source in sources.items():
        room = room_of(path)
        if room not in MAY_IMPORT:
            found.append(f"{path}: '{room}' is no room that has a floor; give it one here")
            continue
        for line, module in imports(path, source):
            first, _, rest = module.partition(".")
            target = rest.split(".")[0] if rest else "__init__"
            if first == "turnwire" and target != room and target in {*MAY_IMPORT, "__init__"}:
                if target not in MAY_IMPORT[room]:
                    found.append(f"{path}:{line}: {room} must not import {target}")
            elif room == "protocol" and first not in PROTOCOL_MAY_IMPORT:
                found.append(f"{path}:{line}: the protocol is sans-I/O and must not import {first}")
    return found


def wrong_meetings(sources: Sources) -> list[str]:
    """Server modules, but for the meeting places, that work with two strangers or more."""
    found = []
    for path, source in sources.items():
        if room_of(path) != "server" or path in MEETING_PLACES:
            continue
        modules = [module for _, module in imports(path, source, types=False)]
        met = {module.split(".")[1] for module in modules if module.startswith("turnwire.")}
        if len(met & STRANGERS) > 1:
            found.append(f"{path}: {', '.join(sorted(met & STRANGERS))} may not meet here")
    return found


def test_python_imports_point_down():
    assert wrong_imports(read("python/turnwire", ".py")) == []


def test_strangers_meet_only_where_they_are_introduced():
    assert wrong_meetings(read("python/turnwire", ".py")) == []
    two = "from turnwire.engine.base import Engine\nfrom turnwire.store.base import Store\n"
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from turnwire import _core\n"
    assert wrong_meetings({"server/http.py": two})
    assert not wrong_meetings({"server/http.py": typed + two.splitlines()[0]})
    assert not wrong_meetings({"server/turns.py": two})


def test_the_import_rules_can_fail():
    bad = {
        "engine/vllm.py": "from turnwire.server import turns",
        "store/sqlite.py": "import turnwire.engine.base",
        "policy/auth.py": "from ..store import base",
        "errors.py": "from . import config",
        "config.py": "from turnwire import cli",
        "server/app.py": "import importlib\nimportlib.import_module('turnwire.cli')",
        "protocol/frames.py": "def f():\n    import time",
        "protocol/events.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        "    from turnwire.engine.base import Engine",
        "engine/base.py": "import turnwire",
        "extras.py": "",
    }
    assert len(wrong_imports(bad)) == len(bad)
    good = {
        "engine/sim/clock.py": "from ..base import Engine\nfrom turnwire.errors import EngineError",
        "server/turns.py": "from turnwire import _core, errors\nimport asyncio",
        "protocol/session.py": "from turnwire.protocol import frames\nimport msgspec",
    }
    assert wrong_imports(good) == []


# --- Rust: ground to roof, no Python in the core, unsafe in one file --------------------------

FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"error", "token", "json"}),
    frozenset({"item", "header", "tokenizer", "chain"}),
    frozenset({"diff", "detokenize", "load", "family"}),
    frozenset({"profile"}),
    frozenset({"open", "turn"}),
    frozenset({"audit"}),
    frozenset({"lib"}),
)

UNSAFE_MAY_BE_IN = "py/src/buffer.rs"

_RUST_NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.[^\']*|[^\'\\])\'', re.DOTALL
)


def rust_code(source: str) -> str:
    """The source without comments, strings and characters; newlines kept."""
    return _RUST_NOISE.sub(lambda match: '""' + "\n" * match[0].count("\n"), source)


def rust_edges(path: str, source: str) -> set[str]:
    """The crate's modules that a file names, by ``crate::`` or ``super::``."""
    here = [part for part in Path(path).with_suffix("").parts if part not in ("mod", "lib")]
    named = set()
    for match in re.finditer(r"\b(crate|(?:super::)*super)::(\{)?", rust_code(source)):
        ups = match[1].count("super")
        base = here[: max(len(here) - ups, 0)] if ups else []
        if base:
            continue  # still inside its own room
        rest = rust_code(source)[match.end() :]
        if match[2]:
            named |= set(_top_names(rest))
        elif name := re.match(r"\w+", rest):
            named.add(name[0])
    return {name for name in named if name[0].islower() and name != "self"}


def _top_names(rest: str) -> Iterator[str]:
    """The first word of each member of a braced group that has just opened."""
    depth, at_start = 1, True
    for part in re.finditer(r"[{},]|\w+", rest):
        if part[0] == "{":
            depth += 1
        elif part[0] == "}":
            depth -= 1
            if depth == 0:
                return
        elif part[0] == ",":
            at_start = at_start or depth == 1
        elif at_start and depth == 1:
            at_start = False
            yield part[0]


def wrong_rust_edges(sources: Sources) -> list[str]:
    floor = {room: index for index, rooms in enumerate(FLOORS) for room in rooms}
    found = []
    edges: dict[str, set[str]] = {}
    for path, source in sources.items():
        room = Path(path).parts[0].removesuffix(".rs")
        if room not in floor:
            found.append(f"{path}: '{room}' has no floor; give it one here")
            continue
        for target in rust_edges(path, source) - {room}:
            if target in floor and room != "lib":
                edges.setdefault(room, set()).add(target)
                if floor[target] > floor[room]:
                    found.append(f"{path}: {room} must not name {target}, which stands above it")
    return found + [f"{a} and {b} name each other" for a, b in _loops(edges)]


def _loops(edges: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    reach = {room: set(targets) for room, targets in edges.items()}
    for _ in reach:
        for room, targets in reach.items():
            reach[room] = targets.union(*(reach.get(target, set()) for target in targets))
    return sorted({(a, b) for a in reach for b in reach[a] if a < b and a in reach.get(b, ())})


def wrong_unsafe(sources: Sources) -> list[str]:
    return [
        path
        for path, source in sources.items()
        if path != UNSAFE_MAY_BE_IN and re.search(r"\bunsafe\b", rust_code(source))
    ]


def names_pyo3(sources: Sources) -> list[str]:
    return [path for path, source in sources.items() if re.search(r"\bpyo3\b", rust_code(source))]


def test_rust_core_goes_from_ground_to_roof():
    assert wrong_rust_edges(read("rust/core/src", ".rs")) == []


def test_rust_core_knows_no_python():
    assert names_pyo3(read("rust/core", ".rs")) == []
    assert "pyo3" not in (ROOT / "rust/core/Cargo.toml").read_text()


def test_unsafe_is_in_one_file():
    assert wrong_unsafe(read("rust", ".rs")) == []


def test_the_rust_rules_can_fail():
    assert wrong_rust_edges({"token.rs": "use crate::turn::Turn;"})
    assert wrong_rust_edges({"family/mod.rs": "use super::profile::Profile;"})
    assert wrong_rust_edges({"family/chatml.rs": "fn f(x: super::super::turn::Turn) {}"})
    assert wrong_rust_edges({"item.rs": "use crate::{error::{Error, Result}, load::Gguf};"})
    assert wrong_rust_edges({"item.rs": "use crate::chain;", "chain/node.rs": "use crate::item;"})
    assert wrong_rust_edges({"misc.rs": ""})
    assert not wrong_rust_edges(
        {
            "turn.rs": "use crate::{error::{Error, Result}, profile::Profile};\nuse crate::Thing;",
            "family/chatml.rs": 'use super::Family; // crate::turn\nconst S: &str = "crate::turn";',
            "chain/node.rs": "use super::index::Index; use crate::token::TokenId;",
        }
    )
    assert names_pyo3({"lib.rs": "use pyo3::prelude::*;"})
    assert not names_pyo3({"lib.rs": "// never pyo3"})
    assert wrong_unsafe({"core/src/turn.rs": "unsafe { x() }"})
    assert not wrong_unsafe({"core/src/lib.rs": '#![forbid(unsafe_code)] // "unsafe"'})
    assert not wrong_unsafe({UNSAFE_MAY_BE_IN: "unsafe { x() }"})


# --- Sizes: the point at which to split -------------------------------------------------------

PYTHON_LINES, RUST_LINES, WALL_LINES = 400, 500, 700

OVER_BUDGET: dict[str, tuple[int, str]] = {
    # path: (lines allowed, why it is not split)
}


def too_long(sources: Sources, budget: int, allowed: Mapping[str, tuple[int, str]]) -> list[str]:
    return [
        f"{path}: {lines} lines, budget {limit}"
        for path, source in sources.items()
        if (lines := source.count("\n")) > (limit := allowed.get(path, (budget, ""))[0])
    ]


def test_files_are_within_their_budgets():
    python = {f"python/turnwire/{p}": s for p, s in read("python/turnwire", ".py").items()}
    core = {f"rust/core/src/{p}": s for p, s in read("rust/core/src", ".rs").items()}
    wall = {f"rust/py/src/{p}": s for p, s in read("rust/py/src", ".rs").items()}
    assert too_long(python, PYTHON_LINES, OVER_BUDGET) == []
    assert too_long({**core, **wall}, RUST_LINES, OVER_BUDGET) == []
    assert sum(source.count("\n") for source in wall.values()) <= WALL_LINES
    stale = OVER_BUDGET.keys() - python.keys() - core.keys() - wall.keys()
    assert not stale, f"remove from OVER_BUDGET: {stale}"


def test_the_size_rule_can_fail():
    assert too_long({"a.py": "\n" * 401}, 400, {})
    assert too_long({"a.py": "\n" * 451}, 400, {"a.py": (450, "why")})
    assert not too_long({"a.py": "\n" * 450}, 400, {"a.py": (450, "why")})


# --- Words: names say what a thing is ---------------------------------------------------------

FORBIDDEN_WORDS = frozenset(
    {"manager", "managers", "handler", "handlers", "helper", "helpers"}
    | {"util", "utils", "data", "info", "process", "do"}
)
FORBIDDEN_BARE = frozenset({"cache", "state"})


def words_of(name: str) -> list[str]:
    """``HTTPHandler_v2`` → http, handler, v2."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]


def bad_name(name: str) -> bool:
    words = words_of(name)
    return bool(FORBIDDEN_WORDS.intersection(words)) or (
        len(words) == 1 and words[0] in FORBIDDEN_BARE
    )


def python_names(path: str, source: str) -> Iterator[str]:
    yield from (Path(part).stem for part in Path(path).parts)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def rust_names(path: str, source: str) -> Iterator[str]:
    yield from (Path(part).stem for part in Path(path).parts)
    kinds = r"\b(?:fn|struct|enum|union|trait|mod|type|const|static|macro_rules!)\s+(\w+)"
    yield from re.findall(kinds, rust_code(source))


def test_names_say_what_a_thing_is():
    bad = [
        f"{path}: {name}"
        for path, source in read("python/turnwire", ".py").items()
        for name in python_names(path, source)
        if bad_name(name)
    ]
    bad += [
        f"{path}: {name}"
        for folder in ("rust/core/src", "rust/py/src")
        for path, source in read(folder, ".rs").items()
        for name in rust_names(path, source)
        if bad_name(name)
    ]
    assert bad == []


def test_the_word_rule_can_fail():
    python = (
        "class SessionManager:\n    def do_it(self): ...\ndef cache(): ...\nasync def info(): ..."
    )
    found = {name for name in python_names("server/utils.py", python) if bad_name(name)}
    assert found == {"utils", "SessionManager", "do_it", "cache", "info"}
    rust = "pub struct State; fn handle_data() {} enum HTTPHandler {} // fn helper"
    found = {name for name in rust_names("turn.rs", rust) if bad_name(name)}
    assert found == {"State", "handle_data", "HTTPHandler"}
    fine = "class PrefixCache: ...\ndef handle(): ...\ndef metadata(): ...\ndef cache_key(): ..."
    assert not [n for n in python_names("engine/base.py", fine) if bad_name(n)]
