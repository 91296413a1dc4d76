"""The sim's model of an engine's prefix cache: which prompt tokens need no prefill.

Blocks of 16 tokens, evicted least recently used first, and the deepest of those first (as vLLM does
on a GPU). They are held as a radix tree of runs of blocks, so that a prompt of any length costs a
few comparisons of memory: the event loop that serves everybody else runs this too.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

BLOCK_TOKENS = 16
_BLOCK_BYTES = BLOCK_TOKENS * 4  # u32 ids


@dataclass(slots=True)
class _Run:
    """Blocks that follow each other. Whoever uses the last of them uses them all."""

    tokens: bytes
    parent: _Run | None
    depth: int
    """Blocks before it."""
    used: int
    """When it was last used; never later than its parent."""
    following: dict[bytes, _Run] = field(default_factory=dict)
    """By their first block."""

    @property
    def blocks(self) -> int:
        return len(self.tokens) // _BLOCK_BYTES

    def shared(self, tokens: bytes, start: int, end: int) -> int:
        """How many of its bytes, in whole blocks, stand in ``tokens[start:end]``."""
        if start + len(self.tokens) <= end and tokens.startswith(self.tokens, start):
            return len(self.tokens)
        most = min(len(self.tokens), end - start) // _BLOCK_BYTES

        def differs(blocks: int) -> bool:
            return not tokens.startswith(self.tokens[: blocks * _BLOCK_BYTES], start)

        return bisect_left(range(1, most + 1), 1, key=differs) * _BLOCK_BYTES


class PrefixCache:
    """Counts cached tokens. Token sequences are native u32 bytes."""

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity = capacity_blocks
        self._roots: dict[str, _Run] = {}
        self._blocks = 0
        self._tick = 0

    def __len__(self) -> int:
        """Blocks held."""
        return self._blocks

    def match(self, tokens: bytes, scope: str = "") -> int:
        """How many leading tokens of a prompt are cached; scopes do not see each other's.

        Always a multiple of 16 and below the prompt's length: an engine evaluates at least one
        token to have something to sample from.
        """
        _, found = self._use(tokens, scope)
        last_whole = max(len(tokens) // 4 - 1, 0) // BLOCK_TOKENS
        return min(found // _BLOCK_BYTES, last_whole) * BLOCK_TOKENS

    def insert(self, tokens: bytes, scope: str = "") -> None:
        """Record that these tokens have been evaluated."""
        run, found = self._use(tokens, scope)
        whole = len(tokens) // _BLOCK_BYTES * _BLOCK_BYTES
        if found < whole:
            new = _Run(tokens[found:whole], run, run.depth + run.blocks, self._tick)
            run.following[new.tokens[:_BLOCK_BYTES]] = new
            self._blocks += new.blocks
        if self._blocks > self._capacity:
            self._evict()

    def clear(self) -> None:
        """Forget everything, as a restarted engine has."""
        self._roots.clear()
        self._blocks = 0

    def _use(self, tokens: bytes, scope: str) -> tuple[_Run, int]:
        """Mark what is held of ``tokens`` as used now; return its last run and its bytes."""
        self._tick += 1
        whole = len(tokens) // _BLOCK_BYTES * _BLOCK_BYTES
        run, found = self._roots.setdefault(scope, _Run(b"", None, 0, 0)), 0
        while found < whole:
            following = run.following.get(tokens[found : found + _BLOCK_BYTES])
            if following is None:
                break
            shared = following.shared(tokens, found, whole)
            if shared < len(following.tokens):
                following = _split(following, shared)
            following.used = self._tick
            run, found = following, found + shared
        return run, found

    def _evict(self) -> None:
        # An eighth more than needed, so that a full cache does not do this on every insertion.
        keep = max(self._capacity - self._capacity // 8, 1)
        order = count()  # of two runs that are alike in all else, neither is compared
        ends = [(run.used, -run.depth, next(order), run) for run in self._ends()]
        heapify(ends)
        while self._blocks > keep:
            *_, run = heappop(ends)
            surplus = self._blocks - keep
            if surplus < run.blocks:
                run.tokens = run.tokens[: -surplus * _BLOCK_BYTES]
                self._blocks = keep
                return
            self._blocks -= run.blocks
            parent = run.parent
            if parent is not None:
                del parent.following[run.tokens[:_BLOCK_BYTES]]
                if not parent.following and parent.parent is not None:
                    heappush(ends, (parent.used, -parent.depth, next(order), parent))
        self._roots = {scope: root for scope, root in self._roots.items() if root.following}

    def _ends(self) -> list[_Run]:
        """Return the runs that nothing follows."""
        open_, ends = list(self._roots.values()), []
        while open_:
            run = open_.pop()
            open_.extend(run.following.values())
            if not run.following and run.parent is not None:
                ends.append(run)
        return ends


def _split(run: _Run, at: int) -> _Run:
    """Make two runs of one; return the first, of ``at`` bytes."""
    first = _Run(run.tokens[:at], run.parent, run.depth, run.used)
    if run.parent is not None:
        run.parent.following[run.tokens[:_BLOCK_BYTES]] = first
    run.tokens, run.parent = run.tokens[at:], first
    run.depth += first.blocks
    first.following[run.tokens[:_BLOCK_BYTES]] = run
    return first
