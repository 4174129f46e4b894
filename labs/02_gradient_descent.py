# %% [markdown]
# # Lab 2: Gradient descent
#
# **Time:** 45 minutes. **You measure** how far a descent gets for every step size, and where it breaks.
# **You need** Python with NumPy, and the derivative of a square.
#
# Everything that follows in this course, up to training on many processes, is one loop: compute a gradient,
# take a step. Here it runs on the smallest model there is, a straight line. You can see its whole loss
# surface, know its minimum from a formula, and say in advance at which step size the descent falls apart.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hvdlab.course.experiment import grid, reference, seeds, sweep
from hvdlab.course.figures import compare, interactive, overlay, predicted
from hvdlab.exercises import lab02_gradient_descent as exercises

# %% [markdown]
# ## Make the data
#
# A hundred points: $x$ is uniform from 0 to 10, and $y = 10\,(x + \text{noise}) + 2$ with standard normal
# noise. The noise sits on $x$, so in $y$ it is ten times as large.


# %%
def make_data(seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 10, 100)
    return x, 10 * (x + rng.normal(size=100)) + 2


x, y = make_data(seed=1)
figure, axes = plt.subplots()
axes.plot(x, y, "o")
axes.set(xlabel="x", ylabel="y")
plt.show()

# %% [markdown]
# ## Look at the loss surface
#
# The model is one linear neuron, $\hat y = w x + b$, and its loss the mean squared error,
#
# $$L(w, b) = \frac{1}{n} \sum_i (w x_i + b - y_i)^2 .$$
#
# Two parameters make a surface, which we can draw whole. `loss` takes numbers or whole grids of `w` and
# `b`: 40 000 losses in one call, without a loop.


# %%
def loss(w, b, x, y):
    errors = np.multiply.outer(w, x) + np.expand_dims(b, -1) - y
    return np.mean(errors**2, axis=-1)


w_grid, b_grid = np.meshgrid(np.linspace(0, 20, 200), np.linspace(-18, 22, 200))
surface = loss(w_grid, b_grid, x, y)
print(f"{surface.size} losses, from {surface.min():.0f} to {surface.max():.0f}")

# %% [markdown]
# The minimum has a closed form, the *least squares* solution. Deep networks have none; here it tells us
# what the descent should find. In a notebook you can turn the figure with the mouse.

# %%
(w_best, b_best), *_ = np.linalg.lstsq(np.column_stack([x, np.ones_like(x)]), y)
least = loss(w_best, b_best, x, y)


def draw_surface():
    axes = plt.figure(figsize=(7, 5.5)).add_subplot(projection="3d", computed_zorder=False)
    axes.plot_surface(w_grid, b_grid, surface, cmap="viridis", alpha=0.6, rcount=60, ccount=60)
    axes.plot([w_best], [b_best], [least], "*", color="black", markersize=14, label="least squares")
    axes.set(xlabel="w", ylabel="b", xticks=range(0, 21, 5), yticks=range(-15, 21, 10))
    axes.set_zlabel("loss", labelpad=8)
    axes.view_init(elev=35, azim=-50)
    axes.set_box_aspect(None, zoom=0.88)
    return axes


with interactive():
    axes = draw_surface()
    axes.legend()
    plt.show()

# %% [markdown]
# It is a valley: steep across, nearly level along its floor. A quadratic bowl, as the loss is quadratic in
# $w$ and $b$, but a long and narrow one. Remember its shape; it decides everything below.
#
# ## Exercise 1: Write the gradient
#
# **What:** return $\partial L / \partial w$ and $\partial L / \partial b$ for arrays `x` and `y` of any
# length.
#
# **Why:** it points straight uphill. The whole descent is one line,
# $(w, b) \leftarrow (w, b) - \eta\, \nabla L$ with the step size (learning rate) $\eta$.
#
# **Signature:** `gradient(w, b, x, y)` returns two numbers, `dw, db`.
#
# <details><summary>Hint 1</summary>
#
# Give the error of an example a name: $e_i = w x_i + b - y_i$. The loss is the mean of $e_i^2$.
# Differentiate $e_i^2$ with respect to $w$ by the chain rule, then take the mean.
#
# </details>
# <details><summary>Hint 2</summary>
#
# $\partial L/\partial w = \frac{2}{n} \sum_i e_i x_i$. For $b$ the inner derivative is 1 instead of $x_i$.
# `np.mean` does the rest.
#
# </details>


# %%
def gradient(w, b, x, y):
    # BEGIN SOLUTION: return dL/dw and dL/db
    errors = w * x + b - y
    return 2 * np.mean(errors * x), 2 * np.mean(errors)
    # END SOLUTION


# %%
exercises.check_gradient(gradient)

# %% [markdown]
# ## Exercise 2: Write the convergence test
#
# **What:** given the losses so far, say whether the descent has converged: the last loss differs from the
# one before it by less than 0.1 % of it.
#
# **Why:** the loop below needs to know when to end. Think of what it will meet: a loss that oscillates, one
# that grows without limit until it is infinite or NaN ("not a number"), and the very first step.
#
# **Signature:** `has_converged(losses)` takes a list and returns `True` or `False`; with fewer than two
# losses, `False`.
#
# <details><summary>Hint 1</summary>
#
# `losses[-1]` is the last loss, `losses[-2]` the one before. A change has two signs; and 0.1 % *of it* is
# relative.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Compare `abs(last - previous)` with `0.001 * previous`. A comparison with NaN is false, so write the test
# such that false means "no".
#
# </details>


# %%
def has_converged(losses):
    # BEGIN SOLUTION: return True if the last relative change is below 0.1 %
    if len(losses) < 2:
        return False
    previous, last = losses[-2:]
    return bool(abs(last - previous) < 0.001 * previous)
    # END SOLUTION


# %%
exercises.check_has_converged(has_converged)

# %% [markdown]
# ## Descend
#
# Start at $w = 0$, $b = 18$ with $\eta = 0.001$, and stop at the latest after 1000 steps. The loop keeps
# each point that it visits.


# %%
def descend(x, y, learning_rate, steps=1000, stop=None):
    w, b = 0.0, 18.0
    path = [(w, b, float(loss(w, b, x, y)))]
    for _ in range(steps):
        dw, db = gradient(w, b, x, y)
        w, b = w - learning_rate * dw, b - learning_rate * db
        path.append((w, b, float(loss(w, b, x, y))))
        if stop and stop([point[2] for point in path]):
            break
    return np.array(path)


path = descend(x, y, learning_rate=0.001, stop=has_converged)
long_path = descend(x, y, learning_rate=0.001)
found = {"your test stops": path, "1000 steps": long_path}
table = {name: [len(p) - 1, *p[-1]] for name, p in found.items()}
table["least squares"] = [0, w_best, b_best, least]
pd.DataFrame(table, index=["steps", "w", "b", "loss"]).T.round(
    {"steps": 0, "w": 3, "b": 3, "loss": 2}
)

# %%
w_path, b_path, loss_path = long_path.T
with interactive():
    axes = draw_surface()
    axes.plot(w_path, b_path, loss_path, color="#D55E00", marker=".", label="1000 steps of descent")
    axes.plot(*path[-1], "o", color="#CC79A7", markeredgecolor="black", label="your test stops")
    axes.legend(loc="upper right")
    plt.show()

# %% [markdown]
# **What you should see:** some thirty steps fall into the valley, then hundreds of tiny ones creep along
# its floor. Your test stops as soon as the *loss* hardly changes from one step to the next, and the table
# shows where that is: far from the minimum. Not even 1000 steps arrive. That is no mistake of your test; on
# a nearly level floor a small change does not mean that little is left to gain.
#
# ## Predict the largest step size
#
# Larger steps would creep faster. How large may $\eta$ be before the descent stops converging? You saw what
# 0.001 does. Guess before you read on.

# %%
prediction = None  # your guess, before you run the next cells: the largest step size that converges

# %% [markdown]
# ## Exercise 3: Compute the largest step size
#
# Two lines derive it. The gradient of a quadratic bowl with the minimum $\theta^*$ and the Hessian (matrix
# of second derivatives) $H$ is $H(\theta - \theta^*)$, so one step takes
#
# $$\theta - \theta^* \;\leftarrow\; (I - \eta H)\,(\theta - \theta^*) .$$
#
# Along the eigenvector of $H$ with the eigenvalue $\lambda$ the distance is multiplied by
# $1 - \eta\lambda$: it shrinks as long as $|1 - \eta\lambda| < 1$, that is, $\eta < 2/\lambda$. The largest
# eigenvalue breaks first: **the bound is $2/\lambda_{\max}$**.
#
# **What:** write down the Hessian of $L$, and return $2 / \lambda_{\max}$.
#
# **Signature:** `largest_step_size(x)` returns a number. ($y$ moves the bowl and does not change its
# shape.)
#
# <details><summary>Hint 1</summary>
#
# Differentiate your `dw` and `db` once more with respect to $w$ and to $b$: four second derivatives, two of
# them equal.
#
# </details>
# <details><summary>Hint 2</summary>
#
# $H = 2 \begin{pmatrix} \overline{x^2} & \bar x \\ \bar x & 1 \end{pmatrix}$ with the bar for a mean;
# `np.linalg.eigvalsh(H)` returns the eigenvalues of a symmetric matrix, smallest first.
#
# </details>


# %%
def largest_step_size(x):
    # BEGIN SOLUTION: return 2 divided by the largest eigenvalue of the Hessian
    hessian = 2 * np.array([[np.mean(x * x), np.mean(x)], [np.mean(x), 1.0]])
    return 2 / np.linalg.eigvalsh(hessian)[-1]
    # END SOLUTION


# %%
exercises.check_largest_step_size(largest_step_size)
bound = largest_step_size(x)
print(f"For our data: {bound:.4f}")

# %% [markdown]
# ## Run: the loss after 10, 100 and 1000 steps
#
# The sweep goes from a hundredth of the bound to a fifth above it, on new data for each seed, once with $x$
# as it is and once with $x$ centred (more about that below). As the loss spans many powers of ten, we keep
# the logarithm of what is left of it, $\log_{10}\,(L / L_{\min} - 1)$: at $-2$ the loss is one percent
# above the least.


# %%
def loss_after_steps(ratio, inputs, seed):
    x, y = make_data(seed)
    if inputs == "centred":
        x = x - x.mean()
    w, b = np.polyfit(x, y, 1)
    least = loss(w, b, x, y)
    with np.errstate(over="ignore", invalid="ignore"):
        losses = descend(x, y, ratio * largest_step_size(x))[:, 2]
        left = np.nan_to_num(losses / least - 1, nan=np.inf).clip(1e-6, 1e6)
    return [{"steps": k, "log10_left": np.log10(left[k])} for k in (10, 100, 1000)]


ratios = [0.01, 0.02, 0.05, *np.arange(0.1, 0.95, 0.1).round(1), 0.95, 0.98, 1.02, 1.05, 1.1, 1.2]
settings = grid(ratio=ratios, inputs=["as they are", "centred"], seed=seeds(2, 10))
runs = sweep("step_size", loss_after_steps, settings)
shipped = reference("step_size")

# %%
figure, axes = plt.subplots(figsize=(8, 4.5))
raw, raw_shipped = (t[t["inputs"] == "as they are"] for t in (runs, shipped))
overlay(axes, raw, raw_shipped, x="ratio", y="log10_left", by="steps")
axes.axvline(1, color="black", linestyle=":", label=r"the bound $2/\lambda_{\max}$")
if prediction is not None:
    inside = np.clip(prediction / bound, 0, 1.3)
    far = (
        ""
        if inside == prediction / bound
        else f": {prediction / bound:.3g} times the bound, beyond this edge"
    )
    predicted(axes, 0, f"your prediction{far}", x=inside)
axes.set(xlabel="step size, as a multiple of the bound", ylabel=r"$\log_{10}(L / L_{\min} - 1)$")
axes.set(
    xlim=(-0.05, 1.35), ylim=(-6.3, 6.3), title="More steps help left of the bound, and only there"
)
axes.legend(bbox_to_anchor=(1.0, 0.5), loc="center left")
plt.show()

# %% [markdown]
# **What you should see:** left of the bound more steps mean less loss, and so do larger steps, until close
# to the bound. (After ten steps the curve turns up a little earlier: so near the bound,
# $|1 - \eta\lambda_{\max}|$ is close to 1 and what is left of the start takes long to die out.) Right of it
# more steps mean *more* loss, up to the edge of the figure. Nothing warns you: good step sizes reach almost
# to the cliff.
#
# ## Walk just under and just over the bound


# %%
def draw_valley(axes, x, y, path, title):
    w_best, b_best = np.polyfit(x, y, 1)
    around = 1.15 * np.abs(path[0, :2] - (w_best, b_best)).max() * np.linspace(-1, 1, 150)
    w, b = np.meshgrid(w_best + around, b_best + around)
    levels = least + np.geomspace(10, 30_000, 9)
    axes.contour(w, b, loss(w, b, x, y), levels, cmap="viridis", linewidths=1)
    axes.plot(path[:, 0], path[:, 1], ".-", color="#D55E00", linewidth=1, label="descent")
    axes.plot(w_best, b_best, "*", color="black", markersize=12, label="least squares")
    axes.set(xlabel="w", ylabel="b", title=title, aspect="equal")
    axes.set(xlim=w[0, [0, -1]], ylim=b[[0, -1], 0])


figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 4.5))
for axes, factor in ((left, 0.97), (middle, 1.03)):
    walk = descend(x, y, factor * bound, steps=25)
    draw_valley(axes, x, y, walk, f"{factor:g} times the bound")
    right.semilogy(walk[:, 2], label=f"{factor:g} times the bound")
right.axhline(least, color="black", linestyle=":", label="least loss")
right.set(xlabel="step", ylabel="loss")
left.legend(loc="lower right", frameon=True, framealpha=1)
right.legend(loc="upper left")
plt.show()

# %% [markdown]
# Both jump from one side of the valley to the other, along the steep eigenvector, because
# $1 - \eta\lambda_{\max}$ is close to $-1$. Just under the bound each jump is a little shorter than the one
# before; just over it, a little longer. Oscillation that grows is the sign that a step size is too large.
#
# ## Centre x
#
# The valley is long because $x$ is far from zero: $w$ and $b$ then do nearly the same (raise the line). How
# long it is, the **condition number** $\kappa = \lambda_{\max}/\lambda_{\min}$ says. With the best fixed
# step the slowest distance shrinks by $(\kappa - 1)/(\kappa + 1)$ a step, so the number of steps grows in
# proportion to $\kappa$.
#
# Subtract the mean from $x$, and $\bar x = 0$ makes the Hessian diagonal. Divide by the standard deviation
# as well, and both eigenvalues are equal. The table counts the steps to within 0.01 % of the least loss,
# with the best step size, $2 / (\lambda_{\min} + \lambda_{\max})$.


# %%
def shape_of_the_bowl(x):
    hessian = 2 * np.array([[np.mean(x * x), np.mean(x)], [np.mean(x), 1.0]])
    small, large = np.linalg.eigvalsh(hessian)
    target = 1.0001 * loss(*np.polyfit(x, y, 1), x, y)
    losses = descend(x, y, 2 / (small + large))[:, 2]
    steps = np.argmax(losses <= target) if losses.min() <= target else np.nan
    return [small, large, large / small, 2 / large, steps]


centred = x - x.mean()
inputs = {"as they are": x, "centred": centred, "centred and scaled": centred / centred.std()}
columns = ["lambda min", "lambda max", "condition number", "bound", "steps to 0.01 %"]
pd.DataFrame({k: shape_of_the_bowl(v) for k, v in inputs.items()}, index=columns).T.round(3)

# %%
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), width_ratios=[3, 3, 5])
for axes, name in ((left, "as they are"), (middle, "centred")):
    walk = descend(inputs[name], y, 0.5 * largest_step_size(inputs[name]), steps=60)
    draw_valley(axes, inputs[name], y, walk, f"inputs {name}")
left.legend(loc="lower right", frameon=True, framealpha=1)
at_100, shipped_at_100 = (t[t["steps"] == 100] for t in (runs, shipped))
overlay(right, at_100, shipped_at_100, x="ratio", y="log10_left", by="inputs")
right.axvline(1, color="black", linestyle=":")
right.set(xlabel="step size, as a multiple of its own bound", ylim=(-6.3, 6.3))
right.set(ylabel=r"$\log_{10}(L / L_{\min} - 1)$ after 100 steps")
plt.show()

# %% [markdown]
# **What you should see:** the same data, the same line, another bowl. Centred, a hundred steps reach the
# minimum over most of the range of step sizes, and the table says that the bound itself is larger, too.
# Scaled as well, the bowl is round and the best step reaches the minimum at once. This is why inputs of
# networks are normalised, and part of why batch normalisation helps inside them.

# %%
some = (slice(None), [0.1, 0.5, 0.9, 1.1])  # all inputs, four ratios
compare(at_100, shipped_at_100, by=["inputs", "ratio"], value="log10_left").loc[some, :]

# %% [markdown]
# ## What to remember
#
# * One step multiplies the distance to the minimum by $1 - \eta\lambda$ along each eigenvector of the
#   Hessian: $\eta < 2/\lambda_{\max}$, or it diverges.
# * The condition number decides how many steps it takes. Normalised inputs make it small.
# * A loss that has stopped changing does not mean that the parameters have arrived.
#
# **To continue, if you like:** run `descend(x, y, learning_rate=1e-6, stop=has_converged)`. After how many steps
# does your test say yes, and why? What would you compare the change with instead? Lab 3 takes only a few
# examples for each step, and asks what that costs.
