"""Simulated sensors: recorded or simulated trajectories, sent to a live centre at the pace of its clock."""
