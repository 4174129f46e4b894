"""Exercise of lab 6: the steps of a training whose batch grows."""

from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise


def ramp_steps(stages, tokens):
    ends = [start for start, _ in stages[1:]] + [tokens]
    steps = 0.0
    for (start, batch), end in zip(stages, ends, strict=True):
        steps += max(min(end, tokens) - start, 0) / batch
    return steps


THREE = [(0, 10), (100, 20), (500, 40)]

# fmt: off
check_ramp_steps = FunctionExercise(
    ramp_steps,
    [
        Case(([(0, 100), (1000, 200)], 2000), "By hand: 1,000 tokens in steps of 100 are 10 steps, and the "
             "other 1,000 tokens in steps of 200 are 5 steps.", expected=15),
        Case(([(0, 100)], 2000), "A constant batch is a ramp with one stage.", expected=20),
        Case((THREE, 900), "The stages have 100 / 10, 400 / 20 and 400 / 40 steps.", expected=40),
        Case((THREE, 300), "The run ends in the second stage: the stages have 100 / 10 and 200 / 20 steps.",
             expected=20),
        Case((THREE, 60), "The run ends in the first stage.", expected=6),
    ],
    {
        "Those are the steps with the last batch alone: each stage has its own batch.":
            lambda stages, tokens: tokens / stages[-1][1],
        "Those are the steps with the first batch alone: each stage has its own batch.":
            lambda stages, tokens: tokens / stages[0][1],
        "You divide by the mean of the batches. The stages have different lengths: divide the tokens of each "
        "stage by its batch.":
            lambda stages, tokens: tokens * len(stages) / sum(batch for _, batch in stages),
        "A stage ends where the next one begins, and not at the end of the run.":
            ("max(min(end, tokens) - start, 0)", "max(tokens - start, 0)"),
        "A stage that begins after the end of the run has no steps, and not a negative number of steps.":
            ("max(min(end, tokens) - start, 0)", "(min(end, tokens) - start)"),
        "The run ends within a stage: count only the tokens of this stage that are read.":
            ("max(min(end, tokens) - start, 0)", "max(end - start, 0)"),
        "The last stage is missing: it lasts until the run ends.":
            ("+ [tokens]", "+ [stages[-1][0]]"),
    },
    passed="15 steps by hand, a constant batch, and runs that end in each of three stages.",
    meaning="of steps",
)
# fmt: on
