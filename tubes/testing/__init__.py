"""Tools for tests of tubes, and the conformance kit for authors of drivers."""

from tubes.testing.clock import FakeClock

__all__ = ["FakeClock"]
