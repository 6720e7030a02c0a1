"""Live, exact comparison of ranking variants."""

__version__ = "0.1.0"
