"""Which llama.cpp slot serves which request, and which requests must wait.

A slot is a named sequence in one KV cache that all slots share. llama.cpp's own choice, by
similarity, lets two chains with a long common beginning overwrite each other's ends on every turn;
the engine knows the exact tokens, so it chooses itself. And because one full cache fails *every*
running request in llama.cpp, a request is admitted only when its worst case fits.

Sizes are in tokens. Token sequences are native u32 bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from turnwire.errors import EngineError

TOKEN_BYTES = 4

_GHOSTS = 32


@dataclass(slots=True)
class Slot:
    """One sequence. ``tokens`` are known to be in the cache, if llama.cpp has not purged them."""

    id: int
    tokens: bytes = b""
    scope: str = ""
    affinity: str = ""
    used: int = 0
    reserved: int = 0
    busy: bool = False
    disposable: bool = False
    """Nobody will continue these tokens: their turn was aborted."""

    @property
    def size(self) -> int:
        """Tokens of the cache that this slot may take."""
        return max(self.reserved, len(self.tokens) // TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class Lease:
    """Permission to run one request in ``slot``, once ``erase`` has been carried out."""

    slot: Slot
    erase: tuple[int, ...]
    """Slots whose sequences must make room first."""
    share: bool
    """Whether the request may reuse what the slot holds (False: it is another scope's)."""
    previous: bytes
    """What the slot holds, until the request begins to run."""
    life: int


@dataclass(frozen=True, slots=True)
class _Wish:
    prompt: bytes
    size: int
    affinity: str
    scope: str
    granted: asyncio.Future[Lease]


class SlotTable:
    """The engine's picture of the child's slots."""

    def __init__(self, *, slots: int, parallel: int, kv_tokens: int) -> None:
        """``parallel`` requests at most run at once; ``kv_tokens`` is the size of the cache."""
        self._slots = [Slot(i) for i in range(slots)]
        self._parallel = min(parallel, slots)
        self._kv_tokens = kv_tokens
        self._uses = 0
        self._life = 0
        self._waiting: deque[_Wish] = deque()
        self._taken_over: deque[bytes] = deque(maxlen=_GHOSTS)

    async def acquire(self, prompt: bytes, size: int, *, affinity: str, scope: str) -> Lease:
        """Wait until a request of ``size`` tokens fits, first come first served, and place it.

        ``release`` must follow. Raises EngineError when the child ends meanwhile.
        """
        granted: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        wish = _Wish(prompt, min(size, self._kv_tokens), affinity, scope, granted)
        self._waiting.append(wish)
        self._grant()
        try:
            return await granted
        except asyncio.CancelledError:
            if wish in self._waiting:
                self._waiting.remove(wish)
                self._grant()
            elif not granted.cancelled() and granted.exception() is None:
                lease = granted.result()
                self.release(lease, lease.previous)
            raise

    def release(self, lease: Lease, tokens: bytes, *, aborted: bool = False) -> None:
        """Give the slot back; it holds ``tokens`` now."""
        slot = lease.slot
        slot.busy = False
        slot.reserved = 0
        slot.tokens = tokens if lease.life == self._life else b""
        slot.disposable = aborted
        self._uses += 1
        slot.used = self._uses
        self._grant()

    def reset(self) -> None:
        """Forget everything: the child has ended. Requests that wait fail with EngineError."""
        self._life += 1
        self._taken_over.clear()
        for slot in self._slots:
            slot.tokens = b""
        waiting, self._waiting = self._waiting, deque()
        for wish in waiting:
            if not wish.granted.done():
                wish.granted.set_exception(EngineError("llama.cpp ended."))

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0].size):
            wish = self._waiting.popleft()
            if not wish.granted.done():
                wish.granted.set_result(self._place(wish))

    def _fits(self, size: int) -> bool:
        busy = [slot for slot in self._slots if slot.busy]
        reserved = sum(slot.reserved for slot in busy)
        return len(busy) < self._parallel and reserved + size <= self._kv_tokens

    def _place(self, wish: _Wish) -> Lease:
        slot = self._choose(wish)
        share = not slot.tokens or slot.scope == wish.scope
        previous = slot.tokens
        slot.busy = True
        slot.reserved = wish.size
        slot.affinity = wish.affinity
        slot.scope = wish.scope
        slot.tokens = b""
        return Lease(slot, self._make_room(), share, previous, self._life)

    def _choose(self, wish: _Wish) -> Slot:
        idle = [slot for slot in self._slots if not slot.busy]
        held = [slot for slot in idle if slot.tokens and slot.scope == wish.scope]
        extended = [slot for slot in held if wish.prompt.startswith(slot.tokens)]
        if extended:
            return max(extended, key=lambda slot: len(slot.tokens))
        if not self._was_taken_over(wish.prompt):
            own = [slot for slot in held if slot.affinity == wish.affinity]
            branch = self._branch(wish.prompt, own)
            if branch is not None:
                return branch
        return min(idle, key=lambda slot: (bool(slot.tokens), slot.used))

    def _branch(self, prompt: bytes, slots: list[Slot]) -> Slot | None:
        """Find a sequence of the same connection to branch off from, in place.

        Worth it when little is lost should the old branch go on after all.
        """
        best: Slot | None = None
        best_common = 0
        for slot in slots:
            common = common_prefix(prompt, slot.tokens)
            lost = 0 if slot.disposable else len(slot.tokens) // TOKEN_BYTES - common
            repeated = common * TOKEN_BYTES == len(prompt)  # the same turn once more
            if common > best_common and lost * (1 if repeated else 4) <= common:
                best, best_common = slot, common
        if best is not None and not best.disposable:
            self._taken_over.append(best.tokens)
        return best

    def _was_taken_over(self, prompt: bytes) -> bool:
        """Say whether this continues a sequence that a branch has overwritten.

        Then both are alive, and each would overwrite the other for ever.
        """
        for tokens in self._taken_over:
            if prompt.startswith(tokens):
                self._taken_over.remove(tokens)
                return True
        return False

    def _make_room(self) -> tuple[int, ...]:
        """Drop least recently used sequences until everything fits.

        Left alone, llama.cpp would drop them in the order of their numbers.
        """
        erase = []
        total = sum(slot.size for slot in self._slots)
        idle = [slot for slot in self._slots if not slot.busy and slot.tokens]
        for slot in sorted(idle, key=lambda slot: slot.used):
            if total <= self._kv_tokens:
                break
            total -= slot.size
            slot.tokens = b""
            erase.append(slot.id)
        return tuple(erase)


def common_prefix(left: bytes, right: bytes) -> int:
    """Count the leading tokens that two sequences have in common."""
    low, high = 0, min(len(left), len(right)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        stretch = slice(low * TOKEN_BYTES, middle * TOKEN_BYTES)
        if left[stretch] == right[stretch]:
            low = middle
        else:
            high = middle - 1
    return low
