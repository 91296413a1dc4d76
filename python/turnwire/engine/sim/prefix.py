"""The sim's model of an engine's prefix cache: which prompt tokens need no prefill.

Blocks of 16 tokens, each named by a hash chained over everything before it, evicted least
recently used first (as vLLM does on a GPU). Only its arithmetic is simulated: it holds hashes.
A turn that extends the same affinity's last one costs one memory comparison and its new blocks,
so that a long history does not slow the benchmarks down that the sim exists for.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

BLOCK_TOKENS = 16
_BLOCK_BYTES = BLOCK_TOKENS * 4  # u32 ids
_REMEMBERED_AFFINITIES = 256


@dataclass(slots=True)
class _Recent:
    """The chain that an affinity used last. ``tokens`` are whole blocks, named by ``keys``."""

    tokens: bytes
    keys: list[int]
    tick: int


class PrefixCache:
    """Counts cached tokens. Token sequences are native u32 bytes."""

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity = capacity_blocks
        # key -> (last use, -depth). Whoever uses a block uses all before it, so an ancestor is
        # never older than its descendants: what is present is closed under prefixes.
        self._blocks: dict[int, tuple[int, int]] = {}
        self._recent: dict[tuple[str, str], _Recent] = {}
        self._tick = 0

    def __len__(self) -> int:
        """Blocks held."""
        return len(self._blocks)

    def match(self, tokens: bytes, affinity: str = "", scope: str = "") -> int:
        """How many leading tokens of a prompt are cached; scopes do not see each other's.

        Always a multiple of 16 and below the prompt's length: an engine evaluates at least one
        token to have something to sample from.
        """
        keys = self._use(tokens, affinity, scope)
        last_whole = max(len(tokens) // 4 - 1, 0) // BLOCK_TOKENS
        return min(self._present(keys), last_whole) * BLOCK_TOKENS

    def insert(self, tokens: bytes, affinity: str = "", scope: str = "") -> None:
        """Record that these tokens have been evaluated."""
        keys = self._use(tokens, affinity, scope)
        for depth in range(self._present(keys), len(keys)):
            self._blocks[keys[depth]] = (self._tick, -depth)
        if len(self._blocks) > self._capacity:
            self._evict()

    def clear(self) -> None:
        """Forget everything, as a restarted engine has."""
        self._blocks.clear()
        self._recent.clear()

    def _present(self, keys: list[int]) -> int:
        return bisect_left(range(len(keys)), 1, key=lambda depth: keys[depth] not in self._blocks)

    def _use(self, tokens: bytes, affinity: str, scope: str = "") -> list[int]:
        """Name the whole blocks in ``tokens`` and mark them as used now."""
        self._tick += 1
        whole = len(tokens) // _BLOCK_BYTES * _BLOCK_BYTES
        user = (scope, affinity)
        recent = self._recent.pop(user, None)
        if recent is None or not tokens.startswith(recent.tokens):
            if recent is not None:
                self._touch(recent)
            recent = _Recent(b"", [], 0)
        keys = recent.keys
        name = keys[-1] if keys else hash(scope)
        for start in range(len(recent.tokens), whole, _BLOCK_BYTES):
            name = hash((name, tokens[start : start + _BLOCK_BYTES]))
            keys.append(name)
        recent.tokens = tokens[:whole]
        recent.tick = self._tick
        self._recent[user] = recent
        if len(self._recent) > _REMEMBERED_AFFINITIES:
            self._touch(self._recent.pop(next(iter(self._recent))))
        return keys

    def _touch(self, recent: _Recent) -> None:
        """Apply a chain's last use to its blocks; deferred until someone needs to know."""
        for depth, key in enumerate(recent.keys):
            held = self._blocks.get(key)
            if held is None:
                return
            if held[0] < recent.tick:
                self._blocks[key] = (recent.tick, -depth)

    def _evict(self) -> None:
        for recent in self._recent.values():
            self._touch(recent)
        # An eighth more than needed, so that a full cache does not sort on every insertion.
        keep = max(self._capacity - self._capacity // 8, 1)
        oldest_first = sorted(self._blocks, key=self._blocks.__getitem__)
        for key in oldest_first[: len(self._blocks) - keep]:
            del self._blocks[key]
