"""How a PyTorch script without DistributedOptimizer averages its gradients."""

# What follows `backward` in torch_allreduce and torch_mpi4py: the averages take the gradients' place.
EXCHANGES = {
    ("torch_allreduce", "each"): """\
for name, parameter in $model.named_parameters():
    parameter.grad = hvd.allreduce(parameter.grad{contiguous}, name=name)
""",
    ("torch_allreduce", "fused"): """\
gradients = [parameter.grad{contiguous} for parameter in $model.parameters()]
averages = hvd.grouped_allreduce(gradients, name="gradients")
for parameter, average_gradient in zip($model.parameters(), averages, strict=True):
    parameter.grad = average_gradient
""",
    ("torch_allreduce", "fp16"): """\
for name, parameter in $model.named_parameters():
    parameter.grad = hvd.allreduce(
        parameter.grad{contiguous}, name=name, compression=hvd.Compression.fp16
    )
""",
    ("torch_allreduce", "scattered"): """\
gradients = torch.cat([parameter.grad.reshape(-1) for parameter in $model.parameters()])
mine = hvd.reducescatter(gradients, name="slices", op=hvd.Average)
put_gradients($model, hvd.allgather(mine, name="averages"))
""",
    ("torch_allreduce", "server"): """\
gradients = torch.cat([parameter.grad.reshape(-1) for parameter in $model.parameters()])
gathered = hvd.allgather(gradients[None], name="gradients")
put_gradients($model, gathered.mean(dim=0))
""",
    ("torch_mpi4py", "each"): """\
for parameter in $model.parameters():
    gradient = parameter.grad{contiguous}.numpy()
    comm.Allreduce(MPI.IN_PLACE, gradient)
    parameter.grad = torch.from_numpy(gradient / comm.size)
""",
    ("torch_mpi4py", "fused"): """\
gradients = torch.cat([p.grad.reshape(-1) for p in $model.parameters()]).numpy()
comm.Allreduce(MPI.IN_PLACE, gradients)
put_gradients($model, torch.from_numpy(gradients / comm.size))
""",
    ("torch_mpi4py", "scattered"): """\
gradients = torch.cat([p.grad.reshape(-1) for p in $model.parameters()]).numpy()
padded = np.pad(gradients, (0, -len(gradients) % comm.size))
mine = np.empty(len(padded) // comm.size, padded.dtype)
comm.Reduce_scatter_block(padded, mine)
mine /= comm.size
comm.Allgather(mine, padded)
put_gradients($model, torch.from_numpy(padded[: len(gradients)]))
""",
    ("torch_mpi4py", "server"): """\
gradients = torch.cat([p.grad.reshape(-1) for p in $model.parameters()]).numpy()
summed = np.empty_like(gradients)
comm.Reduce(gradients, summed, root=0)
if comm.rank == 0:
    put_gradients($model, torch.from_numpy(summed / comm.size))
""",
}
PUT = '''\
def put_gradients(model, vector):
    """Give each parameter its slice of the vector as gradient."""
    start = 0
    for parameter in model.parameters():
        part = vector[start : start + parameter.numel()]
        parameter.grad = part.view(parameter.shape).clone()
        start += parameter.numel()
'''
