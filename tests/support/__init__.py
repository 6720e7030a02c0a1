"""What several tests need: an independent recomputation, generated streams, dumps of a store."""
