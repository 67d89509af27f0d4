"""The arrays of a tree by name, as a file stores them, and the tree from these."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpfuse._archive import ArrayType

Tree = TypeVar("Tree")

# An argument may be an array of NumPy; JAX takes it as it is.
AnyArray = jax.Array | np.ndarray


def to_arrays(tree: Any) -> dict[str, NDArray[Any]]:
    """Every array of the tree, by its place in it."""
    return {name: np.asarray(leaf) for name, leaf in _leaves(tree)}


def from_arrays(blank: Tree, arrays: Mapping[str, NDArray[Any]], may_be_infinite: str = "") -> Tree:
    """The tree with these arrays at their places, if they are those of `blank` in number and shape, and finite.

    Args:
        blank: a tree of arrays, or of their shapes alone as `jax.eval_shape` gives them.
        arrays: by their place in the tree.
        may_be_infinite: the place of the one array that may be.
    """
    check_types(blank, {name: ArrayType(array.shape, array.dtype) for name, array in arrays.items()})
    if not all(np.isfinite(array).all() for name, array in arrays.items() if name != may_be_infinite):
        raise ValueError("its arrays must be finite")
    leaves = [jnp.asarray(arrays[name]) for name, _ in _leaves(blank)]
    return cast(Tree, jax.tree.unflatten(jax.tree.structure(blank), leaves))


def check_types(blank: Any, types: Mapping[str, ArrayType]) -> None:
    """Raise unless these are the shapes and types of the arrays of `blank`, by their place in it."""
    if {name: ArrayType(leaf.shape, np.dtype(leaf.dtype)) for name, leaf in _leaves(blank)} != types:
        raise ValueError("its arrays do not fit its structure")


def fingerprint_of(settings: object, tree: Any) -> str:
    """A SHA-256 of the `repr` of settings and of every array with its name."""
    digest = hashlib.sha256(repr(settings).encode())
    for name, array in sorted(to_arrays(tree).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def _leaves(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in leaves]
