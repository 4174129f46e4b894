"""Exercises of the algebra bridge: eigenvalue of a vector, eigenvalues, variance of a mean, and curvature."""

import math

import numpy as np

from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise


def array(*values: float) -> np.ndarray:
    return np.array(values, float)


def eigenvalue_of(matrix, vector):
    product = matrix @ vector
    return product @ vector / (vector @ vector)


# fmt: off
check_eigenvalue_of = FunctionExercise(
    eigenvalue_of,
    [
        Case((np.array([[3.0, 1.0], [1.0, 3.0]]), array(1, 1)), expected=4,
             call="The eigenvalue of the vector (1, 1) of the matrix (3, 1; 1, 3)",
             reason="The matrix turns (1, 1) into (4, 4)."),
        Case((np.array([[18.0, 0.0], [0.0, 2.0]]), array(0, 5)), expected=2,
             call="The eigenvalue of the vector (0, 5) of the matrix (18, 0; 0, 2)",
             reason="The matrix turns (0, 5) into (0, 10)."),
        Case((np.array([[1.0, 2.0], [2.0, 1.0]]), array(3, -3)), expected=-1,
             call="The eigenvalue of the vector (3, -3) of the matrix (1, 2; 2, 1)",
             reason="The matrix turns (3, -3) into (-3, 3)."),
    ],
    {
        "Divide by vector @ vector: the eigenvalue must not depend on the length of the vector.":
            (" / (vector @ vector)", ""),
        "Divide by the square of the length of the vector, vector @ vector, and not by the length.":
            ("(vector @ vector)", "np.linalg.norm(vector)"),
        "A ratio of lengths has no sign. An eigenvector with a negative eigenvalue changes its direction.":
            ("product @ vector / (vector @ vector)", "np.linalg.norm(product) / np.linalg.norm(vector)"),
        "The first component of a vector can be 0, so do not divide by it.":
            ("product @ vector / (vector @ vector)", "product[0] / vector[0]"),
        "That is the inverse: divide the product by the vector, and not the vector by the product.":
            ("product @ vector / (vector @ vector)", "vector @ vector / (product @ vector)"),
    },
    passed="the eigenvalue is the factor by which the matrix stretches its eigenvector, with a sign.",
)
# fmt: on


def eigenvalues(a, b, d):
    middle = (a + d) / 2
    radius = math.sqrt(((a - d) / 2) ** 2 + b**2)
    return middle - radius, middle + radius


# fmt: off
check_eigenvalues = FunctionExercise(
    eigenvalues,
    [
        Case((3, 1, 3), "The middle is 3, and the square root of 0 + 1 is 1.", expected=(2, 4)),
        Case((18, 0, 2), "A diagonal matrix has its eigenvalues on the diagonal.", expected=(2, 18)),
        Case((7, 3, -1), "The middle is 3, and the square root of 16 + 9 is 5.", expected=(-2, 8)),
    ],
    {
        "Return the smaller eigenvalue first.":
            ("middle - radius, middle + radius", "middle + radius, middle - radius"),
        "The element b outside the diagonal is missing.": (" + b**2", ""),
        "The difference a - d must be divided by 2, like the sum.": ("(a - d) / 2", "(a - d)"),
        "The sum a + d must be divided by 2.": ("(a + d) / 2", "a + d"),
        "Take the square root of the sum of the squares.": ("math.sqrt(", "("),
        "Square b before you add it.": ("b**2", "b"),
    },
    passed="their sum is a + d. `np.linalg.eigvalsh` returns the same two numbers for this matrix.",
    shape=2, meaning="the smaller eigenvalue and the larger one",
)
# fmt: on


def variance_of_mean(values, n):
    return np.var(values) / n


# fmt: off
check_variance_of_mean = FunctionExercise(
    variance_of_mean,
    [
        Case((array(1, 5, 3, 7), 1), "The mean is 4, so the variance is (9 + 1 + 1 + 9) / 4 = 5.",
             expected=5),
        Case((array(0, 10), 100), "The variance of 0 and 10 is 25, and 25 / 100 = 0.25.", expected=0.25),
        Case((array(1, 5, 3, 7), 4), "The variance is 5, and 5 / 4 = 1.25.", expected=1.25),
    ],
    {
        "That is the standard deviation of the mean. Its square is the variance.":
            ("np.var(values) / n", "np.sqrt(np.var(values) / n)"),
        "The variance falls like 1 / n. The standard deviation falls like 1 / sqrt(n).":
            ("/ n", "/ np.sqrt(n)"),
        "The variance of a single value is not the variance of a mean: divide by n.": (" / n", ""),
        "Divide by the argument n, and not by the number of values.": ("/ n", "/ len(values)"),
        "Subtract the mean of the values before you square them.":
            ("np.var(values)", "np.mean(values**2)"),
        "The values are all that can be drawn, so divide by their number, and not by one less.":
            ("np.var(values)", "np.var(values, ddof=1)"),
        "That is the variance of a sum of n values. Divide it by n squared to get that of their mean.":
            ("/ n", "* n"),
    },
    passed="four times as many values divide the variance by 4, and the standard deviation by 2.",
)
# fmt: on


def curvature(losses, distance):
    return (losses[2:] - 2 * losses[1:-1] + losses[:-2]) / distance**2


# fmt: off
check_curvature = FunctionExercise(
    curvature,
    [
        Case((array(4, 1, 0, 1, 4), 1), "The parabola w^2 has the second derivative 2 everywhere.",
             expected=(2, 2, 2)),
        Case((array(0, 1, 0), 0.5), "The second difference is 0 - 2 + 0 = -2, and -2 / 0.25 = -8.",
             expected=(-8,)),
        Case((array(1, 3, 5, 7), 2), "A straight line has no curvature.", expected=(0, 0)),
    ],
    {
        "Divide by the square of the distance.": ("distance**2", "distance"),
        "Divide the second difference by the square of the distance.": (" / distance**2", ""),
        "These are the slopes. The curvature is the difference of two slopes, divided by the distance.":
            ("(losses[2:] - 2 * losses[1:-1] + losses[:-2]) / distance**2", "np.diff(losses) / distance"),
        "The middle point counts twice.": ("2 * losses", "losses"),
        "The sign is reversed: a curve that bends upwards has a positive curvature.":
            ("(losses[2:] - 2 * losses[1:-1] + losses[:-2])", "-np.diff(losses, 2)"),
    },
    passed="it is positive where a curve bends upwards, negative where it bends downwards, and 0 on a line.",
    shape=None,
)
# fmt: on
