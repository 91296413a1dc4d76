"""What outlives a connection: stored responses, in back ends behind one protocol."""
