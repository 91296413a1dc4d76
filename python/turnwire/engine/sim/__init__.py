"""The simulated engine: scripted answers on a token clock, for tests and benchmarks.

It calls itself ``sim`` wherever it shows, and nothing falls back to it.
"""

from turnwire.engine.sim.engine import Recording, SimEngine
from turnwire.engine.sim.script import Script

__all__ = ["Recording", "Script", "SimEngine"]
