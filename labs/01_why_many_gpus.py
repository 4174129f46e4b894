# %% [markdown]
# # Lab 1: Why many GPUs
#
# AlphaGo Zero, the program that learned Go by playing against itself, was trained with 300,000 times as many
# arithmetic operations as AlexNet, the image classifier that started the present wave of neural networks.
# Five years lie between them ([OpenAI, "AI and Compute"](https://openai.com/research/ai-and-compute), 2018).
# No chip became 300,000 times as fast in five years. Most of the difference came from using many chips
# together. This lab explains why training needs so much computing, why the need can be predicted, and which
# hardware and software let many *GPUs* work on one network. (A GPU, a graphics processing unit, is a chip
# that performs thousands of simple operations at the same time.) The other labs show how to program them.
#
# **After this lab you can**
#
# * fit a power law to a learning curve, and predict how much data a smaller error needs;
# * compute the operations, the GPU-days and the best model size of a training run;
# * explain why the time of one experiment decides how fast a team makes progress;
# * name the parts of a training step, and say which of them limits the speed;
# * name the links between GPUs with their speeds, and say what MPI, NCCL, Gloo, Horovod and DDP are for.
#
# **Builds on** nothing but Python with NumPy, and logarithms. **Time** 90 minutes: 30 to read, and 60 for
# eight short exercises. The computer needs a few seconds of it.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np

from hvdlab.course.figures import describe
from hvdlab.course.learning_curves import learning_curve
from hvdlab.course.workbook import Workbook
from hvdlab.exercises import lab01_why_many_gpus as exercises

workbook = Workbook(1)

# %% [markdown]
# ## Trends in training compute
#
# A network is a *model*, a function with adjustable numbers. To *train* it means to adjust these numbers, the
# **parameters** or weights, until it gives good answers on given examples. The work is counted in **FLOP**,
# floating-point operations. One FLOP is one addition or one multiplication of two numbers. The speed of a
# chip is counted in FLOP per second. Because training runs are long, a larger unit is convenient: a
# **petaflop/s-day** is the work of a machine that does $10^{15}$ operations per second for one day, about
# $10^{20}$ operations. It is used like the kilowatt-hour for energy.
#
# For example,
# [AlexNet](https://papers.nips.cc/paper/4824-imagenet-classification-with-deep-convolutional-neural-networks.pdf)
# (2012) was trained on two GPUs for five to six days. A GPU of that type has a peak of 1.58 TFLOP/s, that is,
# $1.58 \cdot 10^{12}$ operations per second, and OpenAI assumes that a third of the peak was reached. So the
# work was
#
# $$2 \times 0.00158\ \text{petaflop/s} \times 5.5\ \text{days} \times 0.33 = 0.0057\ \text{petaflop/s-days},$$
#
# or $5 \cdot 10^{17}$ operations. AlphaGo Zero (2017) needed more than 1,700 petaflop/s-days by the same way
# of counting. The picture shows some other runs.
#
# ![A chart with the year from 2012 to 2026 and the operations of one training run on a logarithmic axis. The points rise from AlexNet with 5e17 operations through AlphaGo Zero with 1.5e23 to Llama 3 405B with 3.8e25.](pictures/training_compute.svg)
#
# Between 2012 and 2018 the largest runs grew by a factor of about 10 per year, which is a doubling every 3.4
# months (OpenAI). Later studies use more data. [Sevilla et al. (2022)](https://arxiv.org/abs/2202.05924) find
# a doubling about every six months since 2010. [Epoch
# AI](https://epoch.ai/blog/training-compute-of-frontier-ai-models-grows-by-4-5x-per-year) finds a growth by a
# factor of 4 to 5 per year from 2010 to May 2024. In contrast, Moore's law for chips means a doubling about
# every two years, a factor of 1.4 per year.
#
# A growth by a factor $f$ in $y$ years contains $\log_2 f$ doublings, because $f = 2 \cdot 2 \cdot 2 \cdots$
# with $\log_2 f$ factors. For example, a factor of 8 is three doublings. If it takes 6 years, one doubling
# takes 2 years.
#
# ### Exercise 1: Doubling time
#
# **What:** return the months of one doubling, for a growth by a given factor in a given number of years.
#
# **Why:** the doubling time makes trends comparable that were measured over different periods.
#
# **Signature:** `doubling_months(factor, years)` returns a number.
#
# <details><summary>Hint 1</summary>
#
# How many doublings are in the factor? How many months are in the years?
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: a factor of 16 in 2 years. $16 = 2^4$, so there are 4 doublings in 24 months, and one takes
# 6 months.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `math.log2(factor)` is the number of doublings. Divide `12 * years` by it.
#
# </details>


# %%
def doubling_months(factor, years):
    # BEGIN SOLUTION: return the months of one doubling
    doublings = math.log2(factor)
    return 12 * years / doublings
    # END SOLUTION


# %%
exercises.check_doubling_months(doubling_months)
print(f"AlexNet to AlphaGo Zero: {doubling_months(300_000, years=5.1):.1f} months")
print(f"4.5 times per year:      {doubling_months(4.5, years=1):.1f} months")

# %% [markdown]
# The first line agrees with OpenAI's fit. The second line says that the growth has become slower since then,
# but it is still a doubling in less than half a year.
#
# ## The number of GPUs in the growth
#
# Where does the growth come from? Compare AlexNet with [Llama 3 405B](https://arxiv.org/abs/2407.21783)
# (2024), which needed $3.8 \cdot 10^{25}$ operations, 76 million times as many. Its [H100
# GPUs](https://www.nvidia.com/en-us/data-center/h100/) have a peak of 989 TFLOP/s in the 16-bit arithmetic
# that was used, 630 times that of AlexNet's GPUs in 32 bits. There were up to 16,384 of them in place of two,
# which is a factor of 8,200. The run took about 14 times as long. The product $630 \times 8{,}200 \times 14$
# is 72 million, nearly the whole factor. The largest of the three factors is **the number of GPUs**. The eras
# that OpenAI describes say the same: most results used 1 to 8 GPUs until 2014, and 10 to 100 GPUs until 2016.
# After that, faster links and methods for training with more examples at a time raised the limit again. These
# methods are the subject of this course.
#
# Not every good result needs such runs. The network of ["Attention is all you
# need"](https://arxiv.org/abs/1706.03762), on which today's language models are based, was trained with 0.089
# petaflop/s-days (OpenAI). Many GPUs are worth their price where more computing gives a better result in a
# way that can be predicted. The next sections show when this is so.

# %% [markdown]
# ## Learning curves and growing data sets
#
# A **learning curve** shows the error of a network on new examples as a function of the number $n$ of
# examples that it was trained on. [Hestness et al. (2017)](https://arxiv.org/abs/1712.00409) measured
# learning curves for machine translation, language models of words, language models of characters, image
# classification, and speech recognition. In all five domains they found a **power law**, which is a formula
# with the variable raised to a constant power:
#
# $$\text{error}(n) = a\, n^{-b}.$$
#
# Here $a$ sets the height of the curve, and the exponent $b$ says how steeply it falls. Take the logarithm of
# both sides to get $\log(\text{error}) = \log a - b \log n$. This is a straight line with the slope $-b$, if
# both axes are logarithmic.
#
# ![A learning curve on logarithmic axes in three regions. With few examples it is level, then it falls as a straight line with slope minus b, and in the end it approaches the irreducible error.](pictures/learning_curve.svg)
#
# The picture shows the three regions that the paper describes. With few examples a network can only guess.
# Then the power law holds. At the end the curve approaches the **irreducible error**, which no amount of data
# removes, for example because some labels are wrong.
#
# The exponents of the five domains are between 0.07 and 0.35. What does this mean for the size of data sets?
# Half the error needs $2^{1/b}$ times as many examples, because $a\,(n\,2^{1/b})^{-b} = a\,n^{-b}/2$. For
# example, with $b = 0.35$ this is $2^{2.9} = 7.2$ times the data. With $b = 0.07$ it is $2^{14.3}$, about
# 20,000 times the data. This is the reason why data sets explode: the improvement is reliable, but every
# further halving multiplies the data by the same large factor. A better network design mostly lowers $a$.
# According to the paper it does not change $b$.
#
# ### Experiment: a learning curve of your own
#
# You do not need a network to see a power law. The simplest predictor remembers all examples. For a new point
# it answers with the label of the most similar example, the *nearest neighbour*. In our experiment an example
# consists of 4 random numbers between 0 and 1, and its label is their sum. With more examples, the nearest
# one is closer, and the error is smaller. The cell measures the error with 125 to 2,000 examples, as the mean
# of five repetitions.

# %%
few = np.array([125, 250, 500, 1000, 2000])
measured = learning_curve(few, numbers=4)
for n, error in zip(few, measured, strict=True):
    print(f"{n:5} examples: error {error:.3f}")

# %% [markdown]
# ### Exercise 2: Fit a power law
#
# **What:** return $a$ and $b$ of the power law that fits given points best.
#
# **Why:** with $a$ and $b$ you can predict the error for more data than you have. Teams do this before they
# pay for a larger data set.
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
# ### Exercise 3: Predict the data for a smaller error
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
# the error therefore needs $2^4 = 16$ times the examples. What about $d = 12$? Make a prediction with a
# reason. The next cell measures both.

# %%
# Prediction 1: by what factor must n grow for half the error, if an example has 12 numbers? Replace both values of None.
prediction = workbook.predict(1, None, reason=None)

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
print("your prediction of the factor for 12 numbers:", prediction)

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
# eight times the largest $n$ that it has seen, within a few percent. With 12 numbers the theory gives a
# factor of $2^{12} = 4{,}096$. The measured exponent gives a factor of the same order, some thousands, so a
# prediction of this size was right. The reasoning "three times as many numbers need three times as much data"
# is wrong by a factor of a hundred, because the number of dimensions is in the exponent.
#
# Two limits are visible too. A fit to few points is inexact, and a small error of $b$ is a large error of the
# factor $2^{1/b}$. And a fit knows nothing of the irreducible error, which real data have and ours have not.

# %% [markdown]
# ## Growth of the models
#
# A small network cannot use a large data set, because its few parameters cannot represent what is in the
# data. So the model must grow with the data. Hestness et al. also measured by how much. In every domain the
# best model size grew **sublinearly** with the number of examples, that is, like a power of $n$ below 1: ten
# times the data need a larger model, but one that is less than ten times as large.
#
# For language models, [Kaplan et al. (2020)](https://arxiv.org/abs/2001.08361) measured three power laws. The
# *loss*, a number that says how bad the answers of the network are, falls with the number $N$ of parameters
# like $N^{-0.076}$, with the number $D$ of *tokens* (pieces of words) of the data set like $D^{-0.095}$, and
# with the compute $C$ like $C^{-0.050}$, as long as the other quantities are no limit. Some of these lines
# are straight over seven orders of magnitude.
#
# Data and model together determine the compute. A *forward pass* computes the answers of a network from its
# inputs. With $N$ parameters it needs about $2N$ operations per token: one multiplication and one addition
# per parameter. The *backward pass*, which computes how each parameter must change, needs twice as many.
# Together
#
# $$C = 6\,N\,D .$$
#
# For example, $N = 10^9$ parameters and $D = 20 \cdot 10^9$ tokens need $6 \cdot 10^9 \cdot 2 \cdot 10^{10} =
# 1.2 \cdot 10^{20}$ operations, 1.4 petaflop/s-days. How should a fixed compute be divided between $N$ and
# $D$? [Hoffmann et al. (2022)](https://arxiv.org/abs/2203.15556) trained over 400 language models to answer
# this question. They found that $N$ and $D$ should grow in the same proportion. Their model Chinchilla has 70
# billion parameters and 1.4 trillion tokens, 20 tokens per parameter. It was better than Gopher, which has
# four times as many parameters and was trained with about the same compute. Kaplan et al. had recommended
# spending most of the compute on larger models. [Later work](https://arxiv.org/abs/2406.12907) found the main
# reason: they did not count all parameters, and measured at a small scale. A power law is only as good as its
# measurement.
#
# ### Exercise 4: The best model for a given compute
#
# **What:** return the number of parameters and the number of tokens that use a compute of $C$ operations with
# $r$ tokens per parameter.
#
# **Why:** it is the first decision of every large training run, and it is made before the run.
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
# The first line is the compute of Chinchilla, and your function returns about its 70 billion parameters and
# 1.4 trillion tokens. A hundred times the compute gives ten times the parameters and ten times the tokens,
# because both grow with the square root of $C$.

# %% [markdown]
# ## Predictable and expensive requirements
#
# The last two sections have a common consequence. A team that has measured the power law of its task can
# state in advance which error it will reach, how many examples and parameters this needs, and what the run
# will cost. The requirements are no longer a matter of inspiration. They are *predictable*, and they are
# *merely expensive*. This is good news for engineers, because an expensive problem can be solved by more and
# better used hardware, whereas an unpredictable one cannot. It also moves the question from "does it work?"
# to "how many GPUs do we need, for how long, and how well do we use them?"
#
# The last part of this question has a number. The **utilisation** is the fraction of the peak speed that a
# training run reaches. It is below 1 because a GPU waits for data, for its memory and for the other GPUs. For
# example, Llama 3 405B reached 38 to 43 %.
#
# ### Exercise 5: GPU-days of a training run
#
# **What:** return the days that one GPU would need for a training run.
#
# **Why:** GPU time is what a cluster charges for. A thousand GPU-days are one day of a thousand GPUs, at
# best.
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
# model. The formula has four numbers and no detail of the network, and its result is within 15 % of the bill.
# It is too low because interruptions and restarts cost GPU time as well. One GPU would have needed about
# three thousand years. This is the plain answer to the title of the lab.

# %% [markdown]
# ## Iteration time of experiments
#
# Deep learning is an experimental science. No formula gives the best mix of data. The same holds for the
# number of *layers*, the functions that a network computes one after the other, and for the *learning rate*,
# which says how far training changes the parameters each time. Such settings, which are chosen before
# training and not learned by it, are called **hyperparameters**. A team proposes an idea, trains a network,
# looks at the result, and proposes the next idea. The *iteration time*, from the idea to the result, limits
# how many ideas are tested in a week. If it is a week, a mistake in the morning costs a week. If it is an
# hour, the team can try eight ideas in a day.
#
# ![A week from Monday to Sunday for a run of 150 GPU-hours. One GPU gives one result by Sunday, four GPUs at 75 percent efficiency give three results, and sixteen GPUs give thirteen.](pictures/iteration_time.svg)
#
# Several GPUs can shorten the iteration time in two ways. They can train several independent networks, which
# tests several ideas at a time, but does not shorten the wait for any of them. Or they work on one network
# together, so that each result is there earlier, and the next idea can build on it. The second way needs the
# exchange of data between the GPUs, so it is not perfectly efficient. The **parallel efficiency** is the
# speed-up divided by the number of GPUs. For example, if 4 GPUs make a run 3 times as fast, the efficiency is
# 75 %.
#
# ### Exercise 6: Results per week
#
# **What:** return how many runs finish within a given time, one after the other, if all GPUs work on each run
# together.
#
# **Why:** this is the number of ideas, each built on the last result, that a team can test.
#
# **Signature:** `experiments(hours, gpu_hours, gpus, efficiency)` returns a whole number. `gpu_hours` is the
# time of a run on one GPU.
#
# <details><summary>Hint 1</summary>
#
# How long does one run take on all GPUs? A run that does not finish gives no result.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: a run takes 12 hours on one GPU. On 4 GPUs at 75 % it takes $12 / (4 \cdot 0.75) = 4$ hours.
# In 10 hours, two runs finish, and the third is not complete.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `hours_each = gpu_hours / (gpus * efficiency)`. The operator `//` divides and rounds down.
#
# </details>


# %%
def experiments(hours, gpu_hours, gpus, efficiency):
    # BEGIN SOLUTION: return how many runs finish, as a whole number
    hours_each = gpu_hours / (gpus * efficiency)
    return int(hours // hours_each)
    # END SOLUTION


# %%
exercises.check_experiments(experiments)
for gpus, efficiency in ((1, 1.0), (4, 0.75), (16, 0.75), (16, 0.50)):
    print(
        f"{gpus:2} GPUs at {efficiency:.0%}: {experiments(7 * 24, 150, gpus, efficiency)} results per week"
    )

# %% [markdown]
# The last two lines show why this course cares about efficiency. The same sixteen GPUs give 13 or 8 results,
# depending on how well they work together.

# %% [markdown]
# ## Data parallelism and model parallelism
#
# How can several GPUs train one network? A running program with memory of its own is called a **process**. In
# this course every GPU is driven by one process, and on a machine without GPUs each process uses CPU cores
# instead. The processes that train together are numbered from 0, and each of them, like its number, is called
# a **rank**. So a run on 4 GPUs consists of the ranks 0, 1, 2 and 3, which all execute the same script.
#
# A network is trained with a **batch** of examples at a time. From the batch it computes the **gradient**,
# which says for each parameter in which direction, and how strongly, the error changes. There are two ways to
# divide this work.
#
# ![On the left, data parallelism: two ranks hold all layers, each reads half of the batch, and they exchange gradients. On the right, model parallelism: each rank holds half of the layers, and activations pass between them.](pictures/two_kinds_of_parallelism.svg)
#
# In **data parallelism** each rank holds a complete copy of the network and a different part of the batch.
# Each computes a gradient, and the ranks average the gradients before they change their parameters. For
# example, rank 0 has the gradient [1, 2] of its examples, and rank 1 has [3, 4] of its own. The average is
# [2, 3], both ranks apply it, and so both copies stay identical. The ranks send as many numbers as there are
# parameters, whatever the size of the batch. They do so once per *step*, that is, for one computation of the
# gradient and one change of the parameters.
#
# In **model parallelism** each rank holds only some layers, or a part of every layer. All ranks work on the
# same examples and send each other *activations*, the results of layers. It is needed if the network does not
# fit into the memory of one GPU. It is harder to keep all ranks busy, because a layer needs the result of the
# layer before it.
#
# Data parallelism is simpler and is used wherever the network fits. It is the subject of labs 4 to 12. Labs
# 13 and 14 split the network. The largest runs combine both.

# %% [markdown]
# ## Processes, nodes and links
#
# Averaging the gradients means sending data, and the speed depends on the way that the data take. A **node**
# is one machine of a cluster. It has CPU cores, memory, and typically four or eight GPUs. Two properties
# describe a link. Its **bandwidth** is the number of bytes per second that it carries. Its **latency** is the
# time until the first byte arrives, however short the message is.
#
# ![Two nodes with CPU cores and four GPUs each. Every GPU has one process with a rank from 0 to 7. NVLink connects the GPUs of a node, PCIe connects them to the CPU, and InfiniBand or Ethernet connects the nodes.](pictures/node_and_network.svg)
#
# | link | connects | bandwidth in each direction | time for 1 GB |
# |---|---|---|---|
# | NVLink of the [H100](https://www.nvidia.com/en-us/data-center/h100/) | GPUs of a node | 450 GB/s (900 GB/s both ways) | 2.2 ms |
# | PCIe, generation 5, 16 lanes | a GPU and the CPU | 64 GB/s (128 GB/s both ways) | 16 ms |
# | [InfiniBand NDR](https://www.nvidia.com/en-us/networking/infiniband-adapters/) | nodes | 400 Gbit/s = 50 GB/s per network card | 20 ms |
# | Ethernet, 10 Gbit/s | nodes, laptops | 1.25 GB/s | 800 ms |
#
# These are peak numbers of the makers. What a program reaches is lower, and lab 18 measures it. The step from
# one row to another is a factor of up to forty. This is why the path of the data matters more than almost
# everything else.
#
# An operation in which all ranks take part is called a **collective**. The most important one is the
# **all-reduce**. It combines one array of each rank, by a sum or an average, and gives the result to every
# rank. In the example above, an all-reduce turned [1, 2] and [3, 4] into [2, 3] on both ranks. A common
# algorithm, the *ring all-reduce*, arranges the ranks in a ring. It cuts the array into $N$ pieces, and each
# rank sends pieces only to its right neighbour. In the first phase the sums are formed, which takes $N - 1$
# messages. In the second phase the finished sums travel once around the ring, in $N - 1$ more messages. So
# each link carries $2(N-1)/N$ times the size of the array: 1 time for two ranks, 1.5 times for four, and
# never more than twice. All links work at the same time, so that **the slowest link decides**. In lab 4 you
# program this algorithm.
#
# ### Exercise 7: Time of a ring all-reduce
#
# **What:** return the seconds of a ring all-reduce. Ignore the latency.
#
# **Why:** it tells whether the network is fast enough, before anyone buys it.
#
# **Signature:** `ring_seconds(size, links)` returns a number. `size` is the size of the array in bytes, and
# `links` has the bandwidth of the link from each rank to its right neighbour, in bytes per second. There are
# as many links as ranks.
#
# <details><summary>Hint 1</summary>
#
# How many bytes does each link carry? Which link finishes last?
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: 2 ranks, 100 bytes, links of 10 and 50 bytes per second. Each link carries $2 \cdot \frac12
# \cdot 100 = 100$ bytes. The first needs 10 seconds and the second 2, so the all-reduce takes 10 seconds.
#
# </details>
# <details><summary>Hint 3</summary>
#
# With `ranks = len(links)` each link carries `2 * (ranks - 1) / ranks * size` bytes. Divide by `min(links)`.
#
# </details>


# %%
def ring_seconds(size, links):
    # BEGIN SOLUTION: return the time of a ring all-reduce in seconds
    ranks = len(links)
    sent = 2 * (ranks - 1) / ranks * size
    return sent / min(links)
    # END SOLUTION


# %%
exercises.check_ring_seconds(ring_seconds)

# %% [markdown]
# Eight GPUs in two nodes train a network of one billion parameters. A gradient has 2 bytes per parameter, so
# 2 GB are averaged in each step. Six of the eight links of the ring are NVLink. The other two connect the
# nodes.

# %%
# Prediction 2: the links between the nodes are 10 Gbit/s Ethernet. How many seconds does an all-reduce take? Replace both values of None.
prediction = workbook.predict(2, None, reason=None)

# %%
NVLINK, INFINIBAND, ETHERNET = 450e9, 50e9, 1.25e9
rings = {
    "one node": [NVLINK] * 8,
    "two nodes, InfiniBand": [NVLINK] * 6 + [INFINIBAND] * 2,
    "two nodes, Ethernet": [NVLINK] * 6 + [ETHERNET] * 2,
}
for name, links in rings.items():
    print(f"{name:22} {ring_seconds(2e9, links):6.3f} s")
print(f"{'your prediction':22} {prediction} s")

# %% [markdown]
# With Ethernet the all-reduce takes 2.8 seconds. Each link carries $2 \cdot \frac78 \cdot 2 = 3.5$ GB, and
# the slow links need $3.5 / 1.25 = 2.8$ seconds for it. The average bandwidth of the ring is about 340 GB/s,
# but it does not matter, because the fast links wait for the slow ones. A prediction from the average would
# have been 10 ms, wrong by a factor of more than 250.

# %% [markdown]
# ## The parts of a training step
#
# Averaging gradients is only one part of the work. A **training step** is everything from reading a batch to
# the changed parameters. It helps to have a list of its parts, because any of them can be the slowest one.
#
# ![A timeline of fifteen parts of a training step in four lanes: storage, CPU, GPU and network. Parts 1 to 6 prepare the batch, 7 to 11 compute gradients, 12 averages them over the network, and 13 to 15 finish the step.](pictures/training_step.svg)
#
# 1. **Read** the files of some examples from storage.
# 2. **Transport** them to the memory of the node, often through a network.
# 3. **Decode** them, for example from JPEG to pixels.
# 4. **Augment** them, for example by shifting or mirroring an image at random.
# 5. **Collect** them into a batch.
# 6. Put the batch into a **queue**.
# 7. **Copy** it to the memory of the GPU.
# 8. The **forward pass** computes the answers of the network.
# 9. The **loss** compares them with the right answers.
# 10. The **backward pass** computes the gradients, from the last layer to the first.
# 11. **Pack** the gradients into one buffer.
# 12. The **all-reduce** sends them, and returns the average.
# 13. **Unpack** the average.
# 14. The **optimizer** updates the parameters.
# 15. **Log** the loss, and **return control** to the loop.
#
# The parts do not have to wait for each other. While the GPU computes a step, the CPU can already prepare the
# next batch. This is called *prefetching*, and the queue of part 6 makes it possible. In the same way, the
# all-reduce of the last layers can begin while the backward pass still works on the first layers. For
# example, let loading take 0.3 s, computing 0.5 s and the exchange 0.1 s. One after the other they take 0.9 s
# per step. With prefetching the loading is hidden, and a step takes 0.6 s. If loading takes 0.9 s instead, a
# step takes 0.9 s with prefetching, however fast the GPU is. Then a faster GPU is a waste, and lab 10 shows
# what helps.
#
# ### Exercise 8: Time of a step
#
# **What:** return the time per step, with or without prefetching. Computing and exchanging do not overlap
# here.
#
# **Why:** before you buy a faster GPU or network, this tells which part limits you.
#
# **Signature:** `step_seconds(load, compute, exchange, prefetch)` takes three times and `True` or `False`,
# and returns a number.
#
# <details><summary>Hint 1</summary>
#
# Without prefetching, everything happens one after the other. With it, two chains run at the same time:
# loading the next batch, and computing with exchanging for this batch.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A smaller case: load 4, compute 2, exchange 1. Without prefetching: 7. With prefetching one chain takes 4
# and the other 3, and the next step starts when both have ended: 4.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `max(load, compute + exchange)` if `prefetch`, else the sum of the three.
#
# </details>


# %%
def step_seconds(load, compute, exchange, prefetch):
    # BEGIN SOLUTION: return the seconds per step
    if prefetch:
        return max(load, compute + exchange)
    return load + compute + exchange
    # END SOLUTION


# %%
exercises.check_step_seconds(step_seconds)

# %% [markdown]
# ## MPI, NCCL, Gloo and Horovod
#
# A training script does not program links. It calls a library that averages gradients, which in turn calls a
# library that sends bytes.
#
# ![Four layers of software and hardware. A training script calls Horovod, PyTorch DDP or FSDP, these call NCCL, Gloo or MPI, and these send the bytes through NVLink, PCIe, InfiniBand or Ethernet.](pictures/software_layers.svg)
#
# * **MPI**, the Message Passing Interface, is a standard of the supercomputing community, whose first version
#   appeared in 1994. It says how processes are numbered, and how they send messages and run collectives. The
#   words *rank* and *all-reduce* come from it. The course uses its implementation [Open
#   MPI](https://www.open-mpi.org). The command `mpirun -np 4 python train.py` starts 4 ranks.
# * **NCCL**, the [NVIDIA Collective Communications Library](https://developer.nvidia.com/nccl), runs
#   collectives between NVIDIA GPUs. It knows which GPUs are connected by NVLink and which by a network, and
#   chooses the path and the algorithm.
# * **Gloo** is a [library for collectives](https://github.com/pytorch/gloo) that Facebook (now Meta) made.
#   PyTorch uses it for CPUs.
# * **Horovod** averages gradients for TensorFlow, Keras, PyTorch and MXNet, by MPI, NCCL or Gloo. Uber
#   published it in 2017 ([Sergeev and Del Balso 2018](https://arxiv.org/abs/1802.05799)). It is named after a
#   dance in which the dancers form a ring.
# * **DDP** (DistributedDataParallel) and **FSDP** (Fully Sharded Data Parallel) are the corresponding parts
#   of PyTorch itself. FSDP also divides the parameters among the ranks, so that larger networks fit.
#
# What replaced what? Early systems used a **parameter server**, a process that keeps the parameters, collects
# the gradients of all workers and sends back the result ([Li et al.
# 2014](https://www.usenix.org/conference/osdi14/technical-sessions/presentation/li_mu)).
#
# ![On the left a parameter server exchanges data with four workers, so that all gradients pass through its network card. On the right four ranks form a ring, in which no link carries more than another.](pictures/parameter_server_and_ring.svg)
#
# With 4 workers and gradients of 1 GB, the server receives 4 GB and sends 4 GB per step, and its network card
# limits everyone. With 100 workers it is 100 GB each way. In a ring, each rank sends less than 2 GB whatever
# the number of ranks. The ring algorithm is older ([Patarasuk and Yuan
# 2009](https://doi.org/10.1016/j.jpdc.2008.09.002)). Baidu brought it to deep learning in 2017, and Horovod
# started from Baidu's code. Horovod made it usable with a few added lines, and for several years it was the
# usual tool for many GPUs.
#
# Today the frameworks do this work themselves, and most new PyTorch code uses DDP or FSDP. Horovod's last
# release is [0.28.1 of June 2023](https://github.com/horovod/horovod/releases). MXNet, one of its four
# frameworks, was retired to the [Apache Attic](https://attic.apache.org/projects/mxnet.html) in 2023. Why
# does this course teach Horovod? It makes each idea visible in one call, it works with Keras and PyTorch
# alike, and many existing scripts use it. The ideas are the same in DDP, to which labs 11 and 12 lead.

# %% [markdown]
# ## Training and inference
#
# This course is about *training*. The use of the trained network is called **inference**. A user sends a
# request, the network computes one forward pass for it, or one per generated token, and returns the answer.
# The parameters do not change.
#
# ![Two rows. Training repeats a batch, a forward pass with 2N operations, a backward pass with 4N operations and an update. Inference needs only one request, one forward pass with 2N operations and an answer.](pictures/training_and_inference.svg)
#
# | | training | inference |
# |---|---|---|
# | operations per token, network of $N$ parameters | $6N$ | $2N$ |
# | in memory | parameters, gradients, the numbers that the optimizer keeps, activations of all layers | parameters, activations of one layer at a time |
# | examples at a time | a large batch, for *throughput*, the number of examples per second | one or a few, for a short wait |
# | runs | once, for days or months, on a cluster | for every request, for years |
# | where | data centre | data centre, phone, car, camera |
#
# The difference decides the hardware. For example, a network of one billion parameters needs 16 bytes per
# parameter while Adam trains it in 32-bit numbers: 4 for the parameter, 4 for the gradient and 8 for the
# state of the optimizer. These are 16 GB, without the activations. For inference, 2 bytes per parameter are
# enough, so the same network needs 2 GB, and with 8-bit numbers 1 GB. This fits into a phone. A device at
# which the data arise, such as a phone, a car or a camera, is called an **edge device**. Inference on an edge
# device needs no network connection, answers without delay, and keeps private data where they are. Such a
# device has little memory and little power, so the network must be small. It is still trained on many GPUs in
# a data centre.
#
# The two phases also share a budget. Hoffmann et al. give the best model for a training budget. A team that
# expects billions of requests chooses a smaller model and trains it on more data, because every later request
# is cheaper. For example, Llama 3 8B was trained on more than 15 trillion tokens ([model
# card](https://github.com/meta-llama/llama3/blob/main/MODEL_CARD.md)). This is about 1,900 tokens per
# parameter, nearly a hundred times the 20 of Chinchilla.

# %% [markdown]
# ## Summary
#
# * From AlexNet to AlphaGo Zero the compute of the largest training runs grew 300,000 times in five years.
#   Since 2010 it has grown 4 to 5 times per year. The largest part of this growth is the number of GPUs.
# * The error falls with the data as a power law, $a\,n^{-b}$, with $b$ between 0.07 and 0.35 in five domains.
#   Half the error needs $2^{1/b}$ times the data.
# * The best model grows more slowly than the data. A training run needs $6ND$ operations, and about 20 tokens
#   per parameter are best for a given training compute.
# * The requirements are predictable, and merely expensive. The formula with four numbers gives the GPU-hours
#   of Llama 3 405B within 15 %.
# * The time of one experiment decides how many ideas a team can test. Sixteen GPUs give 13 results in a week
#   at 75 % efficiency, and 8 at 50 %.
# * In data parallelism the ranks share the batch and average gradients. In model parallelism they share the
#   network and send activations.
# * A ring all-reduce sends $2(N-1)/N$ of the bytes through every link, and the slowest link decides. NVLink
#   carries 450 GB/s, InfiniBand 50 GB/s, and 10 Gbit/s Ethernet 1.25 GB/s.
# * A training step has fifteen parts. With prefetching the longer of loading and training decides, and not
#   their sum.

# %% [markdown]
# ## Self-check questions

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer="c")

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer=32)

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
workbook.question(6, answer="b")

# %% [markdown]
# Next: [Lab 2: Gradient descent](02_gradient_descent.ipynb), where you write the step that all of this
# repeats.
