# %% [markdown]
# # Lab 1, optional: Learning curves and large models
#
# This notebook continues lab 1. It shows that the need for data, parameters and GPU time can be predicted, and
# computes it for real training runs. No later lab needs it.
#
# **After this notebook you can** fit a power law to a learning curve, and compute the data, the operations, the
# GPU-days and the best model size of a training run, and compare training with inference.
#
# **Builds on** lab 1. **Time:** 40 minutes. The computer needs a few seconds of them.

# %% tags=["folded"]
import math

import matplotlib.pyplot as plt
import numpy as np

from hvdlab.course.figures import describe
from hvdlab.course.learning_curves import learning_curve
from hvdlab.course.workbook import Workbook
from hvdlab.exercises import lab01_why_many_gpus as exercises

workbook = Workbook(1)
hint = workbook.hint

# %% [markdown]
# ## Learning curves and growing data sets
#
# *Optional, 17 minutes.*
#
# A **learning curve** shows the error of a network on new examples as a function of the number $n$ of
# examples that it was trained on. The error is, for example, the fraction of images that it recognises
# wrongly. [Hestness et al. (2017)](https://arxiv.org/abs/1712.00409) measured learning curves for machine
# translation, language models of words and of characters, image classification, and speech recognition. In
# all five tasks they found a **power law**, which is a formula with the variable raised to a constant
# power:
#
# $$\text{error}(n) = a\, n^{-b}.$$
#
# Here $a$ sets the height of the curve, and the exponent $b$ says how steeply it falls. The logarithm of both
# sides is $\log(\text{error}) = \log a - b \log n$. This is a straight line with the slope $-b$, if both axes
# are logarithmic.
#
# ![A learning curve on logarithmic axes in three regions. With few examples it is level, then it falls as a straight line with slope minus b, and in the end it approaches the irreducible error.](pictures/learning_curve.svg)
#
# The picture shows the three regions that the paper describes. At the end the curve approaches the
# **irreducible error**, which no amount of data removes. One reason for it is that some *labels*, the answers
# given with the examples, are wrong.
#
# The exponents of the five tasks are between 0.07 and 0.35. Half the error needs $2^{1/b}$ times as many
# examples, because $a\,(n\,2^{1/b})^{-b} = a\,n^{-b}/2$. For example, with $b = 0.35$ this is $2^{1/0.35} =
# 7.2$ times the data. With $b = 0.07$ it is about 20,000 times the data. So data sets grow fast, because
# every further halving multiplies them by the same large factor. According to the paper, a better network
# design mostly lowers $a$ and does not change $b$.
#
# ### Experiment: a learning curve of your own
#
# The simplest predictor remembers all examples. For a new point it answers with the label of the most similar
# example, the *nearest neighbour*. In our experiment an example consists of 4 random numbers between 0 and 1,
# and its label is their sum. With more examples, the nearest one is closer, and the error is smaller. The
# cell measures the error with 125 to 2,000 examples, as the mean of five repetitions.

# %%
few = np.array([125, 250, 500, 1000, 2000])
measured = learning_curve(few, numbers=4)
for n, error in zip(few, measured, strict=True):
    print(f"{n:5} examples: error {error:.3f}")

# %% [markdown]
# ### Exercise 8: Fit a power law
#
# **What:** return $a$ and $b$ of the power law that fits given points best.
#
# **Why:** with $a$ and $b$ you can predict the error for more data, before you pay for them.
#
# **Signature:** `fit_power_law(n, error)` takes two arrays and returns two numbers, `a, b`.
#
# <details><summary>Hint 1</summary>
#
# The logarithms of the points lie on a straight line. `np.polyfit(x, y, 1)` fits a straight line and returns
# its slope and its intercept.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: the points (1, 8), (2, 4), (4, 2) halve at each doubling, so the slope is $-1$ and $b = 1$.
# At $n = 1$ the logarithm of $n$ is 0, so the intercept is $\log 8$, and $a = 8$ is the exponential of the
# intercept.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `slope, intercept = np.polyfit(np.log(n), np.log(error), 1)`. Then return `np.exp(intercept)` and `-slope`.
#
# </details>


# %%
def fit_power_law(n, error):
    # BEGIN SOLUTION: return a and b of error = a n^-b
    slope, intercept = np.polyfit(np.log(n), np.log(error), 1)
    return np.exp(intercept), -slope
    # END SOLUTION


# %%
exercises.check_fit_power_law(fit_power_law)

# %% [markdown]
# ### Exercise 9: Predict the data for a smaller error
#
# **What:** return the number of examples at which the power law reaches a given error.
#
# **Why:** this number, times the price of an example, is the price of the improvement.
#
# **Signature:** `examples_for_error(error, a, b)` returns a number.
#
# <details><summary>Hint 1</summary>
#
# Solve $\text{error} = a\,n^{-b}$ for $n$. First bring $n^b$ to one side.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: $a = 2$, $b = 0.5$ and an error of 0.5. Then $n^{0.5} = 2 / 0.5 = 4$, so $n = 4^2 = 16$. The
# power 2 is $1 / 0.5$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# $n = (a / \text{error})^{1/b}$. In Python, `x ** (1 / b)` is the power.
#
# </details>


# %%
def examples_for_error(error, a, b):
    # BEGIN SOLUTION: return n so that a n^-b is the error
    return (a / error) ** (1 / b)
    # END SOLUTION


# %%
exercises.check_examples_for_error(examples_for_error)

# %% [markdown]
# ### Prediction beyond the measured range
#
# The theory of nearest neighbours says that the exponent is $b = 1/d$ for examples of $d$ numbers, because
# the distance to the nearest of $n$ random points in $d$ dimensions shrinks like $n^{-1/d}$. For $d = 4$ half
# the error therefore needs $2^4 = 16$ times the examples. What about $d = 12$?

# %%
# Prediction 2: by what factor must n grow for half the error, if an example has 12 numbers? Replace both values of None.
workbook.predict(2, None, reason=None)

# %%
curves = {}
for numbers in (4, 12):
    curves[numbers] = learning_curve(few, numbers)
    a, b = fit_power_law(few, curves[numbers])
    now, half = curves[numbers][-1], curves[numbers][-1] / 2
    factor = examples_for_error(half, a, b) / examples_for_error(now, a, b)
    later = learning_curve([16_000], numbers)[0]
    print(
        f"{numbers:2} numbers: b = {b:.2f}, half the error needs {factor:,.0f} times the examples;"
    )
    print(f"            at 16,000 examples predicted {a * 16_000**-b:.3f}, measured {later:.3f}")
workbook.result(2, factor)  # for 12 numbers

# %% tags=["folded"]
figure, axes = plt.subplots()
all_sizes = np.geomspace(100, 20_000, 50)
for (numbers, errors), style in zip(curves.items(), ("-", "--"), strict=True):
    a, b = fit_power_law(few, errors)
    (line,) = axes.loglog(all_sizes, a * all_sizes**-b, style, label=f"{numbers} numbers: fit")
    axes.plot(few, errors, "o", color=line.get_color(), label="measured, used by the fit")
    check = learning_curve([16_000], numbers)
    axes.plot(
        [16_000],
        check,
        "s",
        markeredgecolor="black",
        color=line.get_color(),
        label="measured afterwards",
    )
axes.set(xlabel="number of examples", ylabel="error on new points")
axes.legend(bbox_to_anchor=(1, 0.5), loc="center left")
describe(
    figure,
    "Two learning curves on logarithmic axes, which are straight lines. The curve for 4 numbers falls steeply and the one for 12 numbers "
    "hardly falls. Both fits nearly reach the point at 16,000 examples, which they did not use.",
)

# %% [markdown]
# With 4 numbers the measured exponent is close to 1/4, and the fit predicts the error at 16,000 examples,
# eight times the largest $n$ that it used, within a few percent. With 12 numbers the theory gives a factor of
# $2^{12} = 4{,}096$, and the measured exponent gives some thousands. So a prediction of some thousands was
# right. If you predicted three times the factor for 4 numbers, $3 \cdot 16 = 48$, because 12 is three times
# 4: this is nearly a hundred times too small, because the number of dimensions is in the exponent.
#
# The fit has two limits. With few points it is inexact, and a small error of $b$ is a large error of the
# factor $2^{1/b}$. It also ignores the irreducible error. Our data have none, but real data have.

# %% [markdown]
# ## Growth of the models
#
# *Optional, 10 minutes.*
#
# A small network cannot use a large data set, because its few parameters cannot represent what is in the
# data. So the *model*, which means the network, must grow with the data. Hestness et al. searched for the
# best model size for each amount of data. For every task it grew **sublinearly**, that is, like a power of
# $n$ below 1. Ten times the data need a model that is larger, but less than ten times as large.
#
# For language models, [Kaplan et al. (2020)](https://arxiv.org/abs/2001.08361) measured three power laws of
# the *loss*, the number by which training measures the error. *Tokens* are pieces of words.
#
# * With the number $N$ of parameters the loss falls like $N^{-0.076}$.
# * With the number $D$ of tokens in the data set it falls like $D^{-0.095}$.
# * With the compute $C$ it falls like $C^{-0.050}$.
#
# Each law holds as long as the other quantities do not limit the result. For example, a large model gains
# little if the data set is too small for it.
#
# Data and model together determine the compute. The *forward pass*, which computes the answer, needs about
# $2N$ operations per token: one multiplication and one addition per parameter. The *backward pass*, which
# computes how each parameter must change, needs twice as many. Together
#
# $$C = 6\,N\,D .$$
#
# For example, $N = 10^9$ parameters and $D = 20 \cdot 10^9$ tokens need $6 \cdot 10^9 \cdot 2 \cdot 10^{10} =
# 1.2 \cdot 10^{20}$ operations, 1.4 petaflop/s-days.
#
# How should a fixed compute be divided between $N$ and $D$? [Hoffmann et al.
# (2022)](https://arxiv.org/abs/2203.15556) trained over 400 language models and found that $N$ and $D$ should
# grow in the same proportion. Their model Chinchilla has 70 billion parameters and 1.4 trillion tokens, 20
# tokens per parameter. It was better than Gopher, a model with four times as many parameters and about the
# same compute.
#
# Two earlier results differ from this proportion. Kaplan et al. had recommended spending most of the compute
# on larger models. [Later work](https://arxiv.org/abs/2406.12907) found the main reason for the difference:
# Kaplan et al. did not count all parameters, and measured only small models. Hestness et al., who found that
# the model grows more slowly than the data, looked for the best model for given data and not for given
# compute, and their networks were smaller. For large language models, follow Hoffmann et al.
#
# ### Exercise 10: The best model for a given compute
#
# **What:** return the number of parameters and the number of tokens that use a compute of $C$ operations with
# $r$ tokens per parameter.
#
# **Why:** it is the first decision of every large training run.
#
# **Signature:** `compute_optimal(operations, tokens_per_parameter)` returns `parameters, tokens`.
#
# <details><summary>Hint 1</summary>
#
# There are two equations, $C = 6ND$ and $D = rN$. Insert the second into the first.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: $C = 240$ and $r = 10$. Then $240 = 6 \cdot N \cdot 10 N = 60 N^2$, so $N^2 = 4$, $N = 2$
# and $D = 20$. Indeed $6 \cdot 2 \cdot 20 = 240$.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `parameters = math.sqrt(operations / (6 * tokens_per_parameter))`, and the tokens are `tokens_per_parameter`
# times as many.
#
# </details>


# %%
def compute_optimal(operations, tokens_per_parameter):
    # BEGIN SOLUTION: return the numbers of parameters and tokens
    parameters = math.sqrt(operations / (6 * tokens_per_parameter))
    return parameters, tokens_per_parameter * parameters
    # END SOLUTION


# %%
exercises.check_compute_optimal(compute_optimal)
for operations in (5.8e23, 5.8e25):
    parameters, tokens = compute_optimal(operations, 20)
    print(f"{operations:.1e} operations: {parameters:.1e} parameters, {tokens:.1e} tokens")

# %% [markdown]
# The first line is the compute of Chinchilla, and your function returns about its size. A hundred times the
# compute gives ten times the parameters and ten times the tokens, because with $D = 20 N$ the compute is $120
# N^2$.
#
# Training and **inference**, the use of a trained network, are paid from one budget. A team that expects
# billions of requests chooses a smaller model than Hoffmann et al. and trains it on more data, because every later request is cheaper. For example,
# Llama 3 8B was trained on more than 15 trillion tokens ([model
# card](https://github.com/meta-llama/llama3/blob/main/MODEL_CARD.md)). This is about 1,900 tokens per
# parameter, nearly a hundred times the 20 of Chinchilla.

# %% [markdown]
# ## Predictable and expensive requirements
#
# *Optional, 8 minutes.*
#
# A team that has measured the power law of its task can state in advance how many examples and parameters a
# given error needs, and what the run will cost. The requirements are *predictable*, and they are *merely
# expensive*. This is good news for engineers, because more and better used hardware solves an expensive
# problem, but not an unpredictable one.
#
# Not every good result needs such runs. The network of ["Attention is all you
# need"](https://arxiv.org/abs/1706.03762), on which today's language models are based, needed
# 0.089 petaflop/s-days (OpenAI). Many GPUs are worth their price where one can predict how much better the result
# becomes.
#
# How well the hardware is used can be stated as a number. The **utilisation** is the fraction of the peak
# speed that a training run reaches. It is below 1 because a GPU waits for data, for its memory and for the
# other GPUs. For example, Llama 3 405B reached 38 to 43 %.
#
# ### Exercise 11: GPU-days of a training run
#
# **What:** return the days that one GPU would need for a training run.
#
# **Why:** GPU time is what a data centre charges for. A *GPU-day* is the use of one GPU for one day, and a
# *GPU-hour* for one hour.
#
# **Signature:** `gpu_days(parameters, tokens, peak, utilisation)` returns a number. `peak` is in operations
# per second, and `utilisation` is between 0 and 1. A day has 86,400 seconds.
#
# <details><summary>Hint 1</summary>
#
# The operations are $6ND$. Time is operations divided by speed. Which speed does the GPU reach?
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: 600 operations, a peak of 10 operations per second, and a utilisation of 0.5. The GPU does 5
# operations per second, so it needs 120 seconds.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `seconds = 6 * parameters * tokens / (peak * utilisation)`, and the result is `seconds / 86_400`.
#
# </details>


# %%
def gpu_days(parameters, tokens, peak, utilisation):
    # BEGIN SOLUTION: return how many days one GPU needs
    operations = 6 * parameters * tokens
    seconds = operations / (peak * utilisation)
    return seconds / 86_400
    # END SOLUTION


# %%
exercises.check_gpu_days(gpu_days)
days = gpu_days(parameters=405e9, tokens=15.6e12, peak=989e12, utilisation=0.40)
print(f"Llama 3 405B: {days:,.0f} GPU-days = {days * 24 / 1e6:.0f} million GPU-hours,")
print(f"{days / 365:,.0f} years on one GPU, or {days / 16_384:.0f} days on 16,384 GPUs")

# %% [markdown]
# Meta reports [30.8 million
# GPU-hours](https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md) for this
# model. The formula uses only four numbers, and yet its result is only 14 % lower. One reason for the
# difference is that interruptions and restarts cost GPU time as well. One GPU would have needed about three
# thousand years.

# %% [markdown]
# ## Training and inference
#
# *Optional, 5 minutes.*
#
# The use of a trained network is called **inference**. A user sends a request, the network computes one
# forward pass for it, or one per generated *token* (a piece of a word), and returns the answer. The parameters do not change.
#
# ![Two rows. Training repeats a batch, a forward pass with 2N operations, a backward pass with 4N operations and an update. Inference needs only one request, one forward pass with 2N operations and an answer.](pictures/training_and_inference.svg)
#
# | | training | inference |
# |---|---|---|
# | operations per token, network of $N$ parameters | $6N$ | $2N$ |
# | in memory | parameters, gradients, the numbers that the optimizer keeps, activations of all layers | parameters, activations of one layer at a time, and in a language model the keys and values of all earlier tokens (lab 15) |
# | examples at a time | a large batch, for *throughput*, the examples per second | one on a phone, tens to hundreds on a server |
#
# A server of a language model computes many requests together, because each reading of the parameters then
# serves all of them. The keys and values grow with the number of requests and with their length, so on a server
# they take a large part of the memory. For example, a model with 13 billion parameters stores 0.8 MB per token,
# up to 1.6 GB for a request of 2,048 tokens ([Kwon et al. 2023](https://arxiv.org/abs/2309.06180)).
#
# The difference decides the hardware. For example, take a network of one billion parameters and the optimizer
# *Adam*, which keeps two numbers of its own per parameter, its state. In 32-bit numbers, training needs 4
# bytes for the parameter, 4 for the gradient and 8 for the state. These are 16 GB, without the activations.
# For inference, 16-bit numbers are enough, so the same network needs 2 GB, and with 8-bit numbers 1 GB. This
# fits into a phone.
#
# A device at which the data arise, such as a phone, a car or a camera, is called an **edge device**.
# Inference there needs no connection to the internet, answers without delay, and keeps private data where
# they are. But memory and power are small, so the neural network must be small.
