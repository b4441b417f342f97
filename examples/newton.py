# %% [markdown]
"""
# Newton's method on attention: a smoother that learns its own prototypes.

Attention over a few learned keys and values is a smooth regression: each query takes a weighted mean of the values.
Here the keys and values are the parameters, and they are fitted by gradients alone, and by Newton's method, whose
products of the Hessian with a vector come from `hessian_vector_product` and forward mode. Needs SciPy:
`pip install scipy`.
"""

# %%
import numpy as np
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, cg

from attention_np import dot_product, gradcheck, hessian_vector_product

rng = np.random.default_rng(0)
POINTS, PROTOTYPES, FEATURES, RIDGE = 80, 6, 3, 1e-3

x = np.linspace(-3, 3, POINTS)
query = np.stack([x, x**2, np.ones(POINTS)], axis=1)  # a key of -a^2, 2 a and so on measures the distance to a
target = (np.sin(2 * x) + 0.3 * x)[:, None] + 0.05 * rng.standard_normal((POINTS, 1))
start = 0.5 * rng.standard_normal(PROTOTYPES * (FEATURES + 1))


def parts(parameters: np.ndarray) -> dict[str, np.ndarray]:
    """Keys (m, d_k) and values (m, 1) of a vector of parameters."""
    key, value = np.split(parameters, [PROTOTYPES * FEATURES])
    return {"key": key.reshape(PROTOTYPES, FEATURES), "value": value.reshape(PROTOTYPES, 1)}


def vector(gradients: dot_product.Gradients) -> np.ndarray:
    """Of all gradients those of keys and values, in a row."""
    return np.concatenate([gradients.key.ravel(), gradients.value.ravel()])


# %% [markdown]
"""
## The loss, its gradient and its curvature

The loss is half the mean of the squared residuals, and a ridge. Its gradient by the output is the residual over the
number of points. The Hessian has three parts: that of Gauss and Newton, which is forward mode followed by backward; the
curvature of attention itself, weighted by the residuals; and the ridge.
"""


# %%
def loss(parameters: np.ndarray) -> float:
    """Half the mean of the squared residuals, and the ridge."""
    output, _ = dot_product.forward(query, **parts(parameters))
    return 0.5 * float(((output - target) ** 2).mean() + RIDGE * parameters @ parameters)


def gradient(parameters: np.ndarray) -> np.ndarray:
    """Its gradient: that by the output, through attention, and the ridge."""
    output, cache = dot_product.forward(query, **parts(parameters))
    return vector(dot_product.backward((output - target) / POINTS, cache)) + RIDGE * parameters


def curvature(parameters: np.ndarray, along: np.ndarray, *, whole: bool = True) -> np.ndarray:
    """The Hessian times `along`; or the Gauss-Newton part of it."""
    output, cache = dot_product.forward(query, **parts(parameters))
    moved = dot_product.jvp(cache, **parts(along))
    product = vector(dot_product.backward(moved / POINTS, cache)) + RIDGE * along
    if whole:
        product += vector(hessian_vector_product(dot_product, (output - target) / POINTS, cache, **parts(along)))
    return product


report = gradcheck.check_hessian(gradient, lambda v, p: curvature(p, v), {"parameters": start})
print(report)

# %% [markdown]
"""
## Three ways down

Conjugate gradients know the gradient alone; L-BFGS guesses the curvature from it; Newton's method asks for it, and goes
where the gradient would be zero if the curvature stayed. All begin where forty steps of L-BFGS have come, in the valley
of one minimum. What counts is how small the gradient becomes, and for how many passes: a product with the Hessian
counts as one, as a loss and as a gradient do. The first two stop where the loss has no digits left that tell one place
from another; Newton's method does not look at the loss.
"""


# %%
def newton(place: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Where the gradient is zero to rounding, and in how many steps and passes."""
    products: list[np.ndarray] = []
    steps, down = 0, -gradient(place)
    while np.abs(down).max() > 1e-13 and steps < 20:

        def times(vector: np.ndarray, place: np.ndarray = place) -> np.ndarray:
            products.append(vector)
            return curvature(place, vector)

        place = place + cg(LinearOperator((place.size, place.size), times, dtype=float), down, rtol=1e-3)[0]
        steps, down = steps + 1, -gradient(place)
    return place, steps, steps + 1 + len(products)


begun = minimize(loss, start, jac=gradient, method="L-BFGS-B", options={"maxiter": 40}).x
ways = {}
for name, method, options in (
    ("conjugate gradients", "CG", {"gtol": 1e-12}),
    ("L-BFGS", "L-BFGS-B", {"ftol": 0.0, "gtol": 1e-12, "maxiter": 1000}),
):
    found = minimize(loss, begun, jac=gradient, method=method, options=options)
    ways[name] = found.x, found.nit, found.nfev + found.njev
ways["Newton, whole Hessian"] = newton(begun)
for name, (best, steps, passes) in ways.items():
    print(
        f"{name:<22} {steps:4d} steps, {passes:5d} passes: loss {loss(best):.6f}, "
        f"gradient {np.abs(gradient(best)).max():.1e}"
    )

# %% [markdown]
"""
## What Gauss and Newton leave out

At the minimum the residuals are small, but not zero: the Hessian is not its Gauss-Newton part alone.
"""

# %%
eye = np.eye(best.size)
hessian = np.stack([curvature(best, v) for v in eye])
gauss_newton = np.stack([curvature(best, v, whole=False) for v in eye])
print(f"asymmetry of the Hessian   {np.abs(hessian - hessian.T).max():.1e}")
print(f"smallest curvature         {np.linalg.eigvalsh(hessian)[0]:.2e} (a minimum, as it is above zero)")
rest = np.linalg.norm(hessian - gauss_newton) / np.linalg.norm(hessian)
print(f"what Gauss-Newton lacks    {100 * rest:.1f} % of the Hessian")
