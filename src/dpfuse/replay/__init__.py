"""Simulated sensors: recorded or simulated data, sent to a running centre."""
