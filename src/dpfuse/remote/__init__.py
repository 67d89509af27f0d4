"""Untrusted: estimates the state from published releases and the estimator's file."""

from dpfuse.remote.estimator import RemoteEstimator

__all__ = ["RemoteEstimator"]
