"""Clients' sockets, tasks, clocks and signals: the floor where the strangers meet.

- :mod:`~turnwire.server.app`: the ASGI app: routes, refusals, start, drain
- :mod:`~turnwire.server.admission`: may it, and which model
- :mod:`~turnwire.server.websocket`, :mod:`~turnwire.server.http`: the two transports
- :mod:`~turnwire.server.exchange`: what a transport gives a turn
- :mod:`~turnwire.server.turns`: one turn, there and back (docs/architecture.md)
- :mod:`~turnwire.server.voice`, :mod:`~turnwire.server.interruption`,
  :mod:`~turnwire.server.warmup`, :mod:`~turnwire.server.records`: its parts
- :mod:`~turnwire.server.parts`: profile and engine from the configuration
- :mod:`~turnwire.server.lifespan`, :mod:`~turnwire.server.socket`,
  :mod:`~turnwire.server.access`: serving by uvicorn: signals, sockets, our access log
"""
