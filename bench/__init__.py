"""Measurements, each beside its yardstick in one run: `python -m bench`."""
