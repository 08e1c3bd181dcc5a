import jax.numpy as jnp
import numpy as np
import pytest

import equipoise as eq
from equipoise import certificates
from equipoise.algorithms.scaffpd_sums import gap_from_sums
from equipoise.errors import InputError, LostReplies
from equipoise.protocol import wire
from tests.algorithms import reference
from tests.problems import DIM, LOCAL, N, assert_same, rows, start, unequal

RHO = 0.5
TASK, DUAL, EVERYONE = eq.tasks.ridge(DIM, reference.MU), eq.objectives.kl(N, RHO), eq.cohorts.everyone(N)
RULE = eq.steps.constant(tau=0.1, sigma=0.5, theta=0.7)


def build(rule=RULE, **local):
    return eq.algorithms.scaffpd_sums(TASK, DUAL, EVERYONE, rule, **(LOCAL | local))


def entropic(x, clients, rounds, *, tau, sigma, theta, steps, lr):
    """SCAFF-PD with the entropic prox, in lam itself: argmax <s, lam> - rho KL(lam, 1/N) - KL(lam, lam_r)/sigma."""
    lam, before = np.full(len(clients), 1 / len(clients)), None
    for r in range(rounds):
        losses = np.array([reference.loss(x, client) for client in clients])
        if r > 0:  # the first round only listens
            s = (1 + theta) * losses - theta * before
            lam = lam ** (1 / (1 + RHO * sigma)) * np.exp(sigma * (s - s.max()) / (1 + RHO * sigma))
            lam = lam / lam.sum()
        before, c_i = losses, np.array([reference.gradient(x, client) for client in clients])
        at, total = x, 0
        for i, client in enumerate(clients):
            u = at
            for _ in range(steps):
                u = u - lr * (reference.gradient(u, client) - c_i[i] + lam @ c_i)
            total = total + lam[i] * (at - u) / (lr * steps)
        x = at - tau * total
        yield x, lam, at, losses


def saddle_point(clients):
    """Newton's method on rho log mean exp(f_i/rho)."""
    x = np.zeros(DIM)
    for _ in range(60):
        f = np.array([reference.loss(x, client) for client in clients])
        lam = np.exp((f - f.max()) / RHO)
        lam = lam / lam.sum()
        g = np.array([reference.gradient(x, client) for client in clients])
        hessian = sum(l * (2 / len(y) * a.T @ a) for l, (a, y) in zip(lam, clients, strict=True))
        spread = (g - lam @ g).T @ np.diag(lam) @ (g - lam @ g) / RHO
        step = np.linalg.solve(hessian + spread + reference.MU * np.eye(DIM), lam @ g)
        x = x - step
    assert np.abs(step).max() < 1e-12
    return x, lam


def test_follows_the_entropic_prox_and_certifies_the_same_gap():
    algorithm = build()
    run = eq.simulate(
        algorithm, start(), unequal(), 0, rounds=9, record=lambda s: (s.x, s.evidence, gap_from_sums(s, mu=0.1))
    )
    x, evidence, gap = run.history
    how = {"tau": 0.1, "sigma": 0.5, "theta": 0.7, "steps": LOCAL["steps"], "lr": LOCAL["local_lr"]}
    for r, (new, lam, at, losses) in enumerate(entropic(np.asarray(start()), rows(unequal()), 9, **how)):
        assert_same(x[r], new)
        assert_same(evidence.robust[r], DUAL.value(jnp.asarray(losses)))
        assert_same(gap[r], certificates.certify(TASK, DUAL, unequal(), jnp.asarray(at), jnp.asarray(lam), mu=0.1).gap)
    p = np.exp(np.asarray(run.clients.w - np.max(run.clients.w)))
    assert_same(p / p.sum(), lam)


@pytest.mark.thorough(witness="::test_follows_the_entropic_prox_and_certifies_the_same_gap")
def test_ends_at_the_saddle_point_of_kl_and_proves_it():
    x, lam = saddle_point(rows(unequal()))
    rule = eq.steps.constant(tau=0.2, sigma=0.5, theta=0.0)
    local = {"steps": 4, "local_lr": 0.05}
    ends = {
        name: eq.simulate(algorithm, start(), unequal(), 0, rounds=1500)
        for name, algorithm in {
            "sums": build(rule, **local),
            "plain": eq.algorithms.scaffpd(TASK, DUAL, EVERYONE, rule, **local),
        }.items()
    }
    for end in ends.values():
        assert_same(end.server.x, x, rtol=0, atol=1e-9)
    p = np.asarray(ends["sums"].clients.p)
    assert_same(p / p.sum(), lam, rtol=0, atol=1e-8)
    assert 0.5 < p.sum() < 2  # the shift keeps p near lam
    assert abs(float(gap_from_sums(ends["sums"].server, mu=0.1))) < 1e-12


def test_nothing_of_a_single_client_is_seen():
    algorithm = build()
    assert all(w.reply.each is None for w in wire(algorithm, start(), algorithm.prepare(unequal().client(0))))
    assert algorithm.weights(algorithm.init(start())) is None


def test_lost_replies_keep_their_weight_and_are_not_certified():
    def lost(round, exchange, ids):
        return (jnp.asarray(ids) == 3) & (round >= 4) & (round < 8)

    algorithm = build()
    how = {"record": lambda s: (s.evidence.complete, gap_from_sums(s, mu=0.1))}
    part = eq.simulate(algorithm, start(), unequal(), 0, rounds=8, lost=lost, **how)
    before = eq.simulate(algorithm, start(), unequal(), 0, rounds=4, **how)
    assert_same(part.clients.w[3], before.clients.w[3])
    assert part.history[0].tolist() == [True] * 4 + [False] * 4
    assert np.isinf(part.history[1][4:]).all()
    whole = eq.simulate(algorithm, start(), unequal(), 0, rounds=12, lost=lost, **how)
    assert whole.history[0][8:].all()
    assert whole.tally.broken.sum() == 0


def test_a_client_that_would_stand_out_does_not_answer():
    algorithm = build()
    first = algorithm.round[0]

    def send(server, i):
        message = first.send(server, i)
        return message._replace(shift=message.shift - jnp.where(i == 2, 20.0, 0.0))

    liar = algorithm._replace(round=(first._replace(send=send), algorithm.round[1]))
    with pytest.warns(LostReplies, match=r"1 clients \(2\)"):
        run = eq.simulate(liar, start(), unequal(), 0, rounds=2)
    assert run.tally.broken[2] == 2


def test_large_losses_and_a_small_penalty_stay_in_range():
    dual, data = eq.objectives.kl(N, 1e-3), unequal()
    big = data._replace(labels=data.labels * 10)
    rule = eq.steps.constant(tau=0.05, sigma=0.01, theta=0.0)
    algorithm = eq.algorithms.scaffpd_sums(TASK, dual, EVERYONE, rule, **LOCAL)
    run = eq.simulate(algorithm, start(), big, 0, rounds=400, record=lambda s: s.evidence)
    assert run.tally.broken.sum() == 0
    losses = jnp.array([reference.loss(np.asarray(run.server.x), client) for client in rows(big)])
    assert run.history.complete[-1]
    assert run.history.robust[-1] == pytest.approx(float(dual.value(losses)), rel=1e-2)


@pytest.mark.parametrize(
    ("dual", "sample", "sentence"),
    [
        (eq.objectives.chi2(N, 0.1), EVERYONE, "only for kl"),
        (eq.objectives.kl(N, 0.1, p=jnp.array([0.6, 0.1, 0.1, 0.1, 0.1])), EVERYONE, "equal reference weights"),
        (DUAL, eq.cohorts.uniform(N, 2), r"give everyone\(5\)"),
    ],
)
def test_says_what_is_wrong(dual, sample, sentence):
    with pytest.raises(InputError, match=sentence):
        eq.algorithms.scaffpd_sums(TASK, dual, sample, RULE, **LOCAL)
