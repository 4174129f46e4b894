"""labs/language_model.py: every launcher and strategy trains like a single rank."""

import csv
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlab import launch

pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
pytest.importorskip("litgpt", reason="needs LitGPT: run `make setup`")
pytest.importorskip("lightning", reason="needs Lightning: run `make setup`")

from hvdlab.torch import device, process_group  # noqa: E402

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "labs" / "language_model.py"
SMALL = "--layers=1", "--width=32", "--length=32", "--steps=2", "--every=2"
STEPS = 20

LAUNCHERS = {
    "python": lambda: [sys.executable],
    "lightning": lambda: [sys.executable],  # with --devices 2
    "mpirun": lambda: launch.mpirun_command(2, "")[:-1],
    "hvdlab run": lambda: [sys.executable, "-m", "hvdlab.cli", "run", "-np", "2"],
    "torchrun": lambda: [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
                         "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"],
}  # fmt: skip


def start(launcher, *arguments, **variables) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*LAUNCHERS[launcher](), SCRIPT, *map(str, arguments)],
        env={**os.environ, **launch.environment(2), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Return the folder of a small model after a few steps on its own texts."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "text").write_text("The quick brown fox jumps over the lazy dog. " * 200)
    arguments = (
        "pretrain",
        "--text",
        folder / "text",
        "--vocabulary",
        320,
        "--out",
        folder / "model",
    )
    done = start("python", *arguments, *SMALL, "--batch-size", 4)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "model"


@pytest.fixture(scope="module")
def train(base, tmp_path_factory):
    """Return a function that fine-tunes on 1 or 2 ranks with 16 records per step, once per setting."""
    done = {}

    def fine_tune(launcher, *settings, ranks=2):
        if (launcher, settings) not in done:
            out = tmp_path_factory.mktemp("tuned")
            common = "--steps", STEPS, "--every", STEPS, "--held-out", 40, "--length", 128
            ran = start(
                launcher, "finetune", "--checkpoint", base, "--out", out, "--batch-size", 16 // ranks,
                *common, *settings,
            )  # fmt: skip
            assert ran.returncode == 0, ran.stderr[-3000:]
            done[launcher, settings] = out
        return done[launcher, settings]

    return fine_tune


def losses(folder):
    with (folder / "losses.csv").open() as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def difference(one, other):
    return max(abs(a - b) for a, b in zip(losses(one), losses(other), strict=True))


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp2", marks=pytest.mark.thorough)])
def test_two_ranks_equal_a_single_rank(train, strategy):
    alone = train("python", ranks=1)
    found = difference(alone, train("mpirun", "--strategy", strategy))
    print(f"{strategy} on 2 ranks, largest loss difference in {STEPS} steps: {found:.2g}")
    assert found < 2e-5
    assert losses(alone)[-1] < losses(alone)[0] - 1


@pytest.mark.mpi
@pytest.mark.thorough
@pytest.mark.parametrize("launcher", ["hvdlab run", "torchrun", "lightning"])
def test_every_launcher_gives_the_same_training(train, launcher):
    own = ("--devices", "2") if launcher == "lightning" else ()
    assert difference(train("python", ranks=1), train(launcher, "--strategy", "ddp", *own)) < 2e-5


@pytest.mark.mpi
@pytest.mark.thorough
def test_lora_on_two_ranks_equals_lora_on_one(train):
    import torch

    settings = "--method", "lora", "--rank", "4"
    alone = train("python", *settings, ranks=1)
    split = train("mpirun", *settings, "--strategy", "fsdp2")
    assert difference(alone, split) < 2e-5
    one, other = (
        torch.load(folder / "lit_model.pth", weights_only=True)["model"]
        for folder in (alone, split)
    )
    assert one.keys() == other.keys() and not any("lora_" in name for name in one)
    assert max((one[name] - other[name]).abs().max() for name in one) < 1e-4


@pytest.mark.slurm
@pytest.mark.thorough
def test_ranks_of_srun_connect(train, base, slurm_cluster, tmp_path):
    command = [
        "srun", "--ntasks-per-node=2", "--nodes=1", sys.executable, SCRIPT, "finetune", "--checkpoint", base,
        "--out", tmp_path, "--batch-size=8", f"--steps={STEPS}", f"--every={STEPS}", "--held-out=40",
        "--length=128", "--strategy=ddp",
    ]  # fmt: skip
    ran = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **slurm_cluster.environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert difference(train("python", ranks=1), tmp_path) < 2e-5


def test_a_run_ended_by_sigterm_has_a_nonzero_exit_code(base, tmp_path):
    arguments = "--checkpoint", base, "--out", tmp_path, "--steps", 10**6, "--every", 10**6
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "finetune", *map(str, arguments)],
        env={**os.environ, **launch.environment(2)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert any(line.startswith("step     0") for line in process.stdout)
        process.terminate()
        assert process.wait(120) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
    assert not (tmp_path / "losses.csv").exists()


@pytest.fixture(scope="module")
def script():
    """Return the script as a module, to test its command line without a process per case."""
    spec = importlib.util.spec_from_file_location("language_model_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def own_environment(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GROUP_RANK"
    for name in names.split():
        # So that monkeypatch removes the values that `rendezvous` sets.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize("settings", [[], ["--int8"]])
def test_generate_prints_the_answer(script, base, settings, capsys):
    if settings:
        pytest.importorskip("torchao", reason="needs torchao: run `make setup`")
    script.main(["generate", "--checkpoint", str(base), "Count.", "--limit", "3", *settings])
    assert capsys.readouterr().out.strip()


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--checkpoint", "nowhere"], "--checkpoint nowhere is no folder"),
        (["--checkpoint", "EleutherAI/pythia-14m"], "was not downloaded from the Hugging Face hub"),
        (["--checkpoint", "nobody/nothing"], "nobody/nothing is no folder. Make one with"),
        (["--checkpoint", "BASE", "--data", "nowhere.json"], "nowhere.json: expected records"),
        (["--checkpoint", "BASE", "--held-out", "9999"], "held_out must leave records"),
        (["--checkpoint", "BASE", "--batch-size", "9999"], "too few for a step of 9999"),
        (["--checkpoint", "BASE", "--length", "20"], "No held-out answer fits in"),
        (["--checkpoint", "BASE", "--strategy", "fsdp"], "Lightning runs it on GPUs only"),
        (["--checkpoint", "BASE", "--strategy", "deepspeed"], "Lightning runs it on GPUs only"),
        (
            ["--checkpoint", "BASE", "--strategy", "fsdp2", "--precision", "16-mixed"],
            "has no --precision 16-mixed for it; take bf16-mixed",
        ),
        (
            ["--checkpoint", "BASE", "--precision", "16-mixed"],
            "--precision 16-mixed: needs a GPU of its own for each of the 1 ranks",
        ),
        (["--checkpoint", "BASE", "--config=nowhere.yaml"], "nowhere.yaml: No such file"),
        (["--checkpoint", "BASE", "--out", "/dev/null/out"], "Not a directory: '/dev/null/out'"),
    ],
)
def test_refuses_impossible_settings_in_one_sentence(
    script, base, tmp_path, monkeypatch, arguments, says
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(device, "gpus_of_torch", list)  # also on a machine with a GPU
    arguments = [str(base) if word == "BASE" else word for word in arguments]
    with pytest.raises(SystemExit) as stopped:
        script.main(["finetune", "--out", str(tmp_path / "out"), *arguments])
    sentence = str(stopped.value.code)
    assert sentence.startswith("language_model.py: ") and says in sentence and "\n" not in sentence


@pytest.mark.usefixtures("own_environment")
@pytest.mark.parametrize("length", [255, 256])
def test_the_model_has_a_position_for_every_token_of_an_example(
    script, tmp_path, monkeypatch, length
):
    """An example has one token more than --length, and the model must accept all of it."""
    ids = []

    def fit(args, gpt, examples):
        examples.prepare_data()
        training, held_out = examples.examples()
        ids.append(training[0]["input_ids"])
        gpt(ids[0][None])

    monkeypatch.setattr(script, "fit", fit)
    (tmp_path / "text").write_text("The quick brown fox jumps over the lazy dog. " * 1000)
    small = ("--text", tmp_path / "text", "--vocabulary", 320, "--layers", 1, "--width", 32)
    arguments = "pretrain", *small, "--length", length, "--out", tmp_path / "model"
    script.main(list(map(str, arguments)))
    assert len(ids[0]) == length + 1


@pytest.mark.usefixtures("own_environment")
def test_an_answer_longer_than_the_model_is_refused(script, base):
    with pytest.raises(
        SystemExit, match="of the prompt and 999 of the answer are more than the 256"
    ):
        script.main(["generate", "--checkpoint", str(base), "Count.", "--limit", "999"])


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("pretrain --out x --steps 0", "argument --steps: expected 1 or more, got 0"),
        ("pretrain --out x --width 30", "argument --width: expected 8, 16, ..., got 30"),
        ("pretrain --out x --vocabulary 256", "expected 257 or more, got 256"),
        (
            "finetune --checkpoint x --out x --batch-size -1",
            "--batch-size: expected 1 or more, got",
        ),
        (
            "finetune --checkpoint x --out x --precision half",
            "argument --precision: invalid choice",
        ),
    ],
)
def test_names_a_bad_argument(script, typed, says, capsys):
    with pytest.raises(SystemExit):
        script.parse_args(typed.split())
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("gpus", "kind"), [(0, "cpu"), (1, "cpu"), (2, "cuda")])
def test_ranks_started_by_lightning_use_their_own_gpu_or_the_cpu(
    script, monkeypatch, capsys, gpus, kind
):
    args = script.parse_args(["pretrain", "--out", "x", "--devices", "2"])
    monkeypatch.setattr(device, "gpus_of_torch", lambda: [f"GPU-{i}" for i in range(gpus)])
    monkeypatch.setattr(script, "nccl_version", lambda: 22907)
    monkeypatch.setattr(script.torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(script, "Trainer", lambda **settings: settings["accelerator"])
    assert script.make_trainer(args) == kind
    says = "2 ranks share 1 GPU, so the ranks use the processor.\n" if gpus == 1 else ""
    assert capsys.readouterr().err == says


@pytest.mark.usefixtures("own_environment")
def test_passes_lightning_the_single_visible_gpu_of_a_rank(script, monkeypatch):
    """As under `srun --gpus-per-task=1`: each rank sees only its own GPU, as number 0."""
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(device, "gpus_of_torch", lambda: ["GPU-b"])
    monkeypatch.setattr(process_group, "_gather", lambda mine: [["GPU-a"], mine])
    monkeypatch.setattr(process_group, "nccl_version", lambda: 22907)
    taken = []
    monkeypatch.setattr(script.torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(script, "Trainer", lambda **settings: settings)
    settings = script.make_trainer(script.parse_args(["pretrain", "--out", "x"]))
    (environment,) = settings["plugins"]
    assert (settings["devices"], settings["num_nodes"], taken) == (
        [0],
        2,
        [script.torch.device("cuda", 0)],
    )
    ranks = environment.global_rank(), environment.node_rank(), environment.local_rank()
    assert ranks == (1, 1, 0) and environment.world_size() == 2


@pytest.mark.parametrize("equals", [False, True])
def test_command_line_overrides_settings_of_a_file(script, tmp_path, equals):
    (tmp_path / "a.yaml").write_text("steps: 7\nbatch-size: 3\nmethod: lora\n")
    file = [f"--config={tmp_path / 'a.yaml'}"] if equals else ["--config", str(tmp_path / "a.yaml")]
    typed = ["finetune", "--checkpoint", "x", "--out", "y", "--steps", "9", *file]
    args = script.parse_args(typed)
    assert (args.steps, args.batch_size, args.method, args.rank) == (9, 3, "lora", 8)
    (tmp_path / "a.yaml").write_text("stepz: 7\n")
    with pytest.raises(SystemExit):
        script.parse_args(typed)


def test_settings_of_a_file_may_be_lists(script, tmp_path):
    (tmp_path / "a.yaml").write_text("text: [one.txt, two.txt]\nsteps: 5\n")
    args = script.parse_args(["pretrain", "--out", "x", "--config", str(tmp_path / "a.yaml")])
    assert (args.text, args.steps) == ([Path("one.txt"), Path("two.txt")], 5)


@pytest.mark.parametrize(
    "config", sorted((ROOT / "labs" / "configs").glob("*.yaml")), ids=lambda p: p.name
)
def test_the_shipped_settings_are_accepted(script, config):
    args = script.parse_args(["finetune", "--out", "x", "--config", str(config)])
    assert args.strategy in script.STRATEGIES and args.precision in ("32-true", "bf16-mixed")
    folder, _, name = args.checkpoint.partition("/")
    if folder == "checkpoints":  # of the hub: LitGPT must know the model under this name
        known = [entry["hf_config"] for entry in script.configs]
        assert name in [f"{entry['org']}/{entry['name']}" for entry in known]


def test_the_settings_of_phi_make_a_global_batch_of_32(script):
    config = ROOT / "labs" / "configs" / "phi_alpaca.yaml"
    args = script.parse_args(["finetune", "--out", "x", "--config", str(config)])
    assert f"--ntasks-per-node={32 // args.batch_size} " in config.read_text(encoding="utf-8")
    assert args.checkpoint.endswith("microsoft/phi-1_5") and "alpaca" in args.data


def test_settings_of_fsdp_and_deepspeed(script):
    """Without a GPU, only the settings that Lightning passes to FSDP and DeepSpeed can be tested."""
    from litgpt import GPT

    from hvdlab.torch.language_model import small, with_lora

    fsdp = script.STRATEGIES["fsdp"](4)
    wraps = fsdp.kwargs["auto_wrap_policy"]._module_classes
    gpt = GPT(small(64, layers=3, width=32))
    for model in (gpt, with_lora(gpt, 2, 4.0)):
        assert sum(isinstance(module, tuple(wraps)) for module in model.modules()) == 3
    deepspeed = pytest.importorskip("deepspeed", reason="needs DeepSpeed: run `make setup`")
    assert deepspeed.__version__
    assert script.STRATEGIES["deepspeed"](4).config["zero_optimization"]["stage"] == 2
