# %% [markdown]
# # Lab 2: Gradient descent
#
# The language model GPT-3 has 175 billion parameters ([Brown et al.
# 2020](https://arxiv.org/abs/2005.14165)). No person chose these numbers. A computer found them by
# repeating one step: compute in which direction the error grows, and change every parameter a little in the
# opposite direction. This method is called **gradient descent**. Every network of this course is trained
# with it, and training on many GPUs means to compute the same step on many devices.
#
# In this lab you apply gradient descent to the smallest useful model, a straight line with two parameters.
# With two parameters you can draw everything, and predict at which step size the method fails. The last
# section repeats this experiment with a network.
#
# **After this lab you can**
#
# * write the gradient of the mean squared error and the loop of gradient descent;
# * compute the largest learning rate that converges on a quadratic loss, also from gradients alone, and say what
#   is different in a network;
# * compute the condition number, and predict from it how many steps the descent needs;
# * explain why inputs of networks are normalised;
# * tell a loss that has stopped falling from parameters that have reached the minimum.
#
# **Builds on** lab 1, which says why networks are trained on many GPUs. You need Python with NumPy, the
# derivative of a square, and the eigenvalues of a 2 x 2 matrix. The [algebra bridge](00_test_and_bridge.ipynb)
# explains eigenvalues in half an hour.
#
# **Time:** 160 minutes for a learner who reads everything and does every exercise. The computer needs about
# a minute of it. [The start page](00_start_here.ipynb) explains the marks *Core* and *Optional*.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from hvdlab.course.experiment import by_run_length, complete, grid, reference, seeds, sweep
from hvdlab.course.figures import compare, describe, interactive, overlay, predicted
from hvdlab.course.source import show_source
from hvdlab.course.tanh_network import TanhNetwork
from hvdlab.course.workbook import Workbook
from hvdlab.data import load_fashion_mnist
from hvdlab.exercises import lab02_gradient_descent as exercises

workbook = Workbook(2)
hint = workbook.hint

# %% [markdown]
# ## Linear model
#
# *Optional, 4 minutes.*
#
# A **model** is a function with adjustable numbers, the **parameters**. *Training* means to choose the
# parameters so that the function describes given data. The simplest model that is used in practice is the
# linear model with one input,
#
# $$\hat y = w x + b .$$
#
# It has two parameters. The *weight* $w$ is the slope of a line, and the *bias* $b$ moves the line up or
# down. The hat on $\hat y$ marks a prediction. For example, with $w = 2$ and $b = 1$ the model predicts
# $\hat y = 7$ for the input $x = 3$.
#
# A neural network consists of many such units, which are called *neurons*. So our model is a network with one
# neuron and one input.
#
# The data of this lab are a hundred **examples**, that is, pairs of an input $x$ and a measured value $y$.
# The inputs are drawn at random between 0 and 10, and $y = 10\,(x + \text{noise}) + 2$. The noise is random
# with the standard deviation 1, so the values of $y$ scatter by about 10 around the line with slope 10 and
# bias 2. Training should find parameters close to these two numbers.


# %%
def make_data(seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 10, 100)
    return x, 10 * (x + rng.normal(size=100)) + 2


x, y = make_data(seed=1)

# %% tags=["folded"]
figure, axes = plt.subplots()
axes.plot(x, y, "o")
axes.plot([0, 10], [18, 18], "--", color="black", label="the model at the start: w = 0, b = 18")
axes.set(xlabel="x", ylabel="y")
axes.legend()
describe(
    figure,
    "A hundred points that scatter around a rising line from about 2 to about 102, and a dashed "
    "horizontal line at 18, which is the model before training.",
)

# %% [markdown]
# ## Loss function
#
# *Optional, 7 minutes.*
#
# Training needs a number that says how bad the current parameters are. This number is the **loss**. For each
# example the *error* is the prediction minus the measured value, $e_i = w x_i + b - y_i$. Our loss is the
# **mean squared error**,
#
# $$L(w, b) = \frac{1}{n} \sum_{i=1}^{n} e_i^2 ,$$
#
# where $n$ is the number of examples. The square makes errors of both signs count, and it makes a large error
# count more than two errors of half its size.
#
# For example, take two examples with $x = (1, 3)$ and $y = (4, 6)$, and the parameters $w = 2$ and $b = 1$.
# The predictions are 3 and 7, so the errors are $-1$ and $+1$, and the loss is $(1 + 1) / 2 = 1$.
#
# During training the data stay fixed and only the parameters change, so we regard the loss as a function of
# the parameters. With two parameters it is a surface above the plane of $w$ and $b$, the **loss surface**. The
# function below accepts single numbers or whole grids.


# %%
def loss(w, b, x, y):
    errors = np.multiply.outer(w, x) + np.expand_dims(b, -1) - y
    return np.mean(errors**2, axis=-1)


w_grid, b_grid = np.meshgrid(np.linspace(0, 20, 200), np.linspace(-18, 22, 200))
surface = loss(w_grid, b_grid, x, y)
print(f"{surface.size} losses, from {surface.min():.0f} to {surface.max():.0f}")

# %% [markdown]
# For the linear model a formula gives the minimum directly, the *least squares* solution. Deep networks have no
# such formula. The next figure shows the surface with its minimum. In a notebook you can turn it with the mouse.

# %% tags=["folded"]
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


with interactive(
    "The loss as a surface over the weight and the bias. It is a bowl that is steep in one direction and "
    "nearly flat along the other, so its floor is a long narrow valley."
):
    axes = draw_surface()
    axes.legend()
    plt.show()

# %% [markdown]
# The surface is a bowl, because the loss is a mean of squares and the errors are linear in $w$ and $b$. But
# the bowl is long and narrow, like a valley. In one direction the loss rises steeply, and along the floor of
# the valley it hardly changes. This shape decides how fast gradient descent is, and when it fails.
#
# ## Gradient
#
# *Core, 11 minutes. Later cells call `gradient`.*
#
# The **partial derivative** $\partial L / \partial w$ says how fast the loss grows if $w$ grows and $b$ stays
# fixed. The partial derivative $\partial L / \partial b$ says the same for $b$. The vector of both is the
# **gradient**, written $\nabla L$. It points in the direction in which the loss grows fastest. Its opposite
# is the direction in which the loss falls fastest.
#
# The chain rule gives the derivatives. The derivative of $e_i^2$ with respect to $w$ is $2 e_i$ times the
# derivative of $e_i$, which is $x_i$. With respect to $b$ the derivative of $e_i$ is 1. The loss is a mean
# over the examples, so each of its derivatives is a mean as well.
#
# For example, take $x = (1, 3)$ and $y = (4, 6)$ with $w = 2$ and $b = 1$ again. The errors are $(-1, 1)$.
# Then $\partial L / \partial w$ is the mean of $2 \cdot (-1) \cdot 1 = -2$ and $2 \cdot 1 \cdot 3 = 6$, which
# is 2, and $\partial L / \partial b$ is the mean of $-2$ and $2$, which is 0. So the loss falls if $w$
# becomes smaller, and a very small change of $b$ hardly changes it.
#
# ### Exercise 1: Gradient of the mean squared error
#
# **What:** return $\partial L / \partial w$ and $\partial L / \partial b$ for arrays `x` and `y` of any
# length.
#
# **Why:** every step of gradient descent uses these two numbers. For a network with a billion parameters the
# framework computes a billion of them, by the same chain rule.
#
# **Signature:** `gradient(w, b, x, y)` returns two numbers, `dw, db`.
#
# <details><summary>Hint 1</summary>
#
# Compute the errors of all examples first, as an array. Both derivatives are means of an array that contains
# the errors.
#
# </details>
# <details><summary>Hint 2</summary>
#
# In the example above the errors are $(-1, 1)$ and the inputs are $(1, 3)$. The products of error and input
# are $(-1, 3)$, their mean is 1, and twice that is 2, which is $\partial L / \partial w$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# $\partial L/\partial w = \frac{2}{n} \sum_i e_i x_i$ and $\partial L/\partial b = \frac{2}{n} \sum_i e_i$.
# `np.mean` computes $\frac{1}{n} \sum_i$.
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
# ## Gradient descent loop
#
# *Core, 15 minutes. Later cells call `descend`.*
#
# **Gradient descent** starts with some parameters and repeats one *step*. It computes the gradient at the
# current parameters and moves them a little in the opposite direction,
#
# $$w \leftarrow w - \eta\, \frac{\partial L}{\partial w}, \qquad
# b \leftarrow b - \eta\, \frac{\partial L}{\partial b} .$$
#
# The number $\eta$ (eta) is the **learning rate**, which is also called the step size. It says how far one
# step moves for a given gradient. The learning rate is a **hyperparameter**. This is a setting that a person
# or a search chooses before training, in contrast to the parameters, which training finds.
#
# ![Four boxes in a circle: predict with the current parameters, compute the loss, compute the gradient of the loss, and update the parameters. An arrow leads from the update back to the prediction, because the loop repeats.](pictures/gradient_descent_loop.svg)
#
# For example, let the parameters be $w = 2$ and $b = 1$, the gradient $(2, 0)$ and the learning rate 0.1.
# One step gives $w = 2 - 0.1 \cdot 2 = 1.8$ and $b = 1 - 0.1 \cdot 0 = 1$. In our small example the loss was
# 1 before the step. After it the errors are $1.8 + 1 - 4 = -1.2$ and $5.4 + 1 - 6 = 0.4$, and the loss is
# $(1.44 + 0.16) / 2 = 0.8$. The step has reduced the loss.
#
# Both derivatives must belong to the same point. If you change $w$ first and compute
# $\partial L / \partial b$ afterwards, then you compute it at the new $w$, and the step is a different one.
#
# ### Exercise 2: The loop of gradient descent
#
# **What:** start at $w = 0$ and $b = 18$, make the given number of steps, and keep every point that the
# descent visits, the start included. If `stop` is given, call it after every step with the list of all losses
# so far, and end the descent if it returns True.
#
# **Why:** this loop is the core of every training program. In lab 3 the gradient comes from a few examples
# at a time, in lab 4 it is averaged over several processes, and the loop stays the same.
#
# **Signature:** `descend(x, y, learning_rate, steps=1000, stop=None)` returns an array with one row
# `(w, b, loss)` for each point, so a descent of 1000 steps returns 1001 rows. Use your `gradient` and the
# function `loss` from above.
#
# <details><summary>Hint 1</summary>
#
# Keep a list of rows that begins with the start. In each pass of a `for` loop compute both derivatives,
# then both new parameters, and append one row.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Two examples with $x = (1, 3)$, $y = (16, 18)$: at the start the errors are $(2, 0)$, the loss is 2 and the
# gradient is $(2, 2)$. With the learning rate 0.05 the second row has $w = -0.1$ and $b = 17.9$, and the loss
# there is $(1.8^2 + 0.4^2) / 2 = 1.7$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `path = [(w, b, loss(w, b, x, y))]` before the loop. In the loop: `dw, db = gradient(w, b, x, y)`, then
# `w, b = w - learning_rate * dw, b - learning_rate * db`, then the append, then
# `if stop and stop([row[2] for row in path]): break`. At the end `np.array(path)`.
#
# </details>


# %%
def descend(x, y, learning_rate, steps=1000, stop=None):
    w, b = 0.0, 18.0
    # BEGIN SOLUTION: make the steps and return an array with one row (w, b, loss) for each point
    path = [(w, b, loss(w, b, x, y))]
    for _ in range(steps):
        dw, db = gradient(w, b, x, y)
        w, b = w - learning_rate * dw, b - learning_rate * db
        path.append((w, b, loss(w, b, x, y)))
        if stop and stop([row[2] for row in path]):
            break
    return np.array(path)
    # END SOLUTION


# %%
exercises.check_descend(descend)

# %% [markdown]
# ## Convergence test
#
# *Optional, 12 minutes.*
#
# When should the loop end? In practice people watch the loss and stop when it hardly changes any more. You
# write such a test now, and then you see what it overlooks.
#
# A change of the loss should be judged relative to the loss itself. For example, a change from 100 to 99.95
# is 0.05 percent, and so is a change from 0.0100 to 0.009995, although it is ten thousand times smaller.
#
# ### Exercise 3: Convergence test
#
# **What:** report whether the last loss differs from the previous loss by less than 0.1 % of the previous loss.
#
# **Why:** the test must also cope with losses that oscillate, with losses that grow until they are infinite or
# NaN (*not a number*, the result of an undefined operation), and with the very first step.
#
# **Signature:** `has_converged(losses)` takes a list and returns `True` or `False`. With fewer than two
# losses it returns `False`.
#
# <details><summary>Hint 1</summary>
#
# `losses[-1]` is the last loss and `losses[-2]` the one before it. A change can be positive or negative, and
# 0.1 % *of a loss* is a relative threshold.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For the losses 200 and 199.9 the change is 0.1 and the threshold is $0.001 \cdot 200 = 0.2$, so the answer
# is True. For the losses 2 and 1.9 the change is 0.1 as well, but the threshold is 0.002, so the answer is
# False.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Compare `abs(last - previous)` with `0.001 * previous`. The comparison `<` with NaN is false, so write the
# test such that false means "not converged".
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
# Now both descents run with the learning rate 0.001: one until your test stops it, and one for 1000 steps.

# %%
path = descend(x, y, learning_rate=0.001, stop=has_converged)
long_path = descend(x, y, learning_rate=0.001)
found = {"your test stops": path, "1000 steps": long_path}
table = {name: [len(p) - 1, *p[-1]] for name, p in found.items()}
table["least squares"] = [0, w_best, b_best, least]
pd.DataFrame(table, index=["steps", "w", "b", "loss"]).T.round(2)

# %% tags=["folded"]
w_path, b_path, loss_path = long_path.T
with interactive(
    "The same surface with the path of gradient descent. The path falls steeply to the floor of the valley "
    "and then moves along the floor in short steps; the point where your test stops is far from the minimum."
):
    axes = draw_surface()
    axes.plot(w_path, b_path, loss_path, color="#D55E00", marker=".", label="1000 steps of descent")
    axes.plot(*path[-1], "o", color="#CC79A7", markeredgecolor="black", label="your test stops")
    axes.legend(loc="upper right")
    plt.show()

# %% [markdown]
# **What the result means.** About fifty steps bring the descent down to the floor of the valley. After that
# it moves along the floor in very small steps, because the gradient is small there. When your test stops, the
# bias is still far from its best value, and even after 1000 steps it has not arrived. Your test is correct. But
# a small change of the loss does not mean that the parameters are close to the minimum. It can also mean that
# the steps are small.
#
# ## Learning rate and its limit
#
# *Core, 8 minutes.*
#
# How large may the learning rate be? First we answer this question for one parameter.
#
# Take the loss $L(w) = \tfrac{1}{2} \lambda w^2$. It is a parabola with its minimum at 0. Its second
# derivative is $\lambda$ (lambda), which is called the *curvature*: the larger it is, the narrower is the
# parabola. The gradient is $\lambda w$, so one step gives
#
# $$w \leftarrow w - \eta \lambda w = (1 - \eta \lambda)\, w .$$
#
# **Each step multiplies the distance from the minimum by the factor** $1 - \eta \lambda$. With $\lambda = 2$
# there are four cases:
#
# | learning rate | factor | $w$ after each step, if it begins at 1 |
# |---|---|---|
# | 0.1 | 0.8 | 0.8, 0.64, 0.51: it shrinks slowly |
# | 0.5 | 0 | 0: one step reaches the minimum |
# | 0.9 | -0.8 | -0.8, 0.64, -0.51: it changes sides and shrinks |
# | 1.1 | -1.2 | -1.2, 1.44, -1.73: it changes sides and grows |
#
# The distance shrinks if the factor lies between $-1$ and $1$. This holds for every $\eta$ below $2 /
# \lambda$, which is $2 / 2 = 1$ for the parabola of the table. Above this limit each step ends farther from
# the minimum than it began, and the descent **diverges** (*divergence*).
#
# ![Three copies of the same parabola. With the small learning rate 0.1 the points approach the minimum from one side. With 0.9 they jump from side to side and still come closer. With 1.1, above the limit 1, each jump ends higher than the one before.](pictures/learning_rate_limit.svg)
#
# The cause is that the gradient is a local slope. A long step leaves the region in which this slope is valid and
# jumps over the minimum.
#
# ### Prediction: the largest learning rate
#
# *Optional, 2 minutes.*
#
# Our loss has two parameters. Suppose for a moment that $b$ stays fixed and only $w$ is trained. The first
# derivative is $2\,\overline{e x}$, where the bar means the average over the examples. The second derivative
# is $2\,\overline{x^2}$. The cell prints $\overline{x^2}$. What is the limit of the learning rate, about? The
# limit for both parameters together is almost the same.

# %%
print(f"mean of the squares of x: {np.mean(x**2):.1f}")
# Prediction 1: the largest learning rate that converges. Replace both values of None.
prediction = workbook.predict(1, None, reason=None)

# %% [markdown]
# ## Hessian and its eigenvalues
#
# *Optional, 20 minutes. Later cells call `hessian` and `largest_step_size`.*
#
# With several parameters there is a second derivative for each pair of them. The matrix of all second
# derivatives is the **Hessian** $H$. For our loss it is
#
# $$H = \begin{pmatrix} \partial^2 L / \partial w^2 & \partial^2 L / \partial w\, \partial b \\
# \partial^2 L / \partial b\, \partial w & \partial^2 L / \partial b^2 \end{pmatrix} .$$
#
# It describes the shape of the bowl. An *eigenvector* of $H$ is a direction with a special property: on a
# line through the minimum in this direction the gradient points along the line, so a descent that starts
# there never leaves it. On this line the loss is a parabola as in the last section, and the *eigenvalue*
# $\lambda$ that belongs to the eigenvector is its curvature. At the distance $d$ from the minimum the loss is
# $\tfrac{1}{2} \lambda d^2$ above its least value. The eigenvectors are perpendicular to each other. The
# direction with the largest eigenvalue $\lambda_{\max}$ leads straight across the valley, and the direction
# with the smallest, $\lambda_{\min}$, leads along its floor.
#
# Let $\theta = (w, b)$ be the vector of the parameters and $\theta^*$ the minimum. At the minimum the gradient
# is zero. $H$ contains its derivatives, which are the same everywhere, so the gradient at $\theta$ is
# $H(\theta - \theta^*)$. For one parameter this is $\lambda w$ again. One step gives
#
# $$\theta - \theta^* \;\leftarrow\; (I - \eta H)\,(\theta - \theta^*) ,$$
#
# where $I$ is the identity matrix. Along each eigenvector this is the calculation with one parameter again:
# the distance is multiplied by $1 - \eta\lambda$. The descent converges only if all distances shrink, so the
# largest eigenvalue sets the limit:
#
# $$\eta < \frac{2}{\lambda_{\max}} .$$
#
# For example, the inputs $x = (3, -3)$ have the mean 0 and the mean square 9. Their Hessian is
# $\begin{pmatrix} 18 & 0 \\ 0 & 2 \end{pmatrix}$. The matrix is diagonal, so its eigenvalues are 18 and 2, and
# the largest learning rate is $2 / \lambda_{\max} = 2 / 18 = 0.11$. Along $b$, where the eigenvalue is 2, a
# learning rate of up to $2 / 2 = 1$ would be possible. But there is only one learning rate for both, and the
# steep direction limits it.
#
# ### Exercise 4: Hessian of the mean squared error
#
# **What:** return the Hessian of $L$ as an array of shape (2, 2), in the order $w$, $b$.
#
# **Why:** from it follow the largest learning rate and the number of steps. Notice on the way that it does
# not depend on $y$, $w$ or $b$: the measured values move the bowl, and do not change its shape.
#
# **Signature:** `hessian(x)` returns an array of shape (2, 2).
#
# <details><summary>Hint 1</summary>
#
# Differentiate $\partial L / \partial w = 2\,\overline{e x}$ once more with respect to $w$ and with respect
# to $b$. Do the same with $\partial L / \partial b = 2\,\bar e$. Two of the four results are equal.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For $x = (1, 3)$ the mean of $x$ is 2 and the mean of $x^2$ is 5. The Hessian is
# $\begin{pmatrix} 10 & 4 \\ 4 & 2 \end{pmatrix}$. Which means stand where, and what is the common factor?
#
# </details>
# <details><summary>Hint 3</summary>
#
# $H = 2 \begin{pmatrix} \overline{x^2} & \bar x \\ \bar x & 1 \end{pmatrix}$. Build it with
# `np.array([[..., ...], [..., ...]])`.
#
# </details>


# %%
def hessian(x):
    # BEGIN SOLUTION: return the 2 x 2 matrix of second derivatives
    mean, mean_square = np.mean(x), np.mean(x**2)
    return 2 * np.array([[mean_square, mean], [mean, 1.0]])
    # END SOLUTION


# %%
exercises.check_hessian(hessian)

# %% [markdown]
# ### Exercise 5: Largest learning rate
#
# **What:** return the limit $2 / \lambda_{\max}$ for the inputs `x`.
#
# **Why:** for a loss that is a bowl, you can then say before the descent whether it will diverge. The last
# section of this lab measures what is different in a network.
#
# **Signature:** `largest_step_size(x)` returns one number.
#
# <details><summary>Hint 1</summary>
#
# Use your `hessian(x)`. NumPy has a function for the eigenvalues of a symmetric matrix.
#
# </details>
# <details><summary>Hint 2</summary>
#
# For $x = (3, -3)$ `np.linalg.eigvalsh(hessian(x))` returns the array `[2., 18.]`, smallest first, and the
# answer is $2 / 18$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `eigvalsh` sorts the eigenvalues, so the largest has the index -1.
#
# </details>


# %%
def largest_step_size(x):
    # BEGIN SOLUTION: return 2 divided by the largest eigenvalue of the Hessian
    eigenvalues = np.linalg.eigvalsh(hessian(x))
    return 2 / eigenvalues[-1]
    # END SOLUTION


# %%
exercises.check_largest_step_size(largest_step_size)
bound = largest_step_size(x)
print(f"For our data the limit is {bound:.4f}.")
workbook.result(1, bound)

# %% [markdown]
# Compare the limit with your prediction. The curvature along $w$ is $2 \cdot 34.6 = 69$, so with $w$ as the
# only parameter the limit would be $2 / 69 = 0.029$. With both parameters the steepest direction is a
# mixture of $w$ and $b$ with a slightly larger curvature, 71, so the limit is slightly smaller, 0.028.
# A prediction near $2 / 2 = 1$ used the curvature along $b$, which is close to the flat direction.
#
# ## Experiment: loss after 10, 100 and 1000 steps
#
# *Optional, 6 minutes.*
#
# The experiment repeats the descent with learning rates from 0.01 to 1.2 times the limit, on two data sets.
# The figure shows the logarithm of the remaining loss, $\log_{10}\,(L / L_{\min} - 1)$. For example, the value
# $-2$ says that the loss is one percent above its minimum. Lines show results that the course measured before
# with ten data sets, and the points are yours. The experiment also runs with *centred* inputs, which a later
# section uses.

# %% tags=["folded"]


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

# %% tags=["folded"]
figure, axes = plt.subplots(figsize=(8, 4.5))
raw, raw_shipped = (t[t["inputs"] == "as they are"] for t in (runs, shipped))
overlay(axes, raw, raw_shipped, x="ratio", y="log10_left", by="steps")
axes.axvline(1, color="black", linestyle=":", label=r"the limit $2/\lambda_{\max}$")
if prediction is not None:
    inside = np.clip(prediction / bound, 0, 1.3)
    outside = "" if inside == prediction / bound else f" ({prediction / bound:.2g} times the limit)"
    predicted(axes, 0, f"your prediction{outside}", x=inside)
axes.set(
    xlabel="learning rate, as a multiple of the limit", ylabel=r"$\log_{10}(L / L_{\min} - 1)$"
)
axes.set(xlim=(-0.05, 1.35), ylim=(-6.3, 6.3), title="More steps help only below the limit")
axes.legend(bbox_to_anchor=(1.0, 0.5), loc="center left")
describe(
    figure,
    "Remaining loss against the learning rate in multiples of the limit, after 10, 100 and 1000 "
    "steps. Below 1 more steps give a lower loss; above 1 more steps give a higher loss.",
)

# %% [markdown]
# **What the result means.** Below the limit more steps reduce the loss. After 100 and 1000 steps a larger
# learning rate is better nearly up to the limit. Above the limit more steps *increase* the loss. In the
# reference results 0.98 times the limit converges on all ten data sets, and 1.02 times the limit diverges on
# all ten. So the loss gives no warning: the best learning rates of this long valley lie just below the limit.
#
# ## Oscillation and divergence
#
# *Optional, 4 minutes.*
#
# The next figure shows 25 steps at 0.97 and at 1.03 times the limit. The rings are lines of equal loss, and
# the star marks the minimum.

# %% tags=["folded"]


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
    draw_valley(axes, x, y, walk, f"{factor:g} times the limit")
    right.semilogy(walk[:, 2], label=f"{factor:g} times the limit")
right.axhline(least, color="black", linestyle=":", label="least loss")
right.set(xlabel="step", ylabel="loss")
left.legend(loc="lower right", frameon=True, framealpha=1)
right.legend(loc="upper left")
describe(
    figure,
    "Two maps of the valley and the losses. Just below the limit the descent jumps across the valley "
    "and the jumps become shorter; just above the limit they become longer and the loss grows.",
)

# %% [markdown]
# **What the result means.** Both descents jump from one side of the valley to the other, along the
# eigenvector with the largest eigenvalue, because $1 - \eta\lambda_{\max}$ is close to $-1$. At 0.97 times the
# limit each jump is 0.94 times as long as the one before. At 1.03 times the limit it is 1.06 times as long, and
# the loss rises with every step. **A loss that grows in every step is the sign of a learning rate that is too
# large.**
#
# ## Condition number
#
# *Optional, 14 minutes. Later cells call `steps_needed`.*
#
# Why is gradient descent slow when it works? One learning rate must serve all directions. The steep direction
# limits it, and with this small learning rate the flat direction needs many steps. The ratio of the two
# curvatures,
#
# $$\kappa = \frac{\lambda_{\max}}{\lambda_{\min}} ,$$
#
# is the **condition number** (kappa). It measures how elongated the valley is. A round bowl has $\kappa = 1$.
#
# ![Left: circles of equal loss, condition number 1, and a straight arrow from the start to the minimum. Right: long narrow ellipses of equal loss, condition number 16, and a zigzag path that crosses the valley many times while it moves slowly along it.](pictures/condition_number.svg)
#
# The best fixed learning rate is $\eta = 2 / (\lambda_{\min} + \lambda_{\max})$. With it the factors of the
# steepest and of the flattest direction have the same size,
#
# $$|1 - \eta \lambda| = \frac{\lambda_{\max} - \lambda_{\min}}{\lambda_{\max} + \lambda_{\min}}
# = \frac{\kappa - 1}{\kappa + 1} .$$
#
# A smaller learning rate brings the factor of the flattest direction closer to 1, and a larger one brings that
# of the steepest direction closer to $-1$. So after $n$ steps the distance from the minimum is at most
# $\left(\frac{\kappa - 1}{\kappa + 1}\right)^n$
# times what it was at the start.
#
# For example, with $\lambda = 18$ and $2$ the condition number is 9, the best learning rate is
# $2 / 20 = 0.1$, and the factors are $1 - 1.8 = -0.8$ and $1 - 0.2 = 0.8$. Each step leaves 80 % of the
# distance. Less than a hundredth of the distance is left after 21 steps, because $0.8^{20} = 0.0115$ and
# $0.8^{21} = 0.0092$. For large $\kappa$ the number of steps grows in proportion to $\kappa$.
#
# ### Exercise 6: Number of steps
#
# **What:** return the smallest whole number of steps after which the distance is at most $1 / r$ of what it
# was at the start, with the best fixed learning rate. The number $r$ is the argument `reduction`.
#
# **Why:** the exercise turns the shape of a loss surface into time.
#
# **Signature:** `steps_needed(condition_number, reduction)` returns a whole number. `reduction` is larger than 1.
# With a condition number of 1 it returns 1.
#
# <details><summary>Hint 1</summary>
#
# You look for the smallest $n$ with $q^n \le 1 / r$, where $q = (\kappa - 1) / (\kappa + 1)$. Take logarithms
# on both sides, and remember that $\log q$ is negative. Which case has no logarithm?
#
# </details>
# <details><summary>Hint 2</summary>
#
# With $\kappa = 3$ the factor is $q = 1/2$. For $r = 1000$ the answer is 10, because $2^{10} = 1024$ and
# $2^9 = 512$. The calculation is $\log 1000 / \log 2 = 9.97$, rounded up.
#
# </details>
# <details><summary>Hint 3</summary>
#
# If `q` is 0, return 1. Otherwise return `math.ceil(math.log(reduction) / -math.log(q))`.
#
# </details>


# %%
def steps_needed(condition_number, reduction):
    # BEGIN SOLUTION: return the smallest number of steps that divides the distance by reduction
    factor = (condition_number - 1) / (condition_number + 1)
    if factor == 0:
        return 1
    return math.ceil(math.log(reduction) / -math.log(factor))
    # END SOLUTION


# %%
exercises.check_steps_needed(steps_needed)

# %% [markdown]
# ## Input normalisation
#
# *Optional, 20 minutes.*
#
# Why is our valley so long? The inputs lie between 0 and 10. So a larger $w$ and a larger $b$ do nearly the
# same: both raise the line over the data. If $w$ is a little too large, then a smaller $b$ compensates most of
# the error. This is the floor of the valley.
#
# *Centring* subtracts the mean from the inputs, so that $\bar x = 0$. The Hessian becomes diagonal,
# $\begin{pmatrix} 2\,\overline{x^2} & 0 \\ 0 & 2 \end{pmatrix}$, where $\overline{x^2}$ is now the variance
# of $x$. *Normalisation* divides by the standard deviation as well, so that $\overline{x^2} = 1$.
#
# ### Prediction: centred inputs
#
# For our inputs the mean of the squares is 35, and the variance is 8.2. Does centring allow a larger learning
# rate, a smaller one, or the same? Answer "larger", "smaller" or "same", and give the reason.

# %%
# Prediction 2: is the limit of the learning rate "larger", "smaller" or the "same"? Replace both values of None.
workbook.predict(2, None, form=["larger", "smaller", "same"], reason=None)

# %% [markdown]
# The next cell computes the eigenvalues for three kinds of inputs, asks your `steps_needed` how many steps
# the descent needs until its loss is 0.01 % above the least loss, and counts the steps of a real descent.
# The loss above its minimum is proportional to the square of the distance, so `reduction` is a square root.


# %%
def shape_of_the_bowl(x):
    small, large = np.linalg.eigvalsh(hessian(x))
    best = loss(*np.polyfit(x, y, 1), x, y)
    losses = descend(x, y, 2 / (small + large))[:, 2]
    reduction = math.sqrt((losses[0] / best - 1) / 0.0001)
    counted = np.argmax(losses <= 1.0001 * best)
    return [small, large, large / small, 2 / large, steps_needed(large / small, reduction), counted]


centred = x - x.mean()
inputs = {"as they are": x, "centred": centred, "normalised": centred / centred.std()}
columns = ["lambda min", "lambda max", "condition number", "limit", "your steps", "counted steps"]
workbook.result(2, "larger" if largest_step_size(centred) > bound else "smaller")
pd.DataFrame({k: shape_of_the_bowl(v) for k, v in inputs.items()}, index=columns).T.round(2)

# %% tags=["folded"]
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), width_ratios=[3, 3, 5])
for axes, name in ((left, "as they are"), (middle, "centred")):
    walk = descend(inputs[name], y, 0.5 * largest_step_size(inputs[name]), steps=60)
    draw_valley(axes, inputs[name], y, walk, f"inputs {name}")
left.legend(loc="lower right", frameon=True, framealpha=1)
at_100, shipped_at_100 = (t[t["steps"] == 100] for t in (runs, shipped))
overlay(right, at_100, shipped_at_100, x="ratio", y="log10_left", by="inputs")
right.axvline(1, color="black", linestyle=":")
right.set(xlabel="learning rate, as a multiple of its own limit", ylim=(-6.3, 6.3))
right.set(ylabel=r"$\log_{10}(L / L_{\min} - 1)$ after 100 steps")
describe(
    figure,
    "Left: the descent in the long valley of the raw inputs. Middle: much rounder rings with centred "
    "inputs. Right: after 100 steps the loss with centred inputs is orders of magnitude lower.",
)

# %% [markdown]
# **What the result means.** The data and the best line are the same, and the bowl is a different one.
# Centring reduces the condition number from 151 to 8.2 and the number of steps from 464 to 26. The limit of
# the learning rate becomes four times as *large*, because the largest curvature falls from 71 to 16.
# Normalised inputs make the bowl round, and a single step with the learning rate 0.5 reaches the minimum.
# If you predicted "same" or "smaller", remember that the largest eigenvalue contains the mean of the squares of
# $x$. Your formula agrees with the counted steps exactly, because both directions shrink by the same factor.
#
# This is why the inputs of networks are normalised, for example the pixels of images. *Batch normalisation*
# (lab 7) does the same with the values inside a network.

# %% tags=["folded"]
some = (slice(None), [0.1, 0.5, 0.9, 1.1])  # all inputs, four ratios
compare(at_100, shipped_at_100, by=["inputs", "ratio"], value="log10_left").loc[some, :]

# %% [markdown]
# ### Exercise 7: Review of patches that change the learning rate
#
# **Level:** choose and justify.
#
# **What:** a colleague's function `fit` computes its learning rate from your Hessian, as 95 % of the limit. It
# promises that no step raises the loss, whatever the data are. Four patches shall make it simpler or faster.
# Decide which patches keep the promise. For each of the others give data with which a step raises the loss.
#
# **Why:** a patch can work on your data and diverge on those of its next user.
#
# **Signature:** `review_fit()` returns a dict from the letter of a patch to `"correct"` or to a case. A case is
# a dict such as `{"x": [-3.0, -1.0, 1.0, 3.0], "y": [-5.0, 0.0, 4.0, 9.0], "steps": 20}`, in which all four
# patches work.
#
# <details><summary>Hint 1</summary>
#
# Compare the learning rate of each patch with the limit $2 / \lambda_{\max}$. For which inputs is it larger?
#
# </details>
# <details><summary>Hint 2</summary>
#
# For $x = (1, 3)$ the Hessian is $\begin{pmatrix} 10 & 4 \\ 4 & 2 \end{pmatrix}$ and its largest eigenvalue is
# 11.7. What are the largest number on the diagonal and the *trace*, the sum of the diagonal?
#
# </details>
# <details><summary>Hint 3</summary>
#
# The trace is also the sum of the eigenvalues, and no eigenvalue is negative here. Centred inputs have the
# eigenvalues $2\,\overline{x^2}$ and 2. When is the second one larger?
#
# </details>

# %%
show_source(exercises.fit)
print(exercises.FIT_REVIEW)


# %%
def review_fit():
    # BEGIN SOLUTION: return {"a": ..., "b": ..., "c": ..., "d": ...} with "correct" or a case for each patch
    return {
        "a": {"x": [1.0, 3.0], "y": [4.0, 6.0], "steps": 20},
        "b": "correct",
        "c": {"x": [0.1, 0.3], "y": [4.0, 6.0], "steps": 20},
        "d": "correct",
    }
    # END SOLUTION


# %%
exercises.check_review_fit(review_fit)

# %% [markdown]
# ## Edge of stability
#
# *Optional, 32 minutes.*
#
# Does the limit $2 / \lambda_{\max}$ also hold for a network? The Hessian of our linear model is the same
# everywhere. The Hessian of a network depends on the weights, so its largest eigenvalue changes with every
# step. This section measures it during a training. The network has 784 inputs, two hidden layers of 64
# neurons with the function tanh, and 10 outputs, together 55,050 parameters. The loss is the mean squared
# error, summed over the outputs. The data are 500 images of Fashion-MNIST, and every step uses all of them.
#
# A Hessian with 55,050 rows would fill 24 GB. Its largest eigenvalue needs only *gradients*. If the weights
# move a short distance $\varepsilon$ along a vector $v$ of length 1, the gradient changes by
# $\varepsilon H v$, because $H$ contains its derivatives. So two gradients give the product $H v$. The
# **power iteration** multiplies a vector by $H$ again and again. Each product stretches the part along the
# steepest eigenvector the most, so the vector turns into this direction, and $v \cdot H v$ approaches
# $\lambda_{\max}$. For example, $H = \begin{pmatrix} 18 & 0 \\ 0 & 2 \end{pmatrix}$ turns $(1, 1)$ into
# $(18, 2)$ and then into $(324, 4)$.
#
# ### Exercise 8: Limit of the learning rate from gradients
#
# **Level:** blank page.
#
# **What:** find the largest learning rate with which gradient descent converges on a bowl. You get only a
# function that computes its gradient. Every method is allowed.
#
# **Why:** frameworks compute the gradient of any loss, but not the Hessian of a large network.
#
# **Signature:** `learning_rate_limit(gradient_at, theta)` returns one number. `theta` is an array with a point
# of the bowl, and `gradient_at(theta)` returns the gradient there.
#
# **Rubric:** the check measures three points, on six bowls with 1 to 600 parameters and condition numbers from
# 1 to 1,000.
#
# * The result is right within 5 %, also if `theta` is the minimum.
# * It needs at most 500 gradients.
# * `theta` stays unchanged.
#
# <details><summary>Hint 1</summary>
#
# On a bowl the gradient at $\theta + v$ minus the gradient at $\theta$ is exactly $H v$, for a $v$ of any length.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Begin with a random vector. The gradient is zero at the minimum, so it is no good beginning.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Repeat 100 times: divide `v` by `np.linalg.norm(v)`, compute the product $H v$, store `v @ product`, and
# continue with the product as the new `v`.
#
# </details>


# %%
def learning_rate_limit(gradient_at, theta):
    """Return the largest learning rate that converges on the bowl with this gradient."""
    # BEGIN SOLUTION: write the function, so that it fulfils the rubric
    v, here = np.random.default_rng(0).normal(size=theta.size), gradient_at(theta)
    for _ in range(100):
        v = v / np.linalg.norm(v)
        product = gradient_at(theta + v) - here  # H v
        eigenvalue, v = v @ product, product
    return 2 / eigenvalue
    # END SOLUTION


# %%
exercises.check_learning_rate_limit(learning_rate_limit)
line_limit = learning_rate_limit(
    lambda theta: np.array(gradient(*theta, x, y)), np.array([0.0, 18.0])
)
print(f"our line: {line_limit:.4f} from gradients, {bound:.4f} from the Hessian")

# %% [markdown]
# ### Prediction: three times the limit
#
# The cell below computes $2 / \lambda_{\max}$ for the random weights at the start. It then trains with 0.5,
# 1.5, 3 and 6 times this limit, 1,000 steps each. On our bowl 1.02 times the limit diverges. What happens to
# the network at three times the limit, compared with 0.5 times? Answer "diverges", "higher loss" or "lower
# loss", and give the reason.

# %%
# Prediction 3: the training with three times the limit. Replace both values of None.
workbook.predict(3, None, form=["diverges", "higher loss", "lower loss"], reason=None)

# %% tags=["folded"]
clothes = load_fashion_mnist()
if clothes.synthetic:
    print("These data are SYNTHETIC: every cell runs, but no number below can be compared.")
network = TanhNetwork(clothes.train_images[:500], clothes.train_labels[:500])
EDGE_STEPS = by_run_length(quick=40, learner=1000, reference=1000)


def gradient_at(weights):
    return network.loss_and_gradient(weights)[1]


def power_iteration(weights, v, repeats=10, epsilon=1e-3):
    """Return the largest eigenvalue of the Hessian, and its eigenvector, in which the next one can begin."""
    for _ in range(repeats):
        change = gradient_at(weights + epsilon * v) - gradient_at(weights - epsilon * v)
        product = change / (2 * epsilon)  # H v
        eigenvalue, v = v @ product, product / np.linalg.norm(product)
    return eigenvalue, v


def train_at_the_edge(ratio, seed):
    weights = network.start(seed)
    v = np.random.default_rng(seed).normal(size=weights.size).astype("float32")
    eigenvalue, v = power_iteration(weights, v / np.linalg.norm(v), repeats=40)
    learning_rate, rows = np.float32(ratio * 2 / eigenvalue), []
    for step in range(EDGE_STEPS + 1):
        loss, slope = network.loss_and_gradient(weights)
        if loss > 1000:  # the descent has diverged
            break
        if step < 5 or step % 20 == 0:
            eigenvalue, v = power_iteration(weights, v)
            row = {"step": step, "loss": loss, "eigenvalue": eigenvalue}
            rows.append(row | {"of_limit": learning_rate * eigenvalue / 2})
        weights = weights - learning_rate * slope
    return rows


edge_settings = grid(ratio=[0.5, 1.5, 3.0, 6.0], seed=seeds(1, 5))
edge = sweep("edge_of_stability", train_at_the_edge, edge_settings)
shipped_edge = reference("edge_of_stability")

# %% tags=["folded"]
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5))
times = {ratio: f"{ratio:g} times the limit" for ratio in (0.5, 1.5, 3.0, 6.0)}
own_points = edge[(edge["step"] < 5) | (edge["step"] % 100 == 0)]  # so that the lines stay visible
for axes, column in ((left, "loss"), (right, "of_limit")):
    overlay(axes, own_points, shipped_edge, x="step", y=column, by="ratio", labels=times)
    axes.set(xlabel="step", yscale="log")
left.set(ylim=(0.005, 50), ylabel="loss")
right.axhline(1, color="black", linestyle=":", linewidth=2)
right.text(1.02, 1, r"$2/\eta$", transform=right.get_yaxis_transform(), va="center")
right.set(ylim=(0.4, 8), ylabel=r"largest eigenvalue, in units of $2/\eta$")
right.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
right.minorticks_off()
right.get_legend().remove()
describe(
    figure,
    "Left: the loss of the network falls with 0.5, 1.5 and 3 times the limit, and grows without end with "
    "6 times. Right: the largest eigenvalue in units of 2 divided by the learning rate. With 0.5 times the "
    "limit it rises to 1, with 1.5 and 3 times it falls to about 1, and then it stays there.",
)
tried = complete(edge, shipped_edge, "ratio", 0.5, 3.0)
ends = tried[tried["step"] == tried["step"].max()].groupby("ratio")["loss"].median()
lower = "lower loss" if ends.get(3.0, np.inf) < ends[0.5] else "higher loss"
workbook.result(3, lower if 3.0 in ends else "diverges")  # then it ends before the last step

# %% tags=["folded"]
by_end = [t[t["step"].isin([0, EDGE_STEPS])] for t in (edge, shipped_edge)]
compare(*by_end, by=["ratio", "step"], value="loss")

# %% [markdown]
# **What the result means.** The limit at the start, 0.043, does not decide about this training. In the
# reference results (n = 5 seeds) the training at three times the limit converges and ends at the *lowest*
# loss, 0.013, compared with 0.069 at half of the limit. If you predicted "diverges", you applied the rule for
# a bowl, in which $\lambda_{\max}$ is a constant. The right panel explains the result:
#
# * With three times the limit the first steps are unstable, and the loss rises in some of them. They move
#   the weights to a place where $\lambda_{\max}$ is smaller, and there the training continues.
# * With half of the limit $\lambda_{\max}$ rises steadily, until it reaches $2 / \eta$. It then stays there,
#   and so it does with the larger learning rates, at 1.0 to 1.1 times $2 / \eta$.
#
# This state is called the **edge of stability** ([Cohen et al. 2021](https://arxiv.org/abs/2103.00065)). The
# loss no longer falls in every step: in the reference it rose in about a third of the intervals of 20 steps.
# Over many steps it still falls. So $\lambda_{\max}$ adapts to the learning rate, in contrast to our bowl,
# where the learning rate must adapt to $\lambda_{\max}$. There is a limit for the network as well: with six
# times the value at the start all five trainings diverged in their first ten steps. But you cannot compute it
# from the Hessian at the start. In practice it is found by trying learning rates.

# %% [markdown]
# ## Summary
#
# *Core, 2 minutes.*
#
# * Gradient descent subtracts the gradient, multiplied by the learning rate, from the parameters, again and
#   again.
# * Along each eigenvector of the Hessian one step multiplies the distance from the minimum by
#   $1 - \eta\lambda$. Therefore the descent on a quadratic loss converges only for
#   $\eta < 2 / \lambda_{\max}$. In the experiment 0.98 times this limit converged and 1.02 times diverged.
# * In a network $\lambda_{\max}$ rises during training until it is about $2 / \eta$, and the loss still falls
#   (edge of stability).
# * The condition number $\kappa = \lambda_{\max} / \lambda_{\min}$ decides how many steps the descent needs.
#   With the best fixed learning rate each step leaves $(\kappa - 1) / (\kappa + 1)$ of the distance.
# * Normalised inputs make the condition number small. For our data centring reduced it from 151 to 8.2.
# * A loss that has stopped changing does not prove that the parameters have reached the minimum: along a flat
#   direction the steps are small.
#
# **To continue, if you like:** run `descend(x, y, learning_rate=1e-6, stop=has_converged)`. After how many
# steps does your test stop it, and why? With what could you compare the change of the loss instead?
#
# ## Self-check questions
#
# *Core, 3 minutes.*

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer="c")

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer=0.05)

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer="b")

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer="a")

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer="d")

# %%
workbook.question(6, answer=None)

# %% tags=["solution"]
workbook.question(6, answer=0.75)

# %%
workbook.question(7, answer=None)

# %% tags=["solution"]
workbook.question(7, answer="b")

# %% [markdown]
# **Next:** in this lab each step used all examples. [Lab 3](03_stochastic_gradient_descent.ipynb) computes
# the gradient from a few examples at a time, trains real networks with it, and asks how many examples a
# step should use.
