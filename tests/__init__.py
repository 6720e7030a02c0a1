"""Tests: unit and property (pure), integration (real servers), e2e (the command line), support and servers."""
