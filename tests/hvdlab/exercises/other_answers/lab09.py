"""Right answers of lab 9 in other styles."""

import copy
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def sum_of_inputs(batch_size, num_layers, hidden_size, number_bytes=4):
    inputs = {"norm": 1, "up": 1, "gelu": 4, "down": 4}
    return (
        sum(batch_size * hidden_size * each for each in inputs.values()) * num_layers * number_bytes
    )


def scale_by_factor(scale, good_steps, overflow, interval=2000):
    grows = not overflow and good_steps >= interval - 1
    return [scale * (0.5 if overflow else 2.0**grows), 0 if overflow or grows else good_steps + 1]


def as_tensor(scale, good_steps, overflow, interval=2000):
    good_steps = 0 if overflow else good_steps + 1
    return torch.tensor(
        [scale / 2 if overflow else scale * 2 ** (good_steps // interval), good_steps % interval]
    )


def step_by_hand(loss, optimizer, scale):
    optimizer.zero_grad()
    torch.mul(loss, scale).backward()
    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    torch._foreach_mul_(grads, 1 / scale)
    fine = torch.stack([g.isfinite().all() for g in grads]).all()
    if fine:
        optimizer.step()
    for g in grads:
        g.zero_()
    return ~fine


def step_with_sum(loss, optimizer, scale):
    (loss * scale).backward()
    total = 0.0
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = p.grad / scale
            total += float(p.grad.abs().sum())
    if math.isfinite(total):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return not np.isfinite(total)


def clipped_scaled_up(model, images, labels, optimizer, scaler, max_norm=1.0):
    """Without unscale_: max_norm in units of the scaled gradients."""
    optimizer.zero_grad()
    with torch.autocast(device_type=images.device.type, dtype=torch.bfloat16):
        loss = nn.CrossEntropyLoss()(model(images), labels)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    return loss


def clipped_by_a_loop(model, images, labels, optimizer, scaler, max_norm=1.0):
    optimizer.zero_grad()
    with torch.autocast(images.device.type, torch.bfloat16):
        loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    for p in model.parameters():
        p.grad *= (max_norm / norm).clamp(max=1)
    scaler.step(optimizer)
    scaler.update()
    return float(loss.detach())


def epoch_with_stack(model, batches, optimizer):
    losses, counts = [], []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels, reduction="sum")
        (loss / len(labels)).backward()
        optimizer.step()
        losses.append(loss.detach())
        counts.append(labels.numel())
    return float(torch.stack(losses).sum()) / sum(counts)


def epoch_with_tensors(model, batches, optimizer):
    total = torch.zeros(2)
    for images, labels in batches:
        loss = nn.functional.nll_loss(model(images).log_softmax(1), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total += torch.stack([loss.detach() * len(labels), torch.tensor(float(len(labels)))])
    return (total[0] / total[1]).item()


def epoch_with_list(model, batches, optimizer):
    losses, counts = [], []
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        counts.append(len(labels))
    return np.average(torch.stack(losses).cpu().numpy(), weights=counts)


def split_by_tensor(blocks, x, segments):
    for part in torch.arange(len(blocks)).tensor_split(segments):
        x = checkpoint(nn.Sequential(*(blocks[i] for i in part)), x, use_reentrant=False)
    return x


def small_segments_first(blocks, x, segments):
    def run(part, x):
        for block in part:
            x = block(x)
        return x

    borders = [len(blocks) * i // segments for i in range(segments + 1)]
    for begin, end in zip(borders, borders[1:], strict=False):
        x = checkpoint(run, blocks[begin:end], x, use_reentrant=False)
    return x


class RecomputeInCopy(torch.autograd.Function):
    """Runs a copy of the block again, so that statistics of the block are updated once."""

    @staticmethod
    def forward(ctx, block, x):
        ctx.block, ctx.state = block, torch.get_rng_state()
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, gradient):
        twin = copy.deepcopy(ctx.block)
        twin.zero_grad()
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            y = twin(x)
        y.backward(gradient)
        for weight, other in zip(ctx.block.parameters(), twin.parameters(), strict=True):
            weight.grad = other.grad if weight.grad is None else weight.grad + other.grad
        return None, x.grad


class Recompute(torch.autograd.Function):
    @classmethod
    def forward(cls, ctx, block, x):
        ctx.block, ctx.state = block, torch.random.get_rng_state()
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @classmethod
    def backward(cls, ctx, gradient):
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.block(x)
        torch.set_rng_state(now)
        torch.autograd.backward(y, gradient)
        return None, x.grad


def accumulate_slices(model, images, labels, micro_batch):
    mean = 0
    for start in range(0, len(images), micro_batch):
        part = slice(start, start + micro_batch)
        loss = F.cross_entropy(model(images[part]), labels[part], reduction="sum") / len(images)
        loss.backward()
        mean += loss.item()
    return mean


def accumulate_evenly(model, images, labels, micro_batch):
    """Micro-batches of 4, 3 and 3; the loss as a tensor."""
    count = -(-len(images) // micro_batch)
    losses = []
    for x, y in zip(images.tensor_split(count), labels.tensor_split(count), strict=True):
        loss = F.cross_entropy(model(x), y)
        (loss * len(y) / len(labels)).backward()
        losses.append(loss.detach() * len(y))
    return torch.stack(losses).sum() / len(labels)


activation_bytes = [
    sum_of_inputs,
    lambda b, n, h, number_bytes=4: np.prod([b, n, h, 10, number_bytes]),
]
next_scale = [scale_by_factor, as_tensor]
scaled_step = [step_by_hand, step_with_sum]
clipped_step = [clipped_scaled_up, clipped_by_a_loop]
train_epoch = [epoch_with_stack, epoch_with_tensors, epoch_with_list]
run_in_segments = [split_by_tensor, small_segments_first]
recomputed = [
    lambda block, x: Recompute.apply(block, x),
    lambda block, x: RecomputeInCopy.apply(block, x),
    lambda block, x: checkpoint(block, x, use_reentrant=False),
]
accumulate = [accumulate_slices, accumulate_evenly]
