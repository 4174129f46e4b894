# %% [markdown]
# # Entry test and algebra bridge
#
# This notebook has two parts, and both are optional.
#
# * The **entry test** has 17 short questions and takes about five minutes. It marks which sections of labs 1 to
#   3 you can skip. The marks are advice: nothing is graded, and nothing is locked.
# * The **algebra bridge** takes about 30 minutes. It explains eigenvalues, the variance of a mean, and curvature
#   from small numbers, for those sections of labs 2 and 3 that use them.

# %%
import math

import numpy as np

from hvdlab.course import entry_test
from hvdlab.course.workbook import Workbook
from hvdlab.exercises import lab00_algebra as exercises

workbook = Workbook(entry_test.LAB)
hint = workbook.hint

# %% [markdown]
# ## Entry test
#
# Replace `None` by the letter of your answer, in quotes, and run the cell. If you would have to guess, choose
# **d**, "I do not know." The cell then says which section explains it. Your last answer counts, so leave a
# wrong answer as it is: it shows which sections help you.

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer="b")

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer="a")

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer="c")

# %%
workbook.question(4, answer=None)

# %% tags=["solution"]
workbook.question(4, answer="c")

# %%
workbook.question(5, answer=None)

# %% tags=["solution"]
workbook.question(5, answer="a")

# %%
workbook.question(6, answer=None)

# %% tags=["solution"]
workbook.question(6, answer="b")

# %%
workbook.question(7, answer=None)

# %% tags=["solution"]
workbook.question(7, answer="c")

# %%
workbook.question(8, answer=None)

# %% tags=["solution"]
workbook.question(8, answer="c")

# %%
workbook.question(9, answer=None)

# %% tags=["solution"]
workbook.question(9, answer="a")

# %%
workbook.question(10, answer=None)

# %% tags=["solution"]
workbook.question(10, answer="b")

# %%
workbook.question(11, answer=None)

# %% tags=["solution"]
workbook.question(11, answer="c")

# %%
workbook.question(12, answer=None)

# %% tags=["solution"]
workbook.question(12, answer="a")

# %%
workbook.question(13, answer=None)

# %% tags=["solution"]
workbook.question(13, answer="b")

# %%
workbook.question(14, answer=None)

# %% tags=["solution"]
workbook.question(14, answer="c")

# %%
workbook.question(15, answer=None)

# %% tags=["solution"]
workbook.question(15, answer="b")

# %%
workbook.question(16, answer=None)

# %% tags=["solution"]
workbook.question(16, answer="a")

# %%
workbook.question(17, answer=None)

# %% tags=["solution"]
workbook.question(17, answer="b")

# %% [markdown]
# ## Your marks
#
# The next cell lists the sections of labs 1 to 3. The marks mean:
#
# * **skip**: all your answers about this section are right. Run its cells, because later cells need them, and
#   continue with the next section.
# * **skim**: some of your answers are right, or all of them are and later cells call a function that you write
#   in this section. Read the examples in it, and do the exercises.
# * **do**: no answer is right, an answer is missing or "I do not know", or the test has no question about this
#   section.
#
# "Core" and "optional" do not depend on your answers. The later labs build on the core sections. The mark of an
# optional section says how to read it, if you have time for it.

# %%
entry_test.show()

# %% [markdown]
# ## Algebra bridge: eigenvalues
#
# A loss with two parameters is a surface, and lab 2 describes its shape by a matrix of two rows and two columns.
# The *eigenvalues* of this matrix say how steep the surface is in its flattest and in its steepest direction.
#
# A matrix multiplied by a vector gives another vector. Each component of the result is a row of the matrix,
# multiplied by the vector element by element and added up. For example,
#
# $$\begin{pmatrix} 3 & 1 \\ 1 & 3 \end{pmatrix} \begin{pmatrix} 1 \\ 0 \end{pmatrix}
# = \begin{pmatrix} 3 \cdot 1 + 1 \cdot 0 \\ 1 \cdot 1 + 3 \cdot 0 \end{pmatrix}
# = \begin{pmatrix} 3 \\ 1 \end{pmatrix} .$$
#
# The result has another direction than the vector $(1, 0)$. A few vectors keep their direction. The same matrix
# turns $(1, 1)$ into $(4, 4)$, which is 4 times $(1, 1)$, and it turns $(1, -1)$ into $(2, -2)$, which is 2 times
# $(1, -1)$. A vector $v$ that a matrix $H$ only stretches is an **eigenvector**, and the factor is its
# **eigenvalue** $\lambda$:
#
# $$H v = \lambda v .$$
#
# To find the factor, multiply both sides by $v$ as a dot product, which is the sum of the products of the
# components. This gives $v \cdot H v = \lambda\, v \cdot v$. For $v = (1, 1)$ it is $4 + 4 = \lambda \cdot 2$, so
# $\lambda = 4$.
#
# ### Exercise 1: Eigenvalue of an eigenvector
#
# **What:** return the eigenvalue that belongs to a given eigenvector.
#
# **Why:** the eigenvalue is the curvature of the loss in the direction of this vector.
#
# **Signature:** `eigenvalue_of(matrix, vector)` takes an array of shape (2, 2) and an eigenvector, an array of
# shape (2,), and returns a number.
#
# <details><summary>Hint 1</summary>
#
# In NumPy `matrix @ vector` is the product of a matrix and a vector, and `a @ b` is the dot product of two
# vectors.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: the matrix with the rows $(18, 0)$ and $(0, 2)$ turns $(0, 5)$ into $(0, 10)$. The dot products
# are $v \cdot H v = 50$ and $v \cdot v = 25$, so the eigenvalue is $50 / 25 = 2$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `product = matrix @ vector`, and then `product @ vector / (vector @ vector)`.
#
# </details>


# %%
def eigenvalue_of(matrix, vector):
    # BEGIN SOLUTION: return the eigenvalue of an eigenvector
    product = matrix @ vector
    return product @ vector / (vector @ vector)
    # END SOLUTION


# %%
exercises.check_eigenvalue_of(eigenvalue_of)

# %% [markdown]
# The matrices of lab 2 are *symmetric*: the two elements outside the diagonal are equal. A symmetric matrix of
# two rows and two columns has two eigenvectors that are perpendicular to each other. Their eigenvalues have a
# formula. For the rows $(a, b)$ and $(b, d)$ they are
#
# $$\lambda = \frac{a + d}{2} \pm \sqrt{\left(\frac{a - d}{2}\right)^2 + b^2} .$$
#
# For example, with $a = 3$, $b = 1$ and $d = 3$ they are $3 \pm \sqrt{0 + 1}$, which is 2 and 4, as above. With
# $b = 0$ the matrix is *diagonal*, and the formula gives $a$ and $d$. So the eigenvalues of a diagonal matrix
# stand on its diagonal.
#
# ### Exercise 2: Eigenvalues of a symmetric matrix
#
# **What:** return both eigenvalues of the symmetric matrix with the rows $(a, b)$ and $(b, d)$.
#
# **Why:** the larger one limits the learning rate in lab 2, and the smaller one decides how long the descent
# takes.
#
# **Signature:** `eigenvalues(a, b, d)` returns two numbers, the smaller one first.
#
# <details><summary>Hint 1</summary>
#
# Compute the two parts of the formula first: the mean of $a$ and $d$, and the square root.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: $a = 7$, $b = 3$, $d = -1$. The mean is 3, and the root is $\sqrt{4^2 + 3^2} = 5$. The
# eigenvalues are $-2$ and 8.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `middle = (a + d) / 2` and `radius = math.sqrt(((a - d) / 2) ** 2 + b**2)`. Return `middle - radius` and
# `middle + radius`.
#
# </details>


# %%
def eigenvalues(a, b, d):
    # BEGIN SOLUTION: return the smaller and the larger eigenvalue
    middle = (a + d) / 2
    radius = math.sqrt(((a - d) / 2) ** 2 + b**2)
    return middle - radius, middle + radius
    # END SOLUTION


# %%
exercises.check_eigenvalues(eigenvalues)
print("your function:", eigenvalues(10, 4, 2))
print("NumPy:        ", np.linalg.eigvalsh([[10, 4], [4, 2]]))

# %% [markdown]
# ## Algebra bridge: variance of a mean
#
# A gradient in lab 3 is the mean over a few examples that are drawn at random, so it is inexact. The *variance*
# measures by how much. It is the mean of the squared distances from the mean. For example, the values 1, 5, 3 and
# 7 have the mean 4. The distances from it are $-3$, 1, $-1$ and 3, and the variance is $(9 + 1 + 1 + 9) / 4 = 5$.
# Its square root, about 2.2, is the *standard deviation*.
#
# Now draw $n$ of these values at random, each from all four, and take their mean. Two rules give its variance.
#
# * The variance of a sum of independent values is the sum of their variances, here $n \cdot 5$.
# * If a value is divided by $n$, its variance is divided by $n^2$, because the variance consists of squares.
#
# The mean is the sum divided by $n$, so its variance is $n \cdot 5 / n^2 = 5 / n$. With $n = 4$ it is 1.25. **Four
# times as many examples give a quarter of the variance and half of the standard deviation.**
#
# ### Exercise 3: Variance of a mean
#
# **What:** return the variance of the mean of `n` values that are drawn independently from `values`, each time
# from all of them.
#
# **Why:** this is the noise of a gradient from a batch of `n` examples.
#
# **Signature:** `variance_of_mean(values, n)` takes an array and a whole number, and returns a number.
#
# <details><summary>Hint 1</summary>
#
# `np.var(values)` is the variance of a single value. What does the mean of `n` values change?
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: the values 0 and 10 have the variance 25. The mean of 100 values has the variance
# $25 / 100 = 0.25$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Divide `np.var(values)` by `n`.
#
# </details>


# %%
def variance_of_mean(values, n):
    # BEGIN SOLUTION: return the variance of the mean of n values
    return np.var(values) / n
    # END SOLUTION


# %%
exercises.check_variance_of_mean(variance_of_mean)
values = np.array([1.0, 5.0, 3.0, 7.0])
means = np.random.default_rng(1).choice(values, (100_000, 4)).mean(axis=1)
print(f"100,000 means of 4 values: variance {np.var(means):.3f}")
print(f"your function:             variance {variance_of_mean(values, 4):.3f}")

# %% [markdown]
# ## Algebra bridge: second difference and curvature
#
# The *slope* of a curve says how fast it rises. The second derivative says how fast the slope changes, and labs 2
# and 3 call it the *curvature*. It is positive where the curve bends upwards, as in a bowl, and negative where it
# bends downwards.
#
# A computer often knows a loss at a few points only. Let three points have the same distance $h$ from one to the
# next, and the losses $L_0$, $L_1$ and $L_2$. The slope between the first two is $(L_1 - L_0) / h$, and between the
# last two it is $(L_2 - L_1) / h$. The curvature is the change of the slope, divided by $h$:
#
# $$\frac{L_2 - L_1}{h^2} - \frac{L_1 - L_0}{h^2} = \frac{L_2 - 2 L_1 + L_0}{h^2} .$$
#
# The numerator is called the **second difference**. For example, the parabola $w^2$ has the values 4, 1, 0, 1 and 4
# at $w = -2, -1, 0, 1, 2$. All three second differences are 2: $0 - 2 + 4$, $1 - 0 + 1$ and $4 - 2 + 0$. This is the
# second derivative of $w^2$.
#
# ### Exercise 4: Curvature from losses
#
# **What:** return the curvature at each inner point, which is a point with a neighbour on both sides.
#
# **Why:** the curvature limits the learning rate in lab 2. Lab 3 measures with it where the loss of a network
# bends downwards.
#
# **Signature:** `curvature(losses, distance)` takes an array of losses at points of equal distance, and returns
# an array that has two elements fewer.
#
# <details><summary>Hint 1</summary>
#
# For each inner point you need the loss after it, its own loss, and the loss before it. Slices of the array have
# them for all inner points at once.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: the losses 0, 1, 0 with the distance 0.5 have one inner point. The second difference is
# $0 - 2 + 0 = -2$, and the curvature is $-2 / 0.25 = -8$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `losses[2:]` are the losses after the inner points, `losses[1:-1]` their own, and `losses[:-2]` those before.
# Divide `losses[2:] - 2 * losses[1:-1] + losses[:-2]` by `distance**2`.
#
# </details>


# %%
def curvature(losses, distance):
    # BEGIN SOLUTION: return the curvature at each inner point
    return (losses[2:] - 2 * losses[1:-1] + losses[:-2]) / distance**2
    # END SOLUTION


# %%
exercises.check_curvature(curvature)
w = np.linspace(-1, 1, 5)
print("curvature of 2 w^2:", curvature(2 * w**2, distance=0.5))

# %% [markdown]
# ## Where the labs use it
#
# * Lab 2, *Hessian and its eigenvalues*: the matrix of the second derivatives of the loss. Its eigenvalues are the
#   curvatures in the directions of its eigenvectors.
# * Lab 3, *Noise ball*: the variance $C / B$ of the gradient of a batch of $B$ examples.
# * Lab 3, *Skip connections* in the optional notebook: the fraction of the points at which a loss bends downwards.
#
# Next: [Lab 1: Why many GPUs](01_why_many_gpus.ipynb), or back to [the start page](00_start_here.ipynb).
