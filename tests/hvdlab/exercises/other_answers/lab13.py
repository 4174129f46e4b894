"""Right answers of lab 13 in other styles. Those that run on ranks import inside what they need."""

import split_blocks


def with_slices(x, weight, ranks):
    high, wide = len(weight) // ranks, x.shape[1] // ranks
    columns = tuple(x @ weight[k : k + high].T for k in range(0, len(weight), high))
    inputs = [slice(k, k + wide) for k in range(0, x.shape[1], wide)]
    return [columns, tuple(x[:, mine] @ weight[:, mine].T for mine in inputs)]


def with_einsum(x, weight, ranks):
    import torch

    columns = (x @ weight.T).tensor_split(ranks, 1)
    some_x, some_weights = x.reshape(len(x), ranks, -1), weight.reshape(len(weight), ranks, -1)
    return list(columns), list(torch.einsum("eri,ori->reo", some_x, some_weights))


def with_slices_of_rows(weights, rank, ranks):
    high = len(weights["up.bias"]) // ranks
    mine = slice(rank * high, (rank + 1) * high)
    part = {name: value.clone() for name, value in weights.items()}
    return part | {
        "up.weight": weights["up.weight"][mine],
        "up.bias": weights["up.bias"][mine],
        "down.weight": weights["down.weight"][:, mine],
    }


def one_class_for_both():
    import torch
    import torch.distributed as dist

    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, forward):
            ctx.backward = not forward
            x = x.detach().clone()
            if forward:
                dist.all_reduce(x)
            return x

        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient.contiguous().clone()
            if ctx.backward:
                dist.all_reduce(gradient)
            return gradient, None

    def f(x):
        return Summed.apply(x, False)

    def g(x):
        return Summed.apply(x, True)

    return f, g


def with_matrix_products(x, part, f, g):
    import torch

    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    normed = (x - mean) / (variance + 1e-5).sqrt() * part["norm.weight"] + part["norm.bias"]
    y = f(normed) @ part["up.weight"].T + part["up.bias"]
    y = y * (1 + torch.erf(y / 2**0.5)) / 2
    return part["down.bias"] + x + g(y @ part["down.weight"].T)


def with_total_norm(split, shared, most):
    import torch.distributed as dist
    from torch.nn.utils import clip_grads_with_norm_, get_total_norm

    square = get_total_norm([p.grad for p in split]) ** 2
    dist.all_reduce(square)
    norm = (square + get_total_norm([p.grad for p in shared]) ** 2).sqrt()
    clip_grads_with_norm_([*split, *shared], most, norm)
    return norm


def with_shared_divided_by_ranks(split, shared, most):
    import torch
    import torch.distributed as dist

    square = torch.zeros(1)
    for parameter in split:
        square += (parameter.grad**2).sum()
    for parameter in shared:
        square += (parameter.grad**2).sum() / dist.get_world_size()
    dist.all_reduce(square)
    if square > most**2:
        for parameter in (*split, *shared):
            parameter.grad = parameter.grad * most / square.sqrt()
    return square.sqrt()


def bytes_in_one_line(b, h, r, c):
    return 4 * ((c - 1) / c * 16 * b * h / r + (r - 1) / r * 4 * b * h / c)


def bytes_in_integers(batch, hidden, rows, columns):
    numbers = 4 * hidden * (columns - 1) + hidden * (rows - 1)
    return 16 * batch * numbers // (rows * columns)


parts = [with_slices, with_einsum]
part_of = [split_blocks.part_of, with_slices_of_rows]
f_and_g = [split_blocks.f_and_g, one_class_for_both]
block = [split_blocks.block, with_matrix_products]
clip = [with_total_norm, with_shared_divided_by_ranks]
grid_bytes = [bytes_in_one_line, bytes_in_integers]
