"""A block split among ranks, for tests of lab 13: the correct one, and common mistakes by name.

The functions are sent to the ranks as source, the wrong blocks together with `block`.
"""


def part_of(weights, rank, ranks):
    dims = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
    return {
        name: value.tensor_split(ranks, dims[name])[rank] if name in dims else value
        for name, value in weights.items()
    }


def f_and_g():
    from hvdlab.torch.model_parallel.tensor_parallel_layers import Copy, Reduce

    return lambda x: Copy.apply(x, None), lambda x: Reduce.apply(x, None)


def block(x, part, f, g):
    from torch.nn.functional import gelu, layer_norm

    y = f(layer_norm(x, x.shape[-1:], part["norm.weight"], part["norm.bias"]))
    y = gelu(y @ part["up.weight"].T + part["up.bias"])
    return x + (g(y @ part["down.weight"].T) + part["down.bias"])


def bias_on_every_rank(x, part, f, g):
    return block(x, part, f, lambda y: g(y + part["down.bias"])) - part["down.bias"]


def partial_sums(x, part, f, g):
    return block(x, part, f, lambda y: y)


def no_f(x, part, f, g):
    return block(x, part, lambda y: y, g)


def f_before_the_norm(x, part, f, g):
    return x + (block(f(x), part, lambda y: y, g) - f(x))


def f_before_the_residual(x, part, f, g):
    return block(f(x), part, lambda y: y, g)


def all_reduce_both_ways(x, part, f, g):
    return block(x, part, f, lambda y: f(g(y)))


def no_residual(x, part, f, g):
    return block(x, part, f, g) - x


def no_bias(x, part, f, g):
    return block(x, part, f, g) - part["down.bias"]


def another_output(x, part, f, g):
    return 2 * block(x, part, f, g)


def g_twice(x, part, f, g):
    g(x.sum())
    return block(x, part, f, g)


def nothing(x, part, f, g):
    pass
