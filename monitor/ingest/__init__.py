"""Where events come from, and the loop that brings them into the store."""
