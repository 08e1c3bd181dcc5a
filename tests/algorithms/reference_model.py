"""SCAFF-PD with a model at the server in NumPy: everybody answers, quadratic losses, chi2 penalty.

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


def model_rounds(hessians, linear, constants, rho, x, *, rounds, steps, memory):
    """f_i(x) = x'H_i x/2 - b_i'x + k_i: yields centre and weights after every round, and how far images are off.

    A round is `collect` (its judgement), then `improve`, as in scaffpd_model.py.
    """
    n, d = linear.shape
    L = np.array([np.linalg.eigvalsh(h)[-1] for h in hessians])
    local = [
        sum(np.linalg.matrix_power(np.eye(d) - h / top, j) for j in range(steps)) / top
        for h, top in zip(hessians, L, strict=True)
    ]  # x - u = local c

    def ask(x):
        hx = hessians @ x
        return (hx / 2 - linear) @ x + constants, hx - linear

    D, Y = np.zeros((0, d)), np.zeros((n, 0, d))
    f, C = ask(x)
    kappa, q, nu, taken_back, row = np.ones(n), np.mean(1 / L), 0.0, 0, 0
    trial, off, lam, c = None, 0.0, np.full(n, 1 / n), np.zeros(d)
    for _ in range(rounds):
        if trial is not None:
            new, ab, slope, predicted = trial
            base = robust(rho, f)
            new_f, new_C = ask(new)
            s, y = new - x, new_C - C
            e = s - ab @ D
            seen = y @ D.T
            low = max(1e-8 * np.einsum("nii->n", Y @ D.T).max() / max(len(D), 1), 1e-10 * L.min())
            said = raised(Y @ D.T, low) @ ab + Y @ e
            off = lam @ np.sqrt(((seen - said) ** 2).sum(1) / np.maximum((said**2).sum(1), 1e-300)) if len(D) else 0.0
            h = (y - np.einsum("k,nkd->nd", ab, Y)) @ e
            t = max(-(c @ e) / slope, 1e-6)
            kappa = np.clip(h / (slope * t**2), 1e-3, 1e3)
            across = c - (D @ c) @ D
            q = (slope * t) ** 2 / max(lam @ h, 1e-3 * slope * t**2) / max(across @ across, 1e-300)
            got = robust(rho, new_f)
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
                D, Y, ab = D[:1], Y[:, :1], ab[:1]
            if len(D) == memory:
                u = ab[-2:] / np.abs(ab[-2:]).max()
                D = np.concatenate([D[:-2], [u @ D[-2:]]])
                Y = np.concatenate([Y[:, :-2], np.einsum("k,nkd->nd", u, Y[:, -2:])[:, None]], 1)
            D, Y = gram_schmidt(np.concatenate([[s], D]), np.concatenate([y[:, None], Y], 1))
            if got <= base:
                x, f, C = new, new_f, new_C
        k, base = len(D), robust(rho, f)
        G, A = C @ D.T, Y @ D.T
        if k:
            A = raised(A, max(1e-8 * np.einsum("nii->n", A).max() / k, 1e-10 * L.min())) * (1 + nu)
        C_perp = C - G @ D
        lam, a = small_saddle(rho, f, G, A, q * C_perp @ C_perp.T)
        c = lam @ (C + np.einsum("k,nkd->nd", a, Y))
        yield x, lam, off

        move = -sum(w * (m @ c) for w, m in zip(lam, local, strict=True))
        slope = -(c @ move)
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
        trial = (new, a + b[:-1], slope, robust(rho, values))


def gram_schmidt(D, Y):
    kept_D, kept_Y = [], []
    for row, images in zip(D, Y.transpose(1, 0, 2), strict=True):
        size = np.linalg.norm(row)
        row, images = row / size, images / size
        for _ in range(2):
            for other, its in zip(kept_D, kept_Y, strict=True):
                h = other @ row
                row, images = row - h * other, images - h * its
        size = np.linalg.norm(row)
        if size > 1e-6:
            kept_D.append(row / size)
            kept_Y.append(images / size)
    return np.array(kept_D), np.array(kept_Y).transpose(1, 0, 2)
