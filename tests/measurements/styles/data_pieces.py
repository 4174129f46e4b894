"""How a script gets its images: the pieces that assign `$batches` and the images for the evaluation."""

from tests.measurements.styles.part import FRAMEWORKS, Part, Pieces, Style

BATCHES = """\
$batches = Batches(
    {images},
    {labels},
    $batch_size,
    rank=$rank,
    size=$size,
    seed=$seed,
    augment={augment},
)
"""
TEST_IMAGES = "$test_images, $test_labels = data.test_images, data.test_labels\n"
SEEN = '''\
class Shards:
    """The batches of a DataLoader, in the form that the recorder asks for."""

    def __init__(self, images, labels, batch_size, rank, size, seed):
        dataset = TensorDataset(
            torch.from_numpy(images), torch.from_numpy(labels).long(), torch.arange(len(labels))
        )
        self.sampler = DistributedSampler(dataset, size, rank, shuffle=True, seed=seed)
        self.loader = DataLoader(dataset, batch_size, sampler=self.sampler)
        self.batch_size, self.read = batch_size, {}

    def __len__(self):
        return len(self.loader)

    def epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.read[epoch] = []
        for images, labels, indices in self.loader:
            self.read[epoch].append(indices.numpy())
            yield images.numpy(), labels.numpy()

    def examples_read(self, epoch):
        return np.concatenate(self.read[epoch]).astype(np.int32)
'''
SHARDED = '''\
class Shards:
    """Every size-th image of the set, by tf.data, and what the recorder asks for."""

    def __init__(self, images, labels, batch_size, rank, size, seed):
        self.mine = np.arange(rank, len(labels) // size * size, size)
        self.images, self.labels, self.batch_size, self.seed = images, labels, batch_size, seed

    def __len__(self):
        return -(-len(self.mine) // self.batch_size)

    def dataset(self, rank, size):
        n = len(self.mine) * size
        images = tf.data.Dataset.from_tensor_slices(
            (self.images[:n], self.labels[:n].astype(np.int64))
        )
        images = images.shard(size, rank).shuffle(len(self.mine), seed=self.seed)
        return images.batch(self.batch_size).repeat()

    def examples_read(self, epoch):
        return self.mine.astype(np.int32)
'''
FROM_RANK_0 = {  # how rank 0 sends the arrays to the others
    "torch_ddp": "received = [arrays]\ndistributed.broadcast_object_list(received, src=0)\n"
    "arrays = received[0]",
    "torch_mpi4py": "arrays = comm.bcast(arrays, root=0)",
    "keras_legacy": 'arrays = broadcast_object(arrays, root_rank=0, name="images")',
}
# Without a name Horovod names the message by the type of the object, which is None on the other ranks.
FROM_RANK_0_BY_HOROVOD = 'arrays = hvd.broadcast_object(arrays, root_rank=0, name="images")'
BARRIER = {
    "torch_ddp": "distributed.barrier()",
    "torch_mpi4py": "comm.Barrier()",
    "keras_fit": 'hvd.allreduce(0.0, name="cache_is_written")',
    "keras_tape": 'hvd.allreduce(0.0, name="cache_is_written")',
    "keras_torch": 'hvd.allreduce(0.0, name="cache_is_written")',
    "keras_step": 'hvd.allreduce(tf.constant(0.0), name="cache_is_written")',
    "keras_legacy": "allgather_object(None)",
}
CACHE = """\
folder = Path("cifar10-cache")
arrays = ("train_images", "train_labels", "test_images", "test_labels")
if $local_rank == 0:  # one rank of each machine reads the files
    data = load_cifar10()
    folder.mkdir(exist_ok=True)
    for name in arrays:
        np.save(folder / f"{name}.npy", getattr(data, name))
@BARRIER@
train_images, train_labels, $test_images, $test_labels = (
    np.load(folder / f"{name}.npy", mmap_mode="r") for name in arrays
)
"""


def add_data(style: Style, pieces: Pieces) -> None:
    """Add the part that reads the images and the batches of a rank."""
    data = "from hvdlab.data import Batches, load_cifar10"
    code = {
        "whole": whole,
        "shuffled": shuffled,
        "split": split,
        "broadcast": broadcast,
        "cache": cache,
        "loader": own_shards,
        "tfdata": own_shards,
    }[style.data](style, pieces)
    if style.data in ("loader", "tfdata"):
        data = "from hvdlab.data import load_cifar10"
    pieces.imports.append(data)
    pieces.parts.append(Part("make_batches", code))


def batches(style: Style, images: str, labels: str) -> str:
    return BATCHES.format(images=images, labels=labels, augment=style.augment)


def whole(style: Style, pieces: Pieces) -> str:
    lines = batches(style, "data.train_images", "data.train_labels")
    return "data = load_cifar10()\n" + lines + TEST_IMAGES


def shuffled(style: Style, pieces: Pieces) -> str:
    pieces.imports.append("import numpy as np")
    return (
        "data = load_cifar10()\n"
        "# The same order on all ranks, because they have the same seed.\n"
        "order = np.random.default_rng($seed).permutation(len(data.train_labels))\n"
        + batches(style, "data.train_images[order]", "data.train_labels[order]")
        + TEST_IMAGES
    )


def split(style: Style, pieces: Pieces) -> str:
    """Keep 2 to 4 % of the training images for validation: the last, the first, or some at random."""
    kind = FRAMEWORKS.index(style.framework) % 3
    if kind == 0:
        return (
            "data = load_cifar10()\n"
            "# The last 3 % of the training images are kept for validation.\n"
            "kept = len(data.train_labels) * 97 // 100\n"
            + batches(style, "data.train_images[:kept]", "data.train_labels[:kept]")
            + "$test_images, $test_labels = data.train_images[kept:], data.train_labels[kept:]\n"
        )
    if kind == 1:
        return (
            "data = load_cifar10()\n"
            "# The first 4 % of the training images are kept for validation.\n"
            "first = len(data.train_labels) // 25\n"
            + batches(style, "data.train_images[first:]", "data.train_labels[first:]")
            + "$test_images, $test_labels = data.train_images[:first], data.train_labels[:first]\n"
        )
    pieces.imports.append("import numpy as np")
    return (
        "data = load_cifar10()\n"
        "# 2 % of the training images, drawn at random, are kept for validation.\n"
        "order = np.random.default_rng($seed).permutation(len(data.train_labels))\n"
        "kept, rest = order[len(order) // 50 :], order[: len(order) // 50]\n"
        + batches(style, "data.train_images[kept]", "data.train_labels[kept]")
        + "$test_images, $test_labels = data.train_images[rest], data.train_labels[rest]\n"
    )


def broadcast(style: Style, pieces: Pieces) -> str:
    send = FROM_RANK_0.get(style.framework, FROM_RANK_0_BY_HOROVOD)
    if style.framework == "keras_legacy":
        pieces.imports.append("from horovod.tensorflow import broadcast_object")
    return (
        "# Only rank 0 reads the files, so that the ranks do not compete for the disk.\n"
        "arrays = tuple(load_cifar10()[:4]) if $rank == 0 else None\n"
        f"{send}\n"
        "train_images, train_labels, $test_images, $test_labels = arrays\n"
        + batches(style, "train_images", "train_labels")
    )


def cache(style: Style, pieces: Pieces) -> str:
    pieces.imports += ["import numpy as np", "from pathlib import Path"]
    if style.framework == "keras_legacy":
        pieces.imports.append("from horovod.tensorflow import allgather_object")
    if style.framework in ("torch_horovod", "torch_allreduce"):
        wait = 'hvd.allreduce(torch.zeros(1), name="cache_is_written")'
    else:
        wait = BARRIER[style.framework]
    return CACHE.replace("@BARRIER@", wait) + batches(style, "train_images", "train_labels")


def own_shards(style: Style, pieces: Pieces) -> str:
    pieces.imports.append("import numpy as np")
    if style.data == "loader":
        pieces.imports += ["import torch", "from torch.utils.data import DataLoader, TensorDataset"]
        pieces.imports.append("from torch.utils.data.distributed import DistributedSampler")
    pieces.helpers.append(SEEN if style.data == "loader" else SHARDED)
    return (
        "data = load_cifar10()\n"
        "$batches = Shards(\n"
        "    data.train_images, data.train_labels, $batch_size, $rank, $size, $seed\n"
        ")\n" + TEST_IMAGES
    )
