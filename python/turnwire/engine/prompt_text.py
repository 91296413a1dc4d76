"""The JSON text of prompts, kept beside their ids, so that a turn writes only what is new in it.

A prompt of 100,000 ids is 600 kB of JSON. It grows at its end, turn by turn, so the text of each
stretch of ids is kept; the next prompt is compared with the ids (a memory comparison) and only what
follows is written. Stretches are immutable and shared by prompts that begin alike.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from aiohttp.payload import Payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp.abc import AbstractStreamWriter

TOKEN_BYTES = 4

STRETCH_IDS = 16_384
"""Short stretches are joined until they have so many ids."""

CHAINS_PER_AFFINITY = 4
"""Prompts of one connection that are kept: its lanes, and the branches in them."""

DEFAULT_BUDGET = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some ids in a row: as native u32 bytes, and as JSON without brackets (``1,2,3``)."""

    ids: bytes
    text: bytes

    @property
    def weight(self) -> int:
        """Bytes of memory."""
        return len(self.ids) + len(self.text)


@dataclass(slots=True)
class _Chains:
    """What is kept for one affinity, the prompt used last at the end."""

    prompts: list[tuple[Stretch, ...]] = field(default_factory=list)

    @property
    def weight(self) -> int:
        """Bytes, shared ones counted once for each prompt."""
        return sum(stretch.weight for prompt in self.prompts for stretch in prompt)


class PromptTexts:
    """The texts of the prompts used last, ``budget`` bytes at most."""

    def __init__(self, budget: int = DEFAULT_BUDGET) -> None:
        self._budget = budget
        self._weight = 0
        self._chains: OrderedDict[str, _Chains] = OrderedDict()

    @property
    def weight(self) -> int:
        """Bytes that are kept."""
        return self._weight

    def write(self, affinity: str, prompt: memoryview) -> list[bytes]:
        """Return the pieces of ``prompt`` as a JSON array. Only new ids are written."""
        ids = prompt.tobytes()
        chains = self._chains.pop(affinity, None) or _Chains()
        self._weight -= chains.weight
        best: tuple[Stretch, ...] = ()
        length, extended = 0, None
        for known in chains.prompts:
            common, held = _common(known, ids)
            if held > length:
                best, length = known[:common], held
                extended = known if common == len(known) else None
        stretches = best
        if length < len(ids):
            stretches = _joined(best, ids, length)
        if extended is not None:
            chains.prompts.remove(extended)
        chains.prompts.append(stretches)
        del chains.prompts[:-CHAINS_PER_AFFINITY]
        self._keep(affinity, chains)
        return [b"[", *_with_commas(stretches), b"]"]

    def _keep(self, affinity: str, chains: _Chains) -> None:
        self._chains[affinity] = chains
        self._weight += chains.weight
        while self._weight > self._budget and self._chains:
            _, oldest = self._chains.popitem(last=False)
            self._weight -= oldest.weight


def _common(stretches: tuple[Stretch, ...], ids: bytes) -> tuple[int, int]:
    """Count the stretches that ``ids`` begins with, and their bytes."""
    held = 0
    for number, stretch in enumerate(stretches):
        if not ids.startswith(stretch.ids, held):
            return number, held
        held += len(stretch.ids)
    return len(stretches), held


def _joined(stretches: tuple[Stretch, ...], ids: bytes, start: int) -> tuple[Stretch, ...]:
    """Write ``ids`` from byte ``start`` on as new stretches behind the others."""
    found = list(stretches)
    step = STRETCH_IDS * TOKEN_BYTES
    for begin in range(start, len(ids), step):
        new = _written(ids[begin : begin + step])
        # As in a binary counter: what is joined has doubled, so an id is copied a few times only.
        while (
            found
            and len(found[-1].ids) <= len(new.ids)
            and len(found[-1].ids) + len(new.ids) <= step
        ):
            last = found.pop()
            new = Stretch(last.ids + new.ids, b"%s,%s" % (last.text, new.text))
        found.append(new)
    return tuple(found)


def _written(ids: bytes) -> Stretch:
    return Stretch(ids, msgspec.json.encode(memoryview(ids).cast("I").tolist())[1:-1])


def _with_commas(stretches: Sequence[Stretch]) -> list[bytes]:
    pieces = []
    for stretch in stretches:
        pieces += [stretch.text, b","]
    return pieces[:-1]


class PiecesPayload(Payload):
    """A request body in pieces, sent one after the other without joining them."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(pieces, content_type="application/json")
        self._pieces = pieces
        self._size = sum(map(len, pieces))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the whole as text."""
        return b"".join(self._pieces).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send the pieces."""
        for piece in self._pieces:
            await writer.write(piece)
