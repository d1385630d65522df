"""Checks of the collectives: exactness, bandwidth, transport, pairs."""
