"""Untrusted: whoever reads the releases and estimates the state, with nothing but the estimator's file."""

from dpfuse.remote.estimator import RemoteEstimator

__all__ = ["RemoteEstimator"]
