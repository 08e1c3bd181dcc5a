import jax
import jax.numpy as jnp
import numpy as np

from equipoise.protocol import exchange_keys, round_keys, slot_key
from tests.problems import KEY

ROUNDS, EXCHANGES, SLOTS = 3, 2, 4


def test_every_round_exchange_and_client_has_a_key_of_its_own():
    """Else clients would draw the same rows as each other, and what each adds as noise would be one number."""

    def keys(round):
        pairs = round_keys(KEY, round, EXCHANGES)
        for k, pair in enumerate(pairs):
            yield from (*pair, *exchange_keys(KEY, round, k), *(slot_key(pair[1], slot) for slot in range(SLOTS)))

    words = jax.jit(jax.vmap(lambda round: jnp.stack([jax.random.key_data(key) for key in keys(round)])))
    drawn = np.asarray(words(np.arange(ROUNDS, dtype=np.int32))).reshape(ROUNDS * EXCHANGES, 4 + SLOTS, -1)
    np.testing.assert_array_equal(drawn[:, :2], drawn[:, 2:4])  # all exchanges of a round at once: the same keys
    assert len(np.unique(drawn[:, 2:].reshape(-1, drawn.shape[-1]), axis=0)) == ROUNDS * EXCHANGES * (2 + SLOTS)
