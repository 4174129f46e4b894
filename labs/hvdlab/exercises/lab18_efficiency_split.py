"""Exercise of lab 18: split the efficiency of a training run into what the batch and the machine cost."""

from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise


def split_efficiency(small, large):
    total = small["seconds"] * small["gpus"] / (large["seconds"] * large["gpus"])
    statistical = small["examples"] / large["examples"]
    small_speed = small["examples_per_second"] / small["gpus"]
    large_speed = large["examples_per_second"] / large["gpus"]
    hardware = large_speed / small_speed
    rest = total / (statistical * hardware)
    return total, statistical, hardware, rest


def run(gpus: int, seconds: float, examples: float, steps: float, speed: float) -> dict[str, float]:
    return {
        "gpus": gpus,
        "seconds": seconds,
        "examples": examples,
        "steps": steps,
        "examples_per_second": speed,
    }


# fmt: off
SMALL, LARGE = run(2, 100, 1000, 100, 10), run(8, 50, 1250, 50, 31.25)
ALL_FOUR = "total, statistical, hardware, rest"
check_split_efficiency = FunctionExercise(
    split_efficiency,
    [
        Case((SMALL, LARGE), "By hand: 2 x 100 / (8 x 50) = 0.5, 1000 / 1250 = 0.8, (31.25 / 8) / (10 / 2) = "
             "0.78125, and 0.5 / (0.8 x 0.78125) = 0.8.", "split_efficiency of the two runs of the example",
             (0.5, 0.8, 0.78125, 0.8)),
        Case((run(4, 200, 2400, 600, 16), run(16, 75, 3000, 150, 40)), "By hand: 4 x 200 / (16 x 75) = 2/3, "
             "2400 / 3000 = 0.8, (40 / 16) / (16 / 4) = 0.625, and the rest is 4/3. It is above 1, because "
             "the small run evaluates longer.",
             "split_efficiency of 4 GPUs that take 200 s and 16 GPUs that take 75 s",
             (2 / 3, 0.8, 0.625, 4 / 3)),
        Case((SMALL, SMALL), "A run compared with itself loses nothing.",
             "split_efficiency of a run and the same run", (1, 1, 1, 1)),
    ],
    {
        "The statistical and the hardware efficiency are swapped. The first one compares examples, and the "
        "second one compares examples per second and GPU.":
            (f"return {ALL_FOUR}", "return total, hardware, statistical, rest"),
        "You divided steps. A larger batch makes fewer steps, but each of them reads more examples: compare "
        "the examples.": ('small["examples"] / large["examples"]', 'small["steps"] / large["steps"]'),
        "The statistical efficiency is upside down: the larger run reads more examples, so the value is "
        "below 1.": ('small["examples"] / large["examples"]', 'large["examples"] / small["examples"]'),
        "You compared the speeds of whole systems. Divide each speed by its number of GPUs first.":
            ('["examples_per_second"] / small["gpus"]', '["examples_per_second"]',
             '["examples_per_second"] / large["gpus"]', '["examples_per_second"]'),
        "The hardware efficiency is upside down: a GPU of the larger run is slower, so the value is below 1.":
            ("large_speed / small_speed", "small_speed / large_speed"),
        "The first number is the speed-up. Divide it by how many times more GPUs the larger run has.":
            ('small["seconds"] * small["gpus"] / (large["seconds"] * large["gpus"])',
             'small["seconds"] / large["seconds"]'),
        "The total efficiency is upside down: the GPU seconds of the small run are above the line.":
            ('small["seconds"] * small["gpus"] / (large["seconds"] * large["gpus"])',
             'large["seconds"] * large["gpus"] / (small["seconds"] * small["gpus"])'),
        "The rest divides by one of the two factors only: put their product in parentheses.":
            [("total / (statistical * hardware)", "total / statistical * hardware"),
             ("total / (statistical * hardware)", "total / statistical"),
             ("total / (statistical * hardware)", "total / hardware")],
        "The rest is what the product of the three factors still needs to give the total: divide, do not "
        "multiply or subtract.":
            [("total / (statistical * hardware)", "total * statistical * hardware"),
             ("total / (statistical * hardware)", "total - statistical * hardware"),
             ("total / (statistical * hardware)", "1 - statistical * hardware")],
        "The rest is not always 1: it is total / (statistical x hardware).":
            ("total / (statistical * hardware)", "1.0"),
        "The first number is the product of the two factors. Compute it from the seconds and the GPUs.":
            (f"return {ALL_FOUR}", "return statistical * hardware, statistical, hardware, rest"),
        "These are percentages: return fractions.":
            (f"return {ALL_FOUR}", "return 100 * total, 100 * statistical, 100 * hardware, 100 * rest"),
    },
    passed="0.5 = 0.8 x 0.78125 x 0.8 by hand. A run compared with itself gives four times 1.",
    shape=4, meaning="(total, statistical, hardware, rest)",
)
# fmt: on
