"""Problems with known answers: the regression of SCAFF-PD, the two quadratics of SCAFFOLD.

Both come with an exact solution, found in NumPy float64 from the definitions and without the library's own
proximal operators, so that an algorithm can be measured against something it did not compute itself.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float
from numpy.typing import ArrayLike

from equipoise.data.shards import Shards
from equipoise.errors import EquipoiseError, positive, require
from equipoise.protocol import RandomKey, as_key


class Saddle(NamedTuple):
    """A saddle point of min_x max_lam sum_i lam_i f_i(x) - psi(lam); NumPy float64."""

    x: Float[np.ndarray, " d"]
    lam: Float[np.ndarray, " n"]
    value: float  # F(x, lam), the robust objective at x


def regression(
    *,
    n: int = 5,
    dim: int = 10,
    samples: int | Sequence[int] = 100,
    scale: float = 1.0,
    shift: float = 0.1,
    key: RandomKey | int,
    dtype: DTypeLike | None = None,
) -> Shards:
    """Robust regression, SCAFF-PD section 6.1: y = <a, x_hat + delta_i>, a different truth on every client.

    Args:
        n: N, clients.
        dim: d, features.
        samples: m_i, one number for all clients or one per client.
        scale: c, of the common truth x_hat ~ N(0, c^2 I).
        shift: the paper's sigma, of the clients' own delta_i ~ N(0, shift^2 I).
        key: a jax.random key, or an integer seed; the same gives the same data.
        dtype: float32 or float64; JAX's default float if not given.
    """
    sizes = list(samples) if isinstance(samples, Sequence) else [samples] * n
    require(n > 0 and dim > 0, f"n is {n} and dim is {dim}; give at least one client and one feature")
    require(len(sizes) == n, f"samples has {len(sizes)} entries for {n} clients; give one number, or one per client")
    require(min(sizes) > 0, f"samples is {samples}; every client needs at least one")
    require(scale >= 0 and shift >= 0, f"scale is {scale} and shift is {shift}; give numbers from zero up")
    dtype = _float(dtype)
    k_a, k_truth, k_delta = jax.random.split(as_key(key), 3)
    a = jax.random.normal(k_a, (n, max(sizes), dim), dtype)  # a_i^j ~ N(0, I)
    x_hat = scale * jax.random.normal(k_truth, (1, dim), dtype)
    delta = shift * jax.random.normal(k_delta, (n, dim), dtype)
    # a sum of products, not a matrix product: those lose half the digits on some accelerators
    y = jnp.sum(a * (x_hat + delta)[:, None, :], axis=-1)
    m = jnp.asarray(sizes, jnp.int32)
    real = jnp.arange(max(sizes), dtype=jnp.int32)[None, :] < m[:, None]
    return Shards(jnp.where(real[:, :, None], a, 0), jnp.where(real, y, 0), m)


def quadratics(
    *, gradient: float = 1.0, hessian: float = 1.0, beta: float = 1.0, dtype: DTypeLike | None = None
) -> Shards:
    """The two clients of SCAFFOLD section 7.2, in one dimension; start at x = 1.

        f_1(x) = (beta + delta)/2 x^2 + G x,    f_2(x) = (beta - delta)/2 x^2 - G x,    mean: beta/2 x^2

    The paper only says that they follow Theorem II, with beta = 1, delta = 1 and G in {1, 10, 100}. This is the
    pair of its proof in D.4, mu x^2 + G x and -G x, which has beta = delta = mu, with the two set apart: the
    Hessians are delta away from their mean (A2) and the gradients are of norm G at the optimum 0 (A1). At
    delta = 1 the paper's "beta = 1" can only be the smoothness of the mean, as f_1 itself is 2-smooth.

    As Shards: client i is one example with inputs [1, d, d] = H_i and labels [1, d] = b_i, for
    f_i(x) = 1/2 x'H_i x - b_i'x.
    """
    positive("beta", beta)
    require(
        gradient >= 0 and hessian >= 0, f"gradient is {gradient} and hessian is {hessian}; give numbers from zero up"
    )
    dtype = _float(dtype)
    h = jnp.asarray([beta + hessian, beta - hessian], dtype)
    b = jnp.asarray([-gradient, gradient], dtype)
    return Shards(h.reshape(2, 1, 1, 1), b.reshape(2, 1, 1), jnp.ones(2, jnp.int32))


def quadratics_solution(shards: Shards, weights: ArrayLike | None = None) -> Float[np.ndarray, " d"]:
    """The minimiser of sum_i weights_i f_i, by default of the mean; f_i as in `quadratics`."""
    h = np.asarray(shards.inputs, np.float64)[:, 0]
    b = np.asarray(shards.labels, np.float64)[:, 0]
    w = np.full(shards.n, 1 / shards.n) if weights is None else np.asarray(weights, np.float64)
    require(w.shape == (shards.n,), f"weights has shape {w.shape}; give one number for each of the {shards.n} clients")
    return np.linalg.solve(np.tensordot(w, h, 1), w @ b)


def saddle_point(shards: Shards, *, mu: float = 0.1, rho: float = 0.0, cap: float = 1.0) -> Saddle:
    """The saddle point of the ridge problem, f_i(x) = mean_j (<a_ij, x> - y_ij)^2 + mu/2 |x|^2, over the weights

        psi(lam) = rho/(2n) sum_i (n lam_i - 1)^2    on    {lam : sum_i lam_i = 1, 0 <= lam_i <= cap}.

    rho > 0 is the chi2 penalty of Eq. (3.3), rho = 0 agnostic learning, rho = 0 with cap = 1/(alpha n) CVaR.
    The answer is checked against the problem's optimality conditions: it is good to 1e-12 in x and in the
    duality gap, or an EquipoiseError says how good it is.
    """
    n = shards.n
    require(mu >= 0 and rho >= 0, f"mu is {mu} and rho is {rho}; give numbers from zero up")
    require(cap * n >= 1, f"cap is {cap}; {n} weights below it cannot sum to one, give at least {1 / n}")
    ridge = _Ridge.from_shards(shards, mu)
    x, lam = np.zeros(ridge.a.shape[-1]), np.full(n, 1 / n)
    scale = float(np.abs(ridge.losses(x)).max()) + 1e-9
    if rho > 0:
        # From a penalty that hides the kinks down to the one asked for: Newton then starts near its answer.
        for curvature in np.geomspace(max(scale, rho * n), rho * n, 2 + int(np.log10(max(scale / rho / n, 1)))):
            x, lam = _newton(ridge, x, centre=np.full(n, 1 / n), curvature=curvature, cap=cap)
    else:
        # Proximal point in lam: each step is a problem with a penalty, around the last answer. Its pull
        # vanishes at the saddle point, the faster the smaller the curvature.
        for curvature in scale * np.maximum(0.25 ** np.arange(40), 1e-4):
            before = lam
            x, lam = _newton(ridge, x, centre=before, curvature=curvature, cap=cap)
            if np.abs(lam - before).max() < 1e-9:
                break
    x, lam, error = _polish(ridge, x, lam, rho * n, cap)
    error /= max(1.0, np.abs(x).max())
    f = ridge.losses(x)
    slope = f - rho * n * (lam - 1 / n)  # the gradient in lam, which no feasible direction may ascend
    gap = float(slope @ (_greedy(slope, cap) - lam)) / max(1.0, np.abs(f).max(), rho * n)
    outside = float(max(-lam.min(), lam.max() - cap, abs(lam.sum() - 1)))
    if not max(error, gap, outside) < 1e-12:
        raise EquipoiseError(
            f"the saddle point was only found to {error:.0e} in x and {max(gap, outside):.0e} in lam; "
            "give a larger mu or rho, or rescale the inputs"
        )
    return Saddle(x, lam, float(lam @ f - rho * n / 2 * np.sum((lam - 1 / n) ** 2)))


class _Ridge(NamedTuple):
    a: np.ndarray  # [n, m, d], rows scaled by 1/sqrt(m_i), so that means are sums
    y: np.ndarray  # [n, m]
    hessians: np.ndarray  # [n, d, d]
    mu: float

    @staticmethod
    def from_shards(shards: Shards, mu: float) -> "_Ridge":
        a, y = np.asarray(shards.inputs, np.float64), np.asarray(shards.labels, np.float64)
        require(
            a.ndim == 3 and y.ndim == 2,
            f"inputs have shape {a.shape} and labels {y.shape}; the ridge problem needs [n, m, d] and [n, m]",
        )
        m = np.asarray(shards.sizes)[:, None]
        w = np.where(np.arange(y.shape[1])[None, :] < m, 1 / np.sqrt(m), 0.0)
        a, y = a * w[:, :, None], y * w
        return _Ridge(a, y, 2 * np.swapaxes(a, 1, 2) @ a + mu * np.eye(a.shape[-1]), mu)

    def losses(self, x: np.ndarray) -> np.ndarray:
        return np.sum((self.a @ x - self.y) ** 2, axis=1) + self.mu / 2 * x @ x

    def gradients(self, x: np.ndarray) -> np.ndarray:
        return 2 * np.einsum("nm,nmd->nd", self.a @ x - self.y, self.a) + self.mu * x


def _newton(
    ridge: _Ridge, x: np.ndarray, *, centre: np.ndarray, curvature: float, cap: float
) -> tuple[np.ndarray, np.ndarray]:
    """Minimises P(x) = max_lam <lam, f(x)> - curvature/2 |lam - centre|^2; returns x and its lam, to about 1e-8.

    P is strongly convex and its gradient is piecewise smooth, so Newton steps on the current piece with a line
    search on P converge from everywhere, and quadratically once the piece is right.
    """

    def respond(x: np.ndarray) -> tuple[np.ndarray, float]:
        f = ridge.losses(x)
        lam = _project(centre + (f - f.max()) / curvature, cap)
        return lam, float(lam @ f - curvature / 2 * np.sum((lam - centre) ** 2))

    lam, value = respond(x)
    for _ in range(200):
        g = ridge.gradients(x)
        free = (lam > 0) & (lam < cap)
        slopes = g[free] - g[free].mean(axis=0) if free.any() else g[free]
        hessian = np.tensordot(lam, ridge.hessians, 1) + slopes.T @ slopes / curvature
        step = -_solve(hessian, lam @ g)
        decrease, t = float(lam @ g @ step), 1.0
        if -decrease < 1e-15 * (1 + abs(value)):  # the next gain is below rounding
            break
        while True:
            new_lam, new_value = respond(x + t * step)
            if new_value <= value + 1e-4 * t * decrease or t < 1e-8:
                break
            t /= 2
        x, lam, value = x + t * step, new_lam, new_value
    return x, lam


def _polish(
    ridge: _Ridge, x: np.ndarray, lam: np.ndarray, curvature: float, cap: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Newton on the optimality conditions with the bounds that hold now kept: all digits, whatever the curvature.

        sum_i lam_i grad f_i(x) = 0,    f_i(x) - curvature (lam_i - 1/n) = nu for free i,    sum_i lam_i = 1

    Returns x, lam and the last step in x, which is what is left of the error.
    """
    n, d = lam.size, x.size
    free = (lam > 1e-9) & (lam < cap - 1e-9)
    k = int(free.sum())
    lam = np.where(free, lam, np.where(lam > cap / 2, cap, 0.0))
    error = np.inf
    for _ in range(20):
        f, g = ridge.losses(x), ridge.gradients(x)
        slope = f[free] - curvature * (lam[free] - 1 / n)
        nu = slope.mean() if k else 0.0
        border = np.ones((k, min(k, 1)))
        kkt = np.block(
            [
                [np.tensordot(lam, ridge.hessians, 1), g[free].T, np.zeros((d, border.shape[1]))],
                [g[free], -curvature * np.eye(k), -border],
                [np.zeros((border.shape[1], d)), -border.T, np.zeros((border.shape[1],) * 2)],
            ]
        )
        residual = np.concatenate([lam @ g, slope - nu, (1 - lam.sum()) * np.ones(border.shape[1])])
        step = -_solve(kkt, residual)
        x = x + step[:d]
        lam[free] += step[d : d + k]
        before, error = error, float(np.abs(step[:d]).max())
        if error < 1e-15 or error >= before:
            break
    return x, lam, error


def _solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The solution of a z = b, of least norm where clients alike leave lam undetermined."""
    return np.linalg.lstsq(a, b, rcond=None)[0]


def _project(v: np.ndarray, cap: float) -> np.ndarray:
    """argmin |lam - v|^2 over sum lam = 1, 0 <= lam <= cap: clip(v - nu, 0, cap) for the nu that gives mass one."""
    knots = np.sort(np.concatenate([v - cap, v]))[::-1]
    mass = np.clip(v - knots[:, None], 0, cap).sum(axis=1)  # rises from 0 to n cap
    nu = np.interp(1.0, mass, knots)
    free = (v - nu > 0) & (v - nu < cap)
    if free.any():  # the same nu from the free entries, without the rounding of the interpolation
        nu = (v[free].sum() + cap * np.sum(v - nu >= cap) - 1) / free.sum()
    return np.clip(v - nu, 0, cap)


def _greedy(slope: np.ndarray, cap: float) -> np.ndarray:
    """argmax <slope, lam> over sum lam = 1, 0 <= lam <= cap: as much as allowed on the largest, then on the next."""
    order = np.argsort(-slope)
    before = np.minimum(cap * np.arange(slope.size), 1.0)
    lam = np.zeros_like(slope)
    lam[order] = np.minimum(cap, 1 - before)
    return lam


def _float(dtype: DTypeLike | None) -> np.dtype:
    """The floating dtype asked for, or JAX's default one."""
    wanted = np.dtype(float if dtype is None else dtype)
    got = jax.dtypes.canonicalize_dtype(wanted)
    require(
        dtype is None or got == wanted,
        f"dtype is {wanted}, which JAX was not told to use; call jax.config.update('jax_enable_x64', True) first",
    )
    require(np.issubdtype(got, np.floating), f"dtype is {got}; give float32 or float64")
    return got
