"""The catalogue of faults, made to happen to real parts."""
