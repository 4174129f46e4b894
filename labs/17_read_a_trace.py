# %% [markdown]
# # Lab 17: Read a trace
#
# ByteDance trained a language model with 175 billion parameters on 12,288 GPUs. Its system MegaScale used
# 55.2 % of the arithmetic that the GPUs can do, 1.34 times as much as Megatron-LM, the system that it was
# compared with ([Jiang et al. 2024](https://arxiv.org/abs/2402.15627)). The authors overlapped computation
# with communication, improved the data pipeline, and built tools that record what happens on the GPUs and
# when. A loss curve does not show such losses of time, because a slow run computes the right result. You
# find out why it is slow only if you look inside a step. The record of a step is called a trace. In this
# lab you record traces of six runs on two ranks, write the functions that evaluate them, and find five
# faults from the traces alone.
#
# **After this lab you can**
#
# * record a trace with PyTorch's profiler and with Horovod, and open it in a viewer;
# * explain spans, tracks, total time and self time, and say what a profiler costs;
# * compute from a trace the fraction of a step that reads data, and the communication that no computation
#   covers;
# * recognise a straggler from the traces of two ranks, and say which rank causes the waiting;
# * diagnose five common faults, each with a number from the trace as evidence.
#
# **Builds on** lab 5 (tensor fusion), lab 10 (the input pipeline), lab 12 (DDP's buckets and their overlap with
# the backward pass) and lab 16 (symptom, evidence, diagnosis). **Time:** 110
# minutes for a learner who does all ten exercises, of which the computer needs about one minute.

# %% tags=["folded"]
import json
import os

from hvdlab.course import horovod_timeline
from hvdlab.course.chrome_trace import compare_runs, draw_step, read, steps
from hvdlab.course.experiment import LABS, WORK
from hvdlab.course.figures import describe
from hvdlab.course.workbook import Workbook
from hvdlab.exercises import lab17_read_a_trace as exercises
from hvdlab.launch import run

workbook = Workbook(17)
hint = workbook.hint
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # the traces of this lab are those of CPUs
FOLDER = WORK / "traces"


def record(*cases):
    """Record the cases on two ranks. Return the spans of both ranks and rank 0's times, by case."""
    arguments = ["--case", *cases, "--out", FOLDER]
    printed = run(
        LABS / "traced_training.py",
        *arguments,
        ranks=2,
        show=False,
        timeout=300,
        OMP_NUM_THREADS="1",
    )
    times = [json.loads(line) for line in printed.splitlines() if line.startswith('{"case"')]
    paths = {case: [FOLDER / f"case_{case}_rank_{rank}.json" for rank in (0, 1)] for case in cases}
    return {case: read(paths[case]) for case in cases}, {line["case"]: line for line in times}


# %% [markdown]
# ## Execution traces
#
# An **execution trace** is a list of what a program did, with a start and a duration for each entry. In
# this lab *trace* always means an execution trace. It consists of **trace spans**, in short spans. A span
# says that something with a name lasted from one moment to another, for example "the function aten::addmm
# ran from 1 ms to 10 ms". Each span belongs to a *track*, which is usually one thread of one process. A
# *process* is a running program with a memory of its own, for example a rank. A *thread* is a sequence of
# instructions inside a process. Several threads can run at the same time.
#
# Spans of one track are nested like calls of functions. If `forward` calls `aten::linear`, and this calls
# `aten::addmm`, then the span of `aten::addmm` lies inside that of `aten::linear`, which lies inside that
# of `forward`. Spans of different tracks are independent. They overlap in time if the threads work at the
# same time.
#
# ![Two tracks of one process. On the main thread the span step contains forward, backward and update, which contain operations. On a second track one all-reduce overlaps with the backward pass. The self time of backward is 9 of its 24 milliseconds.](pictures/anatomy_of_a_trace.svg)
#
# A drawing of bars over a common axis of time, with a row for each activity, is called a **Gantt chart**.
# All viewers of traces draw such a chart. Usually a span is drawn below the span that contains it.
#
# ## PyTorch profiler
#
# A *profiler* is a tool that records where a program spends its time. PyTorch has one built in:
#
# ```python
# from torch.profiler import ProfilerActivity, profile, record_function
#
# with profile(activities=[ProfilerActivity.CPU]) as profiler:
#     for images, labels in batches:
#         with record_function("forward"):          # a span with a name of your own
#             loss = F.cross_entropy(model(images), labels)
#         ...
# profiler.export_chrome_trace("trace.json")        # all spans, as a file
# print(profiler.key_averages().table(sort_by="self_cpu_time_total"))   # sums by name
# ```
#
# The profiler adds a span for each operation of PyTorch, also for those inside the backward pass. It adds
# nothing for other Python code. Therefore you name the phases of a step yourself, by `record_function`. A
# second kind of information is the table of `key_averages()`, which adds up the spans of equal names.
#
# Recording costs time and memory. Each span takes the time of two clock readings and of some bookkeeping,
# so a program with many short operations slows down more than one with a few long ones. The options
# `record_shapes`, `profile_memory` and `with_stack` record more and cost more. Two rules follow. Record a
# few steps and not an epoch, after some steps of warm-up, because the first steps allocate memory and
# build buckets. `torch.profiler.schedule(wait=10, warmup=2, active=3, repeat=1)` does that inside a long run, if
# the script calls `profiler.step()` after each step. And never report a step time that was measured under
# a profiler.
#
# The script `labs/traced_training.py` trains the network of lab 12 with three blocks by DDP on two ranks,
# with 64 images per rank. Reading a batch is simulated: it waits 60 ms, like a request to a distant file
# server, and four threads read ahead. The script annotates `step`, and inside it `read batch`, `forward`,
# `backward` and `update`. Do not read the script before you have solved the five cases, because it contains
# the answers.
#
# We begin with case 0, which is the correct run. The gradients of this network have 7.1 MB, and the script
# limits DDP's buckets to 2 MiB, which is 2.1 MB. DDP closes a bucket as soon as it has reached the limit.

# %%
# Prediction 1: how many all-reduces does one step need? Replace both values of None.
workbook.predict(1, None, reason=None)

# %%
traces, times = record(0)
path = FOLDER / "case_0_rank_0.json"
events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, {len(events)} events, for example")
print(next(event for event in events if event.get("name") == "gloo:all_reduce"))
print((FOLDER / "case_0.txt").read_text(encoding="utf-8"))

# %% [markdown]
# The file is a list of events in JSON. The first printed lines show one of them. `ph` is the type of the
# event, and `"X"` stands for a complete span. `name` and `cat` say what it is, `ts` is the start and `dur`
# the duration, both in microseconds. `pid` and `tid` are the numbers of the process and of the thread. The
# table below it has a row per name, with its total time and its *self time*, that is, without the spans inside it.
#
# Many tools write this format, which was invented for the browser Chrome. To look at your file, open
# [ui.perfetto.dev](https://ui.perfetto.dev) and drag the file `notebooks/work/traces/case_0_rank_0.json`
# into the window. The file stays on your computer. The keys W and S zoom, A and D move, and a click on a
# span shows its numbers. In Chrome, the address `chrome://tracing` opens an older viewer.
#
# To compare runs you need numbers. The function `read` returns for each rank a list of `Span` objects,
# which have the attributes `name`, `kind`, `track`, `start`, `duration` and `end`. Times are in
# milliseconds. `kind` is one of three words: `"annotation"` for named sections of code, `"operation"` for
# operations of PyTorch, and `"communication"` for collectives. `traces[0][1]` contains the spans of case
# 0 on rank 1, and `steps(spans)` returns those with the name `"step"`.

# %%
spans = traces[0][0]
print(len(spans), "spans in", len(steps(spans)), "steps. The first of them:")
for span in spans[:4]:
    print(f"  {span.name:32}{span.kind:12} from {span.start:7.3f} to {span.end:7.3f} ms")
all_reduces = [span for span in spans if span.kind == "communication"]
workbook.result(1, len(all_reduces) / len(steps(spans)))
print(f"a step takes {times[0]['with'] / times[0]['without']:.2f} times as long with the profiler")

# %% tags=["folded"]
describe(
    draw_step(traces[0]),
    "A Gantt chart of one step of the correct run. Each rank has a row of phases, a row of operations and a "
    "row of all-reduces. The operations fill most of the step, and four all-reduces overlap with the "
    "backward pass.",
)

# %% [markdown]
# **What the result means.** The step has 4 all-reduces: 7.1 MB fill three buckets of a little more than 2.1
# MB (the tensor that reaches the limit still belongs to the bucket), and the rest is the fourth. If you
# predicted 24, you counted one all-reduce for each gradient tensor, which would be right without buckets. A
# prediction of 1 forgets the limit. In the chart the first all-reduce begins long before the backward pass
# ends. `read batch` is too short to be seen, because the batch has been read ahead. The last printed line is
# the cost of the profiler in your run.
#
# ## Fractions of a step
#
# The first number to compute from a trace is the fraction of the step that each phase takes. A fraction has
# two advantages over milliseconds. It can be compared between machines, and it shows at once how much there
# is to gain. If a phase takes the fraction $f$ of a step and you remove it completely, the step takes $1 -
# f$ of its time. For example, a phase with $f = 0.2$ can make the program at most $1 / 0.8 = 1.25$ times as
# fast. This is Amdahl's bound of lab 8.
#
# ### Exercise 1: Fraction of a phase
#
# **What:** write `fraction_of_step(spans, name)`, the time of all spans with this name, divided by the time
# of all steps.
#
# **Why:** with the name `"read batch"` it tells whether the training waits for data.
#
# **Signature:** `spans` is a list of `Span`, and `name` is a text. Return a number from 0 to 1.
#
# <details><summary>Hint 1</summary>Add up durations twice: once of the spans with this name, once of the
# steps. Then divide.</details>
#
# <details><summary>Hint 2</summary>Two steps take 50 and 150 ms, and reading takes 30 and 10 ms in them.
# The fraction is (30 + 10) / (50 + 150) = 0.2. The mean of the two fractions, 0.33, would count the short
# step as much as the long one.</details>
#
# <details><summary>Hint 3</summary><code>sum(span.duration for span in spans if span.name == name)</code>,
# divided by the same sum over <code>steps(spans)</code></details>


# %%
def fraction_of_step(spans, name):
    # BEGIN SOLUTION: return the fraction of the time of all steps
    inside = sum(span.duration for span in spans if span.name == name)
    whole = sum(step.duration for step in steps(spans))
    return inside / whole
    # END SOLUTION


# %%
exercises.check_fraction_of_step(fraction_of_step)
for name in ("read batch", "forward", "backward", "update"):
    print(
        f"{name:12}", *(f"rank {n}: {fraction_of_step(traces[0][n], name):.3f}  " for n in (0, 1))
    )

# %% [markdown]
# The correct run spends less than 1 % of its steps in `read batch`. The backward pass takes longer than the
# forward pass, because it computes two matrix products for each one of the forward pass, and because it
# also waits for the last all-reduce.
#
# ## Unions of intervals
#
# Durations of spans must not always be added. For example, one all-reduce lasts from 1 to 3 ms and another
# one from 2 to 5 ms. The sum of the durations is 2 + 3 = 5 ms, but communication took place only from 1 to
# 5 ms, which are 4 ms. The *union* of intervals is the set of all moments that lie in at least one of them.
# To compute it, sort the intervals by their start and go through them. An interval that begins before the
# last one has ended extends it. Otherwise it begins a new one.
#
# ### Exercise 2: Union of intervals
#
# **What:** write `merge(intervals)`, the union as a list of separate intervals.
#
# **Why:** overlap of communication and computation, and self time, are both differences of unions.
#
# **Signature:** `intervals` is a list of pairs `(start, end)` in any order. Return a list of such pairs,
# ordered, in which no two overlap or touch.
#
# <details><summary>Hint 1</summary>Keep a list of results. Compare each interval with the last
# result only.</details>
#
# <details><summary>Hint 2</summary>[(7, 8), (1, 3), (2, 5)] is sorted to [(1, 3), (2, 5), (7, 8)]. The
# second interval begins at 2, before 3, so the last result becomes (1, 5). The third begins at 7, after 5,
# so it is new. The result is [(1, 5), (7, 8)]. An interval such as (2, 3) inside (0, 10) must not shorten
# it.</details>
#
# <details><summary>Hint 3</summary><code>if merged and start &lt;= merged[-1][1]: merged[-1] =
# (merged[-1][0], max(merged[-1][1], end))</code>, and otherwise <code>merged.append((start,
# end))</code></details>


# %%
def merge(intervals):
    # BEGIN SOLUTION: return the union as a list of separate intervals
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
    # END SOLUTION


def length(intervals):
    """The time that intervals cover together."""
    return sum(end - start for start, end in merge(intervals))


# %%
exercises.check_merge(merge)

# %% [markdown]
# ## Exposed communication
#
# Communication costs nothing if the rank computes at the same time. Only the remaining part makes the step
# longer. **Exposed communication** is the time in which a rank communicates and does not compute. DDP and
# Horovod start an all-reduce as soon as some gradients are ready, in order to hide as much of it as possible
# behind the rest of the backward pass.
#
# ![Two steps of a training. Above, two all-reduces of 10 ms begin after the backward pass, so all 20 ms are exposed and the step takes 66 ms. Below, the first all-reduce is hidden behind the backward pass, only the second one is exposed, and the step takes 56 ms.](pictures/step_with_overlap.svg)
#
# For example, communication takes place from 10 to 30 ms and from 40 to 50 ms, and computation from 0 to 20
# ms and from 45 to 60 ms.
#
# * The communication takes 20 + 10 = 30 ms.
# * From 10 to 20 ms and from 45 to 50 ms the rank computes as well. These 15 ms are hidden.
# * The other 15 ms, from 20 to 30 ms and from 40 to 45 ms, are exposed.
#
# The same result follows from two unions. Communication and computation together cover 0 to 30 ms and 40 to
# 60 ms, which are 50 ms. The computation alone covers 20 + 15 = 35 ms. The difference is 15 ms.
#
# ### Exercise 3: Exposed communication
#
# **What:** write `exposed(communication, compute)`, the milliseconds of communication that no computation
# covers.
#
# **Why:** a faster network cannot save more than this number in these steps. It can save less, because a rank
# that waits for another rank in an all-reduce counts as communicating.
#
# **Signature:** both arguments are lists of pairs `(start, end)`. Return a number. `length(intervals)` from
# above returns the length of a union.
#
# <details><summary>Hint 1</summary>What do both kinds together cover, and what does the computation cover
# alone?</details>
#
# <details><summary>Hint 2</summary>In the example the two lengths are 50 and 35 ms, and the difference is
# 15 ms.</details>
#
# <details><summary>Hint 3</summary><code>length(communication + compute) -
# length(compute)</code>, because the sum of two lists contains the intervals of both</details>


# %%
def exposed(communication, compute):
    # BEGIN SOLUTION: return the time of communication that no computation covers
    together = length(communication + compute)
    return together - length(compute)
    # END SOLUTION


# %%
exercises.check_exposed(exposed)

# %% [markdown]
# In our traces, computation is what the main thread does in operations of PyTorch, and communication is
# what the threads of Gloo do. The next cell computes the exposed part of the communication for both ranks
# of the correct run.


# %%
def exposed_fraction(spans):
    """The fraction of the communication that no operation of the main thread covers."""
    main = steps(spans)[0].track
    sent = [(span.start, span.end) for span in spans if span.kind == "communication"]
    busy = [(s.start, s.end) for s in spans if s.kind == "operation" and s.track == main]
    return exposed(sent, busy) / length(sent)


print([f"rank {rank}: {exposed_fraction(traces[0][rank]):.2f}" for rank in (0, 1)])

# %% [markdown]
# Part of the communication is always exposed. The last bucket contains the gradients of the first layer,
# which are ready at the end of the backward pass, so no computation is left behind which it could be
# hidden. The number varies from run to run, because the operating system interrupts ranks and threads.
#
# ## Self time and total time
#
# The *total time* of a span is its duration. Its **self time** is the duration without the time of the spans
# inside it. For example, `aten::linear` lasts from 0 to 10 ms. Inside it are `aten::addmm` from 2 to 8 ms
# and `aten::t` from 8 to 9 ms, and inside `aten::addmm` is `aten::copy_` from 3 to 5 ms.
#
# * `aten::linear`: total 10 ms. The spans inside cover 2 to 9 ms, which are 7 ms. The self time is 3 ms.
#   The 2 ms of `aten::copy_` are not subtracted a second time, because `aten::addmm` contains them.
# * `aten::addmm`: total 6 ms, self 6 - 2 = 4 ms.
# * `aten::copy_` contains nothing, so total and self time are both 2 ms.
#
# The total time answers "what would I save if this call were not made at all?". The self time answers "in
# which function is the time spent?". The self times of all spans of a track add up to the time in which the
# track has any span, and the total times do not. Therefore tables of operations are sorted by self time. A
# large self time of a span that only calls others, such as `backward`, has a special meaning: in this time no
# operation ran, so the thread was waiting or executing Python code.
#
# ### Exercise 4: Self time
#
# **What:** write `self_time(span, spans)`.
#
# **Why:** this is the column "Self CPU" of PyTorch's table, and you will use it to find waiting.
#
# **Signature:** `span` is one element of the list `spans`. Return milliseconds. `span.contains(other)` says
# whether another span of the same track lies inside this one.
#
# <details><summary>Hint 1</summary>Take all spans inside, as intervals, and subtract the length of their
# union.</details>
#
# <details><summary>Hint 2</summary>For aten::linear above, the intervals inside are (2, 8), (8, 9) and (3,
# 5). Their union is (2, 9), so the self time is 10 - 7 = 3 ms.</details>
#
# <details><summary>Hint 3</summary><code>inside = [(each.start, each.end) for each in spans if
# span.contains(each)]</code></details>


# %%
def self_time(span, spans):
    # BEGIN SOLUTION: return the duration without the spans inside
    inside = [(each.start, each.end) for each in spans if span.contains(each)]
    return span.duration - length(inside)
    # END SOLUTION


# %%
exercises.check_self_time(self_time)
for name in ("forward", "backward", "update"):
    one = next(span for span in spans if span.name == name)
    print(f"{name:9} total {one.duration:6.1f} ms, self {self_time(one, spans):5.1f} ms")

# %% [markdown]
# `backward` has the largest self time of the three in most runs. The matrix products of the backward pass are
# spans of their own inside it, so they do not belong to its self time. What remains is mostly the time in
# which the main thread waits for the last all-reduce. In the table of the profiler above, `backward` is
# therefore one of the first rows.
#
# ## Stragglers
#
# A **straggler** is a rank that reaches a collective later than the others. An all-reduce ends only when
# all ranks have contributed, so each of them waits for the straggler in every step. The causes are many: a
# slower GPU, a node with other work, longer texts in the batch, or a slower disk.
#
# ![Two ranks. Rank 0 computes for 20 ms, begins its all-reduce and waits for 30 ms. Rank 1 computes for 50 ms and then begins its all-reduce. From then on both send for 8 ms and end together.](pictures/straggler_on_two_ranks.svg)
#
# For example, rank 0 computes for 20 ms and rank 1 for 50 ms, and sending takes 8 ms. The all-reduce of rank
# 0 lasts from 20 to 58 ms, which are 38 ms. That of rank 1 lasts from 50 to 58 ms. Both steps take 58 ms,
# so the step time does not tell which rank is slow. The trace of a single rank may even mislead you. It
# shows a long all-reduce, and the network seems to be slow. Always compare the traces of at least two ranks.

# %%
# Prediction 2: one rank computes four times as long as the other one. Which of them has the longer
# all-reduces, the "fast" or the "slow" one? Replace both values of None.
workbook.predict(2, None, form=["fast", "slow"], reason=None)

# %% [markdown]
# ## Five cases
#
# The next cell records five more runs of the same training. Each of them has one fault. In each case you
# give a **diagnosis**, which is one of the names below, and its **evidence**, a number that you compute from
# the trace. Each name needs another number:

# %%
found, more = record(1, 2, 3, 4, 5)
traces, times = traces | found, times | more
for name, known in exercises.NAMES.items():
    print(f"{name:17}{known.title}\n{'':17}evidence: {known.evidence}")

# %% [markdown]
# There are more names than cases. The check looks at your evidence first, so trying out names does not help.
# You see for each case the chart of one step, and a table that compares rank 0 with the correct run. It
# lists the four phases, and below them the names that are called more often or less often per step. Look at
# the phases first, then at the number of calls, then at the other rank. Compare fractions and counts.
# Milliseconds depend on what else your machine does.
#
# ## Case 1
#
# *"The loss curve is right, and the GPU of my colleague is no faster than mine in this training."*

# %% tags=["folded"]
describe(
    draw_step(traces[1]),
    "A Gantt chart of one step of case 1 on two ranks, with phases, operations and all-reduces. At the "
    "beginning of the step is a long phase in which no operation runs.",
)

# %%
compare_runs(traces[1][0], traces[0][0])

# %% [markdown]
# ### Exercise 5: Diagnosis of case 1
#
# **What:** set `evidence` to the number that belongs to your diagnosis, computed from `traces[1]`, and
# `diagnosis` to a name.
#
# <details><summary>Hint 1</summary>Compare the fractions of the four phases with those of the correct
# run. The number of calls has not changed.</details>
#
# <details><summary>Hint 2</summary>If a phase takes 60 of 90 ms, its fraction is 0.67. You have written a
# function for this in exercise 1.</details>
#
# <details><summary>Hint 3</summary><code>evidence = fraction_of_step(traces[1][0], "read
# batch")</code></details>

# %%
# BEGIN SOLUTION: set evidence to a number from the trace, and diagnosis to a name
evidence = fraction_of_step(traces[1][0], "read batch")
diagnosis = "blocking-read"
# END SOLUTION

# %%
exercises.check_diagnosis(1, diagnosis, evidence, traces)

# %% [markdown]
# **What the result means.** The step begins with a phase in which the main thread computes nothing and
# waits for the file server. A faster GPU would make only the other part of the step shorter, which
# explains the report. In the correct run the same reading happens in other threads while the network
# trains. These threads call no operation of PyTorch, so the profiler does not show them.
#
# ## Case 2
#
# *"I added the training accuracy to the log. The training has become slower, by more than such a small
# computation should take."*

# %% tags=["folded"]
describe(
    draw_step(traces[2]),
    "A Gantt chart of one step of case 2 on two ranks, with phases, operations and all-reduces. The forward "
    "phase takes a larger fraction of the step than in the correct run, and operations fill it.",
)

# %%
compare_runs(traces[2][0], traces[0][0])

# %% [markdown]
# ### Exercise 6: Diagnosis of case 2
#
# **What:** as before, with `traces[2]`.
#
# <details><summary>Hint 1</summary>Which phase has grown? Look at the names of operations with a changed
# number of calls. What do layers of the network call?</details>
#
# <details><summary>Hint 2</summary>The network has 8 linear layers, and a forward pass calls each of them
# once. In 4 steps these are 32 calls, which is 8 per step.</details>
#
# <details><summary>Hint 3</summary><code>calls = sum(span.name == "aten::linear" for span in
# traces[2][0])</code>, divided by the number of steps</details>

# %%
# BEGIN SOLUTION: set evidence to a number from the trace, and diagnosis to a name
calls = sum(span.name == "aten::linear" for span in traces[2][0])
evidence = calls / len(steps(traces[2][0]))
diagnosis = "repeated-forward"
# END SOLUTION

# %%
exercises.check_diagnosis(2, diagnosis, evidence, traces)

# %% [markdown]
# **What the result means.** 16 calls instead of 8 are two forward passes per step. The script calls the
# network a second time to compute the accuracy, although it has the logits already. The backward pass has
# not changed, because the second forward pass needs no gradients. The remedy is `logits = model(images)`
# once, then the loss and the accuracy from `logits`. Activation checkpointing (lab 9) also repeats the
# forward pass, but on purpose, and then the additional calls are inside the backward pass.
#
# ## Case 3
#
# *"The network between our nodes can send 10 GB per second, and this model is small. Still, adding a rank
# makes each step longer."*

# %% tags=["folded"]
describe(
    draw_step(traces[3]),
    "A Gantt chart of one step of case 3 on two ranks, with phases, operations and all-reduces. The row of "
    "all-reduces contains many bars.",
)

# %%
compare_runs(traces[3][0], traces[0][0])

# %% [markdown]
# ### Exercise 7: Diagnosis of case 3
#
# **What:** as before, with `traces[3]`.
#
# <details><summary>Hint 1</summary>Two names have a changed number of calls. The network has 24 gradient
# tensors.</details>
#
# <details><summary>Hint 2</summary>Spans of kind <code>"communication"</code> are collectives. 16 of them in
# 4 steps would be 4 per step, as in the correct run.</details>
#
# <details><summary>Hint 3</summary><code>sum(span.kind == "communication" for span in
# traces[3][0])</code>, divided by the number of steps</details>

# %%
# BEGIN SOLUTION: set evidence to a number from the trace, and diagnosis to a name
messages = sum(span.kind == "communication" for span in traces[3][0])
evidence = messages / len(steps(traces[3][0]))
diagnosis = "small-messages"
# END SOLUTION

# %%
exercises.check_diagnosis(3, diagnosis, evidence, traces)

# %% [markdown]
# **What the result means.** Each of the 24 gradients has an all-reduce of its own. The bytes are the same
# as in the correct run, but each message pays the latency $\alpha$ of lab 4. For example, with $\alpha$ =
# 0.1 ms and without overlap, 24 messages cost 2.4 ms and 4 messages cost 0.4 ms. In this case the limit
# of DDP's buckets was set to one byte. Horovod does the same with `HOROVOD_FUSION_THRESHOLD=0` (lab 5).
#
# ## Case 4
#
# *"The profile of rank 0 says that half of the step is all-reduce. We need a faster network."*

# %% tags=["folded"]
describe(
    draw_step(traces[4]),
    "A Gantt chart of one step of case 4 on two ranks, with phases, operations and all-reduces. On rank 0 "
    "the operations end early and the all-reduces last until the end of the backward pass. On rank 1 the "
    "operations fill the step, and the all-reduces are short.",
)

# %%
compare_runs(traces[4][0], traces[0][0])

# %%
print("exposed:", [f"rank {rank}: {exposed_fraction(traces[4][rank]):.2f}" for rank in (0, 1)])

# %% [markdown]
# ### Exercise 8: Diagnosis of case 4
#
# **What:** as before, with `traces[4]`. Decide whether the report is right.
#
# <details><summary>Hint 1</summary>The same all-reduces, with the same bytes, appear in the traces of both
# ranks. Why do they not have the same durations?</details>
#
# <details><summary>Hint 2</summary>If the all-reduces of rank 0 last 40 ms in total and those of rank 1
# last 10 ms, the ratio is 4. Sending cannot take longer on one side only, so the difference is
# waiting.</details>
#
# <details><summary>Hint 3</summary><code>sums = [sum(s.duration for s in spans if s.kind ==
# "communication") for spans in traces[4]]</code>, and <code>evidence = sums[0] /
# sums[1]</code></details>

# %%
# BEGIN SOLUTION: set evidence to a number from the trace, and diagnosis to a name
sums = [sum(s.duration for s in rank if s.kind == "communication") for rank in traces[4]]
evidence = sums[0] / sums[1]
diagnosis = "straggler"
# END SOLUTION

# %%
exercises.check_diagnosis(4, diagnosis, evidence, traces)
workbook.result(2, "fast" if evidence > 1 else "slow")  # rank 0 is the fast one

# %% [markdown]
# **What the result means.** Rank 1 reads 256 images per step and rank 0 only 64. Rank 0 finishes early and
# waits in its all-reduces. So the *fast* rank has the longer all-reduces. If you predicted "slow", you
# probably thought of a slow network connection. But an all-reduce has the same bytes on both ranks, and what
# differs is the moment at which it begins. A faster network would not help, because rank 1 would still be
# late. `exposed` is large on rank 0 as well, so you might have looked for a missing overlap. The trace of
# rank 1 rules it out: there the same all-reduces are short, so sending them takes little time.
#
# ### Timeline of Horovod
#
# Horovod writes its own trace, in the same format (lab 5). It has one file, written by rank 0, and a
# group of spans for each gradient tensor. The span `NEGOTIATE_ALLREDUCE` begins when the first rank has
# this gradient and ends when the last rank has it. Inside it a mark for each rank says when this rank was
# ready. So one file shows what needed two traces above: which rank is late, and for how long the others
# wait. The next cell repeats case 4 with Horovod in place of DDP. In the table, the phases `ready 0` and
# `ready 1` are the marks.

# %%
file = FOLDER / "timeline.json"
script = [LABS / "traced_training.py", "--case", 4, "--horovod", "--out", FOLDER / "horovod"]
variables = {"HOROVOD_TIMELINE": str(file), "HOROVOD_CACHE_CAPACITY": "0", "OMP_NUM_THREADS": "1"}
run(*script, ranks=2, show=False, timeout=300, **variables)
table = horovod_timeline.read(file)
table.groupby("phase")["milliseconds"].median()[["negotiate", "copy in", "all-reduce", "copy out"]]

# %% [markdown]
# ### Exercise 9: Lateness of a rank
#
# **What:** write `lateness(table)`, the median of how many milliseconds rank 1 is ready later than rank 0.
# Take the median over all tensors and all steps.
#
# **Why:** the sign of this number names the straggler, and its size is the time that the other rank loses.
#
# **Signature:** `table` has a row for each phase of each tensor in each step, with the columns `tensor`,
# `step`, `phase` and `start`. Return milliseconds.
#
# <details><summary>Hint 1</summary>For each tensor and step, subtract the start of the row `ready 0` from
# that of the row `ready 1`.</details>
#
# <details><summary>Hint 2</summary>If rank 0 is ready at 1, 2 and 10 ms, and rank 1 at 3, 2.5 and 19 ms,
# the differences are 2, 0.5 and 9 ms. Their median is 2 ms.</details>
#
# <details><summary>Hint 3</summary><code>starts = table.pivot(index=["tensor", "step"], columns="phase",
# values="start")</code> makes one column for each phase.</details>


# %%
def lateness(table):
    # BEGIN SOLUTION: return the median of the differences between rank 1 and rank 0
    starts = table.pivot(index=["tensor", "step"], columns="phase", values="start")
    late = starts["ready 1"] - starts["ready 0"]
    return late.median()
    # END SOLUTION


# %%
exercises.check_lateness(lateness)
print(f"rank 1 is {lateness(table):.1f} ms later than rank 0")

# %% [markdown]
# The number is positive, so rank 1 is the straggler. The median of `negotiate` is about as large, because
# negotiation is mostly waiting. Horovod's timeline has no span for the computation. It shows *that* rank 1
# is late, and you need the profiler's trace of rank 1 to see *why*.
#
# ## Case 5
#
# *"I compute the accuracy from the logits now, but image by image. On my laptop it hardly matters. On the
# GPU the training is much slower."*

# %% tags=["folded"]
describe(
    draw_step(traces[5]),
    "A Gantt chart of one step of case 5 on two ranks, with phases, operations and all-reduces. The forward "
    "phase is longer than in the correct run, with many very short operations.",
)

# %%
compare_runs(traces[5][0], traces[0][0])

# %% [markdown]
# ### Exercise 10: Diagnosis of case 5
#
# **What:** as before, with `traces[5]`.
#
# <details><summary>Hint 1</summary>Look for operations that the correct run never calls. What does
# <code>float(tensor)</code> do?</details>
#
# <details><summary>Hint 2</summary><code>float(score)</code> calls <code>aten::item</code>, which makes a
# number of Python from a tensor with one element. 10 classes and 64 images are 640 of such
# numbers.</details>
#
# <details><summary>Hint 3</summary>Count the spans with the name <code>"aten::item"</code> as you counted
# <code>"aten::linear"</code> in case 2.</details>

# %%
# BEGIN SOLUTION: set evidence to a number from the trace, and diagnosis to a name
calls = sum(span.name == "aten::item" for span in traces[5][0])
evidence = calls / len(steps(traces[5][0]))
diagnosis = "synchronization"
# END SOLUTION

# %%
exercises.check_diagnosis(5, diagnosis, evidence, traces)

# %% [markdown]
# **What the result means.** The script takes 640 scores and 64 labels out of tensors, one at a time, which
# makes 704 calls of `aten::item` per step. On a CPU each call costs some microseconds. On a GPU it costs
# more, because the number must first exist. A *synchronization* is a point at which the CPU waits until the
# GPU has finished what it was told to do, and `.item()`, `float(tensor)`, `print(tensor)` and `.cpu()` are
# such points. The remedy is `(logits.argmax(1) == labels).sum()`, which stays a tensor, and one `.item()`
# after many steps.
#
# ## Traces of a GPU
#
# The traces of this lab come from processors. A trace of a GPU has the same format, and the functions that you
# wrote read it too. The following differences matter.
#
# A GPU executes *kernels*, which are functions that run on the GPU. The CPU only launches them: it puts a
# kernel into a queue and continues at once. A queue whose kernels run one after the other is called a
# *stream*. Therefore a trace of a GPU has two groups of tracks. The tracks of the CPU show the operations
# of PyTorch and the launches, and the tracks of the GPU, one per stream, show when the kernels really ran.
#
# | what you look for | in this lab's traces (CPU) | in a trace of a GPU |
# |---|---|---|
# | computation | operations on the main thread | kernels on the compute stream |
# | communication | `gloo:all_reduce` on threads of Gloo | kernels whose names begin with `nccl`, on a stream of their own |
# | waiting for data | a long `read batch` | gaps between kernels, and a long `read batch` on the CPU |
# | synchronization | `aten::item` | `cudaStreamSynchronize` on the CPU below `aten::item`, and a gap on the GPU after it |
# | copies | `aten::copy_` | `Memcpy HtoD` (from host to device) and `Memcpy DtoH` |
# | too many small operations | many short operations | launches take longer than the kernels, so the GPU waits for the CPU |
#
# Two consequences follow. First, the duration of an operation on the CPU says nothing about the time of its
# kernel. If `aten::item` takes 20 ms on the CPU, it is usually waiting for kernels that were launched long
# before. Second, communication is exposed while an NCCL kernel runs and no other kernel does. An NCCL kernel
# also waits for the straggler: it is running on the fast GPU until the slow one arrives.
#
# To record such a trace, add `ProfilerActivity.CUDA` to the activities. Some more tools are useful on a
# cluster. Nsight Systems (`nsys profile`) records all processes of a node and also the operating system.
# [Holistic Trace Analysis](https://hta.readthedocs.io) computes for traces of many ranks the idle time and
# the overlap of communication and computation, as you did here for two.
#
# ## Summary
#
# * A trace is a list of spans with a name, a track, a start and a duration. Spans of one track are nested,
#   and spans of different tracks can overlap in time.
# * Durations that can overlap are added by their union. Exposed communication is the length of the union of
#   communication and computation minus that of the computation.
# * Self time is the duration without the spans inside. A large self time of `backward` is waiting, in these
#   traces for the last all-reduce.
# * The correct run has 4 all-reduces and 8 linear layers per step, and spends less than 1 % of the step
#   reading data.
# * The five faults show in different numbers: a fraction for reading, 24 all-reduces per step, 16 linear
#   layers per step, 704 calls of `aten::item` per step, and a ratio far above 1 between the all-reduces of
#   two ranks.
# * The rank with the long all-reduces is the fast one. A single trace cannot tell a slow network from a
#   straggler, and Horovod's timeline or a second trace can.
# * Compare fractions and counts between runs. Milliseconds that were recorded with a profiler contain its
#   own cost.
#
# ## Self-check questions

# %%
workbook.question(1, answer=None)

# %% tags=["solution"]
workbook.question(1, answer=12)

# %%
workbook.question(2, answer=None)

# %% tags=["solution"]
workbook.question(2, answer="b")

# %%
workbook.question(3, answer=None)

# %% tags=["solution"]
workbook.question(3, answer=3)

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
workbook.question(6, answer="d")

# %% [markdown]
# **Next:** you can now explain the time of a step on two ranks. [Lab 18](18_past_one_machine.ipynb)
# predicts the time of a step on many machines.
