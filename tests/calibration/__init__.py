"""How often the statistics are wrong where the truth is known; minutes long, so a command and not a test."""
