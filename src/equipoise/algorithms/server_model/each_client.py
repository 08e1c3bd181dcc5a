"""Small dense problems, one for every client."""

from collections.abc import Callable
from typing import Any

import jax


def for_each(function: Callable[..., Any], *arrays: jax.Array) -> Any:
    """`function`, a routine of linear algebra, of each client's matrices.

    On a CPU one after the other: JAX hands a batch to the threads that its devices run on and waits for them there, so
    with a device per core all of them may come to wait for each other, for ever.
    """
    return jax.lax.platform_dependent(
        *arrays, cpu=lambda *a: jax.lax.map(lambda each: function(*each), a), default=jax.vmap(function)
    )
