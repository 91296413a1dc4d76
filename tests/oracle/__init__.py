"""The naive model: what the tests hold turnwire against. Nothing here imports turnwire."""
