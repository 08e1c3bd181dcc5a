"""SCAFF-PD with a model at the server in NumPy: quadratic losses, chi2 penalty, all clients or a few in a round.

The small saddle problems are solved by SciPy on the weights and polished by Newton's method on those above zero.
"""

import numpy as np
from scipy.optimize import minimize

EPS = np.finfo(float).eps


def small_saddle(rho, f, G, A, Q):
    """argmax_lam min_a lam.(f + G a + a'A_i a/2) - lam'Q lam/2 - rho n/2 |lam - 1/n|^2 over the simplex."""
    n, k = G.shape

    def best(lam):
        return np.linalg.solve(np.tensordot(lam, A, 1), -lam @ G) if k else np.zeros(0)

    def values(a):
        return f + G @ a + np.einsum("nij,i,j->n", A, a, a) / 2

    def negative(lam):
        v = values(best(lam))
        slope = v - Q @ lam - rho * n * (lam - 1 / n)
        return -(lam @ v - lam @ Q @ lam / 2 - rho * n / 2 * np.sum((lam - 1 / n) ** 2)), -slope

    whole = {"type": "eq", "fun": lambda lam: lam.sum() - 1, "jac": np.ones_like}
    found = minimize(
        negative,
        np.full(n, 1 / n),
        jac=True,
        bounds=[(0, 1)] * n,
        constraints=whole,
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    ).x
    found = np.maximum(found, 0)
    on = found > 1e-6
    for _ in range(20):
        lam = np.where(on, found, 0)
        a, nu = best(lam), 0.0
        for _ in range(30):
            bent = G + A @ a
            slopes = values(a) - Q @ lam - rho * n * (lam - 1 / n)
            nu = slopes[on].mean() if nu == 0.0 else nu
            left = np.concatenate([(slopes - nu)[on], lam @ bent, [1 - lam.sum()]])
            m = on.sum()
            K = np.zeros((m + k + 1, m + k + 1))
            K[:m, :m] = -(Q + rho * n * np.eye(n))[np.ix_(on, on)]
            K[:m, m : m + k], K[m : m + k, :m] = bent[on], bent[on].T
            K[m : m + k, m : m + k] = np.tensordot(lam, A, 1)
            K[:m, -1] = K[-1, :m] = -1
            step = np.linalg.solve(K, -left)
            lam[on] += step[:m]
            a, nu = a + step[m : m + k], nu + step[-1]
            if np.abs(step).max() < 1e-15:
                break
        slopes = values(a) - Q @ lam - rho * n * (lam - 1 / n) - nu
        wrong = (on & (lam < 0)) | (~on & (slopes > 1e-13))
        if not wrong.any():
            break
        on, found = on ^ wrong, np.where(on ^ wrong, np.maximum(lam, 1e-9), 0)
    return lam, a


def robust(rho, f):
    n = len(f)
    v = np.sort(f / (rho * n))[::-1]
    sums = (np.cumsum(v) - 1) / np.arange(1, n + 1)
    lam = np.maximum(f / (rho * n) - sums[np.nonzero(v > sums)[0][-1]], 0)
    return lam @ f - rho * n / 2 * np.sum((lam - 1 / n) ** 2)


def raised(A, low):
    values, vectors = np.linalg.eigh((A + A.transpose(0, 2, 1)) / 2)
    return np.einsum("nij,nj,nkj->nik", vectors, np.maximum(values, low), vectors)


def everybody(round, exchange):
    return None


def to_hear(m, lam, trial_lam, known, age, luck):
    """Whom a `collect` of m clients asks: some heard at the centre, some by weight and age, some by age and luck."""
    n, old = len(lam), age + 1
    picked = most(np.where(known, lam, -1), -(-m // 4)) & known
    score = (np.maximum(lam, trial_lam) + 1e-3 / n) * old
    picked |= most(np.where(picked, -1, score), m - round(0.3 * m) - picked.sum())
    return picked | most(np.where(picked, -np.inf, luck + 2 * np.log(old)), m - picked.sum())


def to_correct(m, rho, lam, f, L, D, U, gone, known):
    """Whom an `improve` of m clients asks: the largest weights, and whose loss, were it larger, robust would feel."""
    reach = gone @ D.T
    across = np.maximum((gone**2).sum(1) - (reach**2).sum(1), 0)
    width = np.where(known, 0, L * np.maximum(np.einsum("ni,nij,nj->n", reach, U, reach) + across, 0) / 2)
    least = 64 * 2.2e-16 * np.abs(f).max() + 1e-300
    risk = np.array([robust(rho, f + width * (np.arange(len(f)) == i)) - robust(rho, f) for i in range(len(f))])
    risk = np.round(np.log(np.maximum(risk, least) / least), 3)
    risk[most(lam, m - round(0.5 * m))] = np.inf
    return np.isin(np.arange(len(f)), np.lexsort((-np.round(lam, 6), -risk))[:m])


def most(score, count):
    """Which `count` entries are the largest; scores equal to six places are ties, and the first of them wins."""
    chosen = np.zeros(len(score), bool)
    chosen[np.argsort(-np.round(score, 6), kind="stable")[:count]] = True
    return chosen


def model_rounds(
    hessians, linear, constants, L, rho, x, *, rounds, steps, memory, answers=everybody, cohort=None, luck=None
):
    """f_i(x) = x'H_i x/2 - b_i'x + k_i: yields centre and weights after every round, and how far images are off.

    A round is `collect` (its judgement), then `improve`, as in scaffpd_model.py. `answers(round, exchange)` says whose
    replies arrive; None: everybody's. L is what the clients say of their smoothness. With a `cohort` of m clients per
    round `luck(round)` are the Gumbel numbers by which some of them are drawn.
    """
    n, d = linear.shape
    local = [
        sum(np.linalg.matrix_power(np.eye(d) - h / top, j) for j in range(steps)) / top
        for h, top in zip(hessians, L, strict=True)
    ]  # x - u = local c

    def ask(x):
        hx = hessians @ x
        return (hx / 2 - linear) @ x + constants, hx - linear

    D, Y, U = np.zeros((0, d)), np.zeros((n, 0, d)), np.zeros((n, 0, 0))
    f, C = np.zeros(n), np.zeros((n, d))
    known, heard, anchor, has_centre = np.zeros(n, bool), np.zeros(n, bool), np.zeros((n, d)), np.zeros(n, bool)
    kappa, q, nu, taken_back, row = np.ones(n), None, 0.0, 0, 0
    trial, off, lam, c, age = None, 0.0, np.full(n, 1 / n), np.zeros(d), np.zeros(n)
    for r in range(rounds):
        here = answers(r, 0)
        here = np.ones(n, bool) if here is None else here
        if cohort is not None and r > 0:
            here = to_hear(cohort, lam, trial[-1], known, age, luck(r))
        age = np.where(here, 0, age + 1)
        if trial is None:  # the centre itself
            true_f, true_C = ask(x)
            new = here & ~known
            f[new], C[new] = true_f[new], true_C[new]
            heard |= here
            f[~heard], C[~heard] = f[heard].mean(), C[heard].mean(0)  # one never heard counts as the mean of the others
            anchor[here], known, has_centre = x, known | here, has_centre | here
            q = np.mean(1 / L)
        elif not here.any():
            nu, kappa = min(max(4 * nu, 1), 64), 4 * kappa
        else:
            goal, ab, slope, predicted, _ = trial
            there_f, there_C = ask(goal)
            s, e, k = goal - x, goal - x - ab @ D, len(D)
            size, clean, back = np.linalg.norm(s), here & known, here & ~known
            inner = D @ e
            a, across = ab + inner, e - inner @ D
            planned = raised(Y @ D.T, lowest(Y, D, L)) @ ab

            # Images of the move: exact for the clean, an estimate for the others, corrected by what they say.
            weights = np.where(clean, lam + 1e-9, 0)
            inside = np.einsum("k,nkd->nd", a, Y)
            shared = weights @ (there_C - C - inside) / weights.sum() if clean.any() else 0.1 * (lam @ L) * across
            y, Y, wide = inside + shared, Y.copy(), np.zeros((n, k + 1, k + 1))
            for i in range(n):
                Ua = U[i] @ a
                wide[i, 0, 0], wide[i, 0, 1:], wide[i, 1:, 0] = (
                    (Ua @ a + across @ across) / size**2,
                    Ua / size,
                    Ua / size,
                )
                wide[i, 1:, 1:] = U[i]
                if not here[i]:
                    continue
                noise = rounding(C[i], L[i], x)
                reach, beyond = np.zeros(k), 0.0
                if not clean[i]:
                    gone = x - anchor[i]
                    reach = D @ gone if heard[i] else reach
                    beyond = max(gone @ gone - reach @ reach, 0) if heard[i] else np.inf
                along = np.append(size, reach)
                spread = wide[i] @ along
                variance = along @ spread
                if variance <= 0:
                    continue
                gain = spread / (variance if clean[i] else variance + beyond + noise)
                surprise = there_C[i] - C[i] - y[i]
                y[i] = there_C[i] - C[i] if clean[i] else y[i] + size * gain[0] * surprise
                Y[i] += gain[1:, None] * surprise
                first = wide[i, 0] * (beyond + noise) / (variance + beyond + noise)
                wide[i] -= np.outer(spread, spread) / (variance + beyond + noise)
                if clean[i]:
                    wide[i, 0], wide[i, :, 0] = first, first
            C = np.where(back[:, None], there_C - y, C)
            new_C = np.where(here[:, None], there_C, C + y)
            half = (C + new_C) @ s / 2
            f = np.where(back, there_f - half, f)
            new_f = np.where(here, there_f, f + half)
            base, got = robust(rho, f), robust(rho, new_f)

            seen, said, weights = y @ D.T, planned + Y @ e, np.where(clean, lam, 0)
            apart = np.sqrt(((seen - said) ** 2).sum(1) / np.maximum((said**2).sum(1), 1e-300))
            off = weights @ apart / weights.sum() if k and weights.sum() > 1e-3 else 0.0
            h = (y - np.einsum("k,nkd->nd", ab, Y)) @ e
            t = max(-(c @ e) / slope, 1e-6)
            kappa = np.clip(h / (slope * t**2), 1e-3, 1e3)
            c_perp = c - (D @ c) @ D
            q = (slope * t) ** 2 / max(lam @ h, 1e-3 * slope * t**2) / max(c_perp @ c_perp, 1e-300)
            ratio = (base - got) / max(base - predicted, 1e-300)
            row = row + 1 if got > base else 0
            if got > base:
                taken_back += 1
                nu = min(max(2 * nu, 0.25), 64) if taken_back > 1 else nu
            elif ratio > 0.5:
                taken_back, nu = 0, nu / 3 if nu > 0.05 else 0.0
            elif got < base:
                taken_back = 0
            if off > 0.2:
                D, Y, ab, wide = D[:1], Y[:, :1], ab[:1], wide[:, :2, :2]
            D, Y, U = renewed(D, Y, wide, s, y, ab, memory)
            left = known & ~here
            if got <= base:
                anchor[left] = x
                anchor[here] = goal
                x, f, C, known, has_centre = goal, new_f, new_C, here, here.copy()
            else:
                anchor[back] = goal
            heard = heard | here
        G, A = C @ D.T, curvature(D, Y, U, L, nu)
        C_perp = C - G @ D
        lam, a = small_saddle(rho, f, G, A, q * C_perp @ C_perp.T)
        c = lam @ (C + np.einsum("k,nkd->nd", a, Y))
        yield x, lam, off

        here = answers(r, 1)
        w = lam * has_centre * (1 if here is None else here)
        if cohort is not None:  # they say again what they have to say of the centre
            here = to_correct(cohort, rho, lam, f, L, D, U, x - anchor, known)
            w, age, back = lam * here, np.where(here, 0, age), here & ~known
            true_f, true_C = ask(x)
            Y, U = Y.copy(), U.copy()
            for i in np.flatnonzero(back):
                gone = x - anchor[i]
                reach = D @ gone
                spread = U[i] @ reach
                variance = spread @ reach
                if variance > 0:
                    beyond = max(gone @ gone - reach @ reach, 0)
                    gain = spread / (variance + beyond + rounding(C[i], L[i], x))
                    Y[i] += gain[:, None] * (true_C[i] - C[i])
                    U[i] -= np.outer(gain, spread)
            f, C = np.where(back, true_f, f), np.where(back[:, None], true_C, C)
            known, anchor = known | here, np.where(here[:, None], x, anchor)
            G, A = C @ D.T, curvature(D, Y, U, L, nu)
        move = -sum(wi * (m @ c) for wi, m in zip(w, local, strict=True)) / (w.sum() if w.sum() > 0 else 1)
        slope = -(c @ move)
        if slope < 1e-3 * np.linalg.norm(c) * np.linalg.norm(move) or not move.any():
            move = -c / (lam @ L)
            slope = -(c @ move)
        trial = next_trial(rho, f, C, L, D, Y, G, A, a, c, lam, move, slope, kappa, nu, row, x)


def curvature(D, Y, U, L, nu):
    """A_i: the curvature on span(D), more where it is uncertain."""
    if not len(D):
        return Y @ D.T
    A = raised(Y @ D.T, lowest(Y, D, L))
    return (A + np.linalg.eigvalsh(A)[:, -1:, None] * U) * (1 + nu)


def rounding(c_i, L_i, x):
    """The squared error of a difference of gradients, in units of L_i^2."""
    return (4 * EPS * (np.linalg.norm(c_i) / L_i + np.linalg.norm(x))) ** 2


def lowest(Y, D, L):
    """The least curvature that images may have."""
    return max(1e-8 * np.einsum("nii->n", Y @ D.T).max() / max(len(D), 1), 1e-10 * L.min())


def next_trial(rho, f, C, L, D, Y, G, A, a, c, lam, move, slope, kappa, nu, row, x):
    n, k = G.shape
    here, C_a, G_a = f + G @ a + np.einsum("nij,i,j->n", A, a, a) / 2, C + np.einsum("k,nkd->nd", a, Y), G + A @ a
    cross = Y @ move
    explained = np.einsum("ni,ni->n", cross, np.linalg.solve(A, cross[:, :, None])[:, :, 0]) if k else 0.0
    E = np.zeros((n, k + 1, k + 1))
    E[:, :k, :k], E[:, :k, k], E[:, k, :k] = A, cross, cross
    E[:, k, k] = np.maximum(kappa * slope, explained + 0.1 * kappa * slope) * (1 + nu)
    unit = move - (D @ move) @ D
    unit /= np.linalg.norm(unit)
    C_perp = C_a - G_a @ D
    C_perp -= np.outer(C_perp @ unit, unit)
    inverse = 1 / ((lam @ L) * (1 + nu))
    Q, slopes = inverse * C_perp @ C_perp.T, np.concatenate([G_a, (C_a @ move)[:, None]], 1)
    assert row < 3, "the gradient mapping is not transcribed: choose a problem that does not need it"
    lam_b, b = small_saddle(rho, here, slopes, E, Q)
    if abs(b[-1]) < 1e-2:
        b[-1] = 1e-2
    new = x + (a + b[:-1]) @ D + b[-1] * move - inverse * lam_b @ C_perp
    values = here + slopes @ b + np.einsum("nij,i,j->n", E, b, b) / 2 - Q @ lam_b + lam_b @ Q @ lam_b / 2
    return new, a + b[:-1], slope, robust(rho, values), lam_b


def renewed(D, Y, wide, s, y, ab, memory):
    """Gram and Schmidt, newest first, on the directions; images and uncertainties follow. `wide` is over (s/|s|, D)."""
    k = len(D)
    T = np.eye(k + 1)
    if k == memory:
        T = T[:-1]
        T[-1, -2:] = ab[-2:] / np.abs(ab[-2:]).max()
    rows, kept = T @ np.concatenate([[s], D]), []
    for j in range(len(T)):
        size = np.linalg.norm(rows[j])
        rows[j], T[j] = rows[j] / size, T[j] / size
        for i in kept + kept:
            h = rows[i] @ rows[j]
            rows[j], T[j] = rows[j] - h * rows[i], T[j] - h * T[i]
        size = np.linalg.norm(rows[j])
        if size > 1e-6:
            rows[j], T[j] = rows[j] / size, T[j] / size
            kept.append(j)
    T = T[kept]
    Y = np.einsum("ij,njd->nid", T, np.concatenate([y[:, None], Y], 1))
    T = T * np.append(np.linalg.norm(s), np.ones(k))
    return rows[kept], Y, T @ wide @ T.T
