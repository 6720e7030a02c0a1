"""Real servers, started and stopped by the tests."""
