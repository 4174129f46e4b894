"""A run of a script of lab 5 or 11 that is written by hand, in the format of real ones."""

import json

import numpy as np
import torch

from hvdlab.exercises.harness import conversion_runs
from hvdlab.exercises.harness.script_run import Watched
from hvdlab.record import RunRecord

ALL = np.arange(257)
HALVES = [[ALL[0::2], ALL[::-1][0::2]], [np.append(ALL[1::2], 0), np.append(ALL[::-1][1::2], 9)]]
RATE = conversion_runs.LEARNING_RATE
DRIFTS = np.array([[1.0, 4.0], [2.0, 5.5]])  # [epoch][rank]
KEPT = np.array([[1.0, 4.0], [2.0, 5.0]])
FILES = ("horovod", "process_group", "loading", "evaluated", "trained", "broadcasts")


class FakeRun:
    """Two ranks and two epochs of a run in which all is well, to be spoiled. Lists have an entry per rank."""

    def __init__(self):
        self.read = HALVES  # [rank][epoch]
        self.weights = np.array([[1.0, 1.0], [2.0, 2.0]])
        self.resumed = None  # weights of a run that resumes
        self.epochs, self.begins = [0, 1], [0, 0]
        self.values = [{"loss": 1.0, "accuracy": 50 / 101}] * 2
        self.left_out = [set(), set()]  # what a rank does not record
        self.rates = [2 * RATE] * 2
        self.printed = ["epoch 0 held-out 0.495\nepoch 1 held-out 0.495\n", ""]
        self.horovod = [{"rank": rank, "size": 2, "in_time": True} for rank in range(2)]
        self.process_group = [{"rank": rank, "size": 2, "backend": "gloo"} for rank in range(2)]
        self.loading = [[{"began": 0.0, "ended": 1.0}], [{"began": 1.1, "ended": 2.1}]]
        self.evaluated = [list(range(51)), list(range(51, 101))]
        self.trained = [[[129.0, 129]] * 2] * 2
        self.broadcasts = [None, None]
        self.gpu = {"model": 1, "current": 1, "helper": False}
        self.writers = [0]
        self.checkpoint = {"model": {"0.weight": torch.ones(1)}, "optimizer": {"state": {}}}
        self.failure = ""
        self.launchers = set()

    def __call__(self, script, *arguments, folder, disk=None, ranks=2, launcher=None, **options):
        self.launchers.add(launcher)
        disk = disk or folder
        weights, epochs = self.weights, self.epochs
        if folder.name == "resumed":  # after the first epoch
            weights, epochs = (weights if self.resumed is None else self.resumed), epochs[1:]
        for rank in range(ranks):
            record = RunRecord(folder, rank)
            for epoch in epochs:
                read, kernel = self.read[rank][epoch], np.array([weights[epoch][rank], 0.5])
                values = {
                    "learning_rate": self.rates[rank],
                    "images_per_second": 9.0,
                    **self.values[rank],
                }
                record.write(
                    epoch + self.begins[rank],
                    lambda file, k=kernel, r=read: np.savez(file, examples_read=r, kernel=k),
                    steps=-(-len(read) // 32),
                    **{n: v for n, v in values.items() if n not in self.left_out[rank]},
                )
            own = disk / f"rank-{rank}"
            (own / "checkpoints").mkdir(parents=True, exist_ok=True)
            (own / "output.txt").write_text(self.printed[rank])
            for name in FILES:
                if value := getattr(self, name)[rank]:
                    (own / f"{name}.json").write_text(json.dumps(value))
            if folder.name == "gpus" and self.gpu:
                (own / "gpu.json").write_text(json.dumps(self.gpu))
            for epoch in self.epochs if rank in self.writers else []:
                torch.save(self.checkpoint, own / "checkpoints" / f"epoch-{epoch:03d}.pt")
        return Watched(script, folder, disk, ranks, self.failure)
