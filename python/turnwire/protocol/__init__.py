"""What to say and when: the Responses protocol, sans-I/O.

No sockets, no clock, no tokens: frames and deltas go in, events and actions come out.

- :mod:`~turnwire.protocol.frames`, :mod:`~turnwire.protocol.validate`: what a client may say
- :mod:`~turnwire.protocol.session`, :mod:`~turnwire.protocol.lanes`,
  :mod:`~turnwire.protocol.actions`: order, limits, which responses can be continued
- :mod:`~turnwire.protocol.output`, :mod:`~turnwire.protocol.events`: what the server says
- :mod:`~turnwire.protocol.lifecycle`: the state machines of all of these, as tables
"""
