"""What outlives a connection: stored responses. Back ends behind one protocol (D12)."""
