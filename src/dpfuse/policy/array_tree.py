"""The arrays of a tree by name, as a file keeps them, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

Tree = TypeVar("Tree")


def to_arrays(tree: Any) -> dict[str, NDArray[Any]]:
    """Every array of the tree, by where it is in it."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


def from_arrays(blank: Tree, arrays: Mapping[str, NDArray[Any]], may_be_infinite: str = "") -> Tree:
    """The tree with these arrays in place of its own, if they are as many, of the same shapes, and finite."""
    expected = to_arrays(blank)
    shapes = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    if shapes != {name: (array.shape, array.dtype) for name, array in expected.items()}:
        raise ValueError("its arrays do not fit its structure")
    if not all(np.isfinite(array).all() for name, array in arrays.items() if name != may_be_infinite):
        raise ValueError("its arrays must be finite")
    leaves = [jnp.asarray(arrays[name]) for name in expected]
    return cast(Tree, jax.tree.unflatten(jax.tree.structure(blank), leaves))


def fingerprint_of(settings: object, tree: Any) -> str:
    """A SHA-256 of settings, by their `repr`, and of every array with its name."""
    digest = hashlib.sha256(repr(settings).encode())
    for name, array in sorted(to_arrays(tree).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()
