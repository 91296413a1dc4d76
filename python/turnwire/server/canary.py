"""The canary: now and then a turn is rendered again in full and compared (docs/design.md, D6).

It runs in a thread beside the turns, one at a time. A difference is logged and counted, and from
then on the model's template itself renders every prompt: the answer that was given stays.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from turnwire.errors import InvariantError, RequestError

if TYPE_CHECKING:
    from turnwire._core import Chains, Node

log = logging.getLogger(__name__)


class Canary:
    """Looks at one committed turn in ``one_in``, chosen by chance; at none with 0."""

    def __init__(self, chains: Chains, *, one_in: int) -> None:
        self._chains = chains
        self._one_in = one_in
        self._task: asyncio.Task[None] | None = None
        self.compared = 0
        """Turns that were compared and found the same."""
        self.differing = 0
        """Turns that were found to differ."""

    def watch(self, response_id: str, node: Node) -> None:
        """Compare this turn, if chance has it and no other is being compared."""
        if not self._one_in or random.randrange(self._one_in):  # noqa: S311 -- a sample, no secret
            return
        if self._task is None or self._task.done():
            name = f"canary {response_id}"
            self._task = asyncio.create_task(self._compare(response_id, node), name=name)

    async def close(self) -> None:
        """Wait for a comparison that runs."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _compare(self, response_id: str, node: Node) -> None:
        try:
            self.compared += await asyncio.to_thread(self._chains.verify, node)
        except InvariantError as error:
            self.differing += 1
            log.error(  # noqa: TRY400 -- where they part says it all
                "%s: %s; from now on the template renders every prompt", response_id, error
            )
        except RequestError as error:
            log.warning("%s could not be rendered again: %s", response_id, error)
