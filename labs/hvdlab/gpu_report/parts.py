"""The list of the parts of `hvdlab gpu`, the most valuable ones first."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One part: a module that runs as its own process, or as ranks of mpirun.

    Attributes:
        name: for `--only`.
        title: for the reader of the report.
        question: that the part answers, for the reader of the report.
        module: `python -m MODULE ARGUMENTS` runs it; it reports through `findings.start`.
        seconds: time limit.
        arguments: of the module.
        ranks: number of processes; 0 means one per GPU.
        needs: names in `machine.NEEDS`; the part is skipped if one of them is missing.
        gpus: which GPUs its processes see: "all", "one" (the same GPU for all ranks), or "none".
    """

    name: str
    title: str
    question: str
    module: str
    seconds: float
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    needs: tuple[str, ...] = ("torch",)
    gpus: str = "all"


HVD = ("torch", "horovod")
RANKS = ("torch", "horovod", "mpirun")


def _part(
    name: str,
    module: str,
    seconds: float,
    title: str,
    question: str,
    *arguments: str,
    **options: object,
) -> Part:
    module = f"hvdlab.gpu_report.{module}"
    return Part(name, title, question, module, seconds, arguments, **options)


PARTS = (
    _part("facts", "facts", 45, "Facts",
        "Which GPU, driver, libraries and Horovod are these, and do they fit together?"),
    _part("operations", "operations", 60, "Horovod operations, one rank",
        "Does every operation of Horovod give the result of NumPy, with tensors on the GPU, through NCCL?",
        "own", needs=HVD),
    _part("operations-processor", "operations", 60, "Horovod operations, two ranks on the processor",
        "Does this build exchange correctly over MPI, without a GPU?",
        "processor", ranks=2, needs=RANKS, gpus="none"),
    _part("operations-shared", "operations", 60, "Horovod operations, two ranks on one GPU",
        "Can two ranks share one GPU, and exchange its tensors through host memory?",
        "own", ranks=2, needs=RANKS, gpus="one"),
    _part("operations-every-gpu", "operations", 60, "Horovod operations, one rank for each GPU",
        "Does every operation work from GPU to GPU, through NCCL?",
        "own", ranks=0, needs=(*RANKS, "several GPUs")),
    _part("same-answer", "same_answer", 45, "Training, one rank, and plain PyTorch",
        "Does training through Horovod's exchange give the weights of plain PyTorch?", needs=HVD),
    _part("same-answer-shared", "same_answer", 60, "Training, two ranks on one GPU, and one process",
        "Do two ranks that share a GPU end with the weights of a single process that reads both batches?",
        ranks=2, needs=RANKS, gpus="one"),
    _part("same-answer-every-gpu", "same_answer", 60, "Training on all GPUs, and one process",
        "Do ranks that exchange through NCCL end with the weights of a single process?",
        ranks=0, needs=(*RANKS, "several GPUs")),
    _part("formulas", "formulas", 60, "Optimizers, schedules, ghost batch norm and noise on the device",
        "Do they give the results of the NumPy formulas of hvdlab.reference?"),
    _part("training", "training", 90, "Training to the target of the assessment",
        "How many seconds and epochs does labs/cifar10_torch.py need, on one rank and on two?",
        needs=(*RANKS, "labs")),
    _part("images", "images_per_second", 120, "Images per second",
        "How do TF32, bfloat16, channels-last weights and larger batches change the speed?"),
    _part("fast-training", "fast_training", 60, "Seconds to 94 %",
        "How long does labs/cifar10_fast.py need to reach 94 % on CIFAR-10's test images?",
        needs=(*HVD, "labs")),
    _part("grading", "grading", 150, "Grading",
        "Does the grader pass a correct submission, and fail wrong ones, on this machine?",
        needs=(*RANKS, "hvdgrade", "submissions")),
    _part("precision", "precision", 60, "Logits and accuracy in each precision",
        "How far are TF32 and bfloat16 on this device from float32 on the processor?"),
    _part("optimizers", "optimizer_steps", 70, "Step time of optimizers",
        "How long does a step of LARS, LAMB and NovoGrad take, compared with other implementations?"),
    _part("exchange", "exchange_times", 45, "Time of an exchange, one rank",
        "How long does a call of Horovod take, and how much longer is the path through host memory?",
        needs=HVD),
    _part("exchange-two-ranks", "exchange_times", 45, "Time of an exchange, two ranks",
        "How long does an all-reduce take if two ranks share this machine?", ranks=2, needs=RANKS,
        gpus="one"),
    _part("nccl-shared", "nccl_shared", 60, "NCCL with two ranks on one GPU",
        "Can two ranks share a GPU through this NCCL (2.30 and newer), or which error does it report?",
        needs=RANKS),
    _part("step", "step_times", 45, "Phases of a training step",
        "Which fraction is input, copy, forward pass, backward pass and optimizer?"),
    _part("ghost-batch-norm", "ghost_batch_norm", 30, "Time of ghost batch norm",
        "How long does it take, compared with torch.nn.BatchNorm2d?"),
    _part("tests", "marked_tests", 200, "Tests that need a GPU",
        "Do the tests marked `gpu` pass?", needs=("torch", "pytest", "tests")),
    _part("bounds", "bounds", 90, "Upper bounds: torch.compile and CUDA graphs",
        "How much faster could a step be if Python did not start its kernels one by one?"),
)  # fmt: skip
