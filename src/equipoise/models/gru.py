"""A gated recurrent network (Cho et al. 2014) for the next character of a text."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from equipoise.errors import all_positive, require
from equipoise.models.linear import affine
from equipoise.models.model import Model, Params


def gru(vocabulary: int, hidden: int = 128, *, embedding: int = 8, layers: int = 1) -> Model:
    """Tokens [b, t] below `vocabulary` in, the scores [b, vocabulary] of the token that follows them out."""
    all_positive(vocabulary=vocabulary, hidden=hidden, embedding=embedding, layers=layers)

    def init(key: Array) -> Params:
        first, last, *keys = jax.random.split(key, layers + 2)
        return {
            "embedding": eqx.nn.Embedding(vocabulary, embedding, key=first),
            "cells": tuple(eqx.nn.GRUCell(hidden if i else embedding, hidden, key=k) for i, k in enumerate(keys)),
            "out": eqx.nn.Linear(hidden, vocabulary, key=last),
        }

    def apply(params: Params, inputs: Array) -> Array:
        require(
            inputs.ndim == 2 and jnp.issubdtype(inputs.dtype, jnp.integer),
            f"the inputs are {inputs.dtype} of shape {inputs.shape}; give integers [batch, characters]",
        )
        x = params["embedding"].weight[inputs.T]  # [t, b, embedding]
        for cell in params["cells"]:
            x, final = _run(cell, x)
        return affine(params["out"], final)

    return Model(
        init,
        apply,
        "gru",
        {"vocabulary": vocabulary, "hidden": hidden, "embedding": embedding, "layers": layers},
        last=lambda params: params["out"],
    )


def _run(cell: eqx.nn.GRUCell, x: Array) -> tuple[Array, Array]:
    """All hidden states [t, b, hidden], and the last."""

    def step(h: Array, x_t: Array) -> tuple[Array, Array]:
        h = jax.vmap(cell)(x_t, h)
        return h, h

    final, states = jax.lax.scan(step, jnp.zeros((x.shape[1], cell.hidden_size), x.dtype), x)
    return states, final
