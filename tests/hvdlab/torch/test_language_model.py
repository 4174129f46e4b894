"""The language model: its checkpoints as LitGPT reads them, its loss, LoRA, its answers."""

import math
import signal

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
litgpt = pytest.importorskip("litgpt", reason="needs LitGPT: run `make setup`")

from lightning.pytorch import Trainer  # noqa: E402
from litgpt.data import get_sft_collate_fn  # noqa: E402
from litgpt.prompts import Alpaca  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from hvdlab.data import DataError  # noqa: E402
from hvdlab.data.instructions import synthetic_records  # noqa: E402
from hvdlab.torch import language_model as lm  # noqa: E402
from hvdlab.torch.memory import held  # noqa: E402

SILENT = dict(accelerator="cpu", **lm.BY_STEPS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint of a model that was not trained."""
    folder = tmp_path_factory.mktemp("checkpoint")
    prompts = [Alpaca().apply(r["instruction"], input=r["input"]) for r in synthetic_records(50)]
    tokenizer = lm.train_tokenizer(prompts, folder, 320)
    torch.manual_seed(1)
    lm.save(litgpt.GPT(lm.small(tokenizer.vocab_size, layers=2, width=32)), folder)
    return folder


@pytest.fixture
def model(folder):
    return lm.load(folder)[0]


def batches(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 320, (count, 8), generator=generator)
    labels = ids.masked_fill(torch.rand(ids.shape, generator=generator) < 0.5, -100)
    return [
        {"input_ids": i, "labels": y}
        for i, y in zip(ids.split(4), labels.split(4), strict=True)
    ]  # fmt: skip


def test_litgpt_itself_reads_the_checkpoint_and_answers_the_same(folder):
    theirs = litgpt.LLM.load(str(folder), distribute=None)
    theirs.distribute(accelerator="cpu", precision="32-true")
    gpt, tokenizer = lm.load(folder)
    asked = Alpaca().apply("Count the letters.")  # as prompt_style.yaml tells LitGPT to ask
    ours, _ = lm.generate(gpt, tokenizer, asked, limit=12)
    assert theirs.generate("Count the letters.", max_new_tokens=12, temperature=0.0).strip() == ours


def test_a_text_and_its_tokens(folder):
    tokenizer = lm.Tokenizer(folder)
    text = "Turn the list around: 12 and 305, é\n\n"
    ids = tokenizer.encode(text, eos=True)
    assert tokenizer.decode(ids[:-1]) == text and ids[-1] == tokenizer.eos_id == 0
    assert [tokenizer.decode(i) for i in tokenizer.encode("305")] == ["3", "0", "5"]


@pytest.mark.parametrize("lost", ["lit_model.pth", "model_config.yaml", "tokenizer.json"])
def test_a_checkpoint_with_a_hole_names_it(folder, tmp_path, lost):
    for path in folder.iterdir():
        if path.name != lost:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(FileNotFoundError, match=lost):
        lm.load(tmp_path)


def test_weights_that_would_run_code_are_not_read(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())

    class Code:
        def __reduce__(self):
            return print, ("it ran",)

    torch.save({"model": Code()}, tmp_path / lm.WEIGHTS)
    with pytest.raises(DataError, match="[Ww]eights.only"):
        lm.load(tmp_path)


def test_weights_that_are_broken_or_of_another_model_are_one_sentence(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / lm.WEIGHTS).write_bytes((folder / lm.WEIGHTS).read_bytes()[:5000])
    with pytest.raises(DataError, match=f"{lm.WEIGHTS} does not hold the weights of its model: "):
        lm.load(tmp_path)
    torch.save(litgpt.GPT(lm.small(320, layers=1, width=32)).state_dict(), tmp_path / lm.WEIGHTS)
    with pytest.raises(DataError, match="Missing key.s. in state_dict") as error:
        lm.load(tmp_path)
    assert "\n" not in str(error.value)


def test_the_loss_is_the_formula():
    labels = torch.tensor([[-100, 2, 0], [1, -100, 1]])
    logits = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(1))
    chances = logits.softmax(-1)
    wanted = -sum(math.log(chances[at]) for at in ((0, 0, 2), (0, 1, 0), (1, 1, 1))) / 3
    assert math.isclose(lm.next_token_loss(logits, labels), wanted, rel_tol=1e-6)
    assert lm.next_token_loss(logits, torch.full_like(labels, -100)) == 0


def test_exact_is_what_a_greedy_decoder_writes(folder, model):
    tokenizer = lm.Tokenizer(folder)
    prompt = tokenizer.encode("### Instruction:").long()
    text, _ = lm.generate(model, tokenizer, "### Instruction:", limit=4)
    model.set_kv_cache(batch_size=1)
    wrote = lm.litgpt_generate(
        model, prompt, len(prompt) + 4, temperature=0.0, include_prompt=False
    )
    model.clear_kv_cache()
    ids = torch.cat([prompt, wrote])[None]
    labels = ids.clone()
    labels[:, : len(prompt)] = -100
    assert lm.exact(model(ids), labels).tolist() == [1.0]
    labels[0, -1] = (labels[0, -1] + 1) % 320
    assert lm.exact(model(ids), labels).tolist() == [0.0]
    assert lm.exact(model(ids), torch.full_like(labels, -100)).tolist() == [0.0]  # no answer
    assert model.training


def test_generation_stops_at_the_end_and_only_there(folder, model):
    tokenizer = lm.Tokenizer(folder)
    with torch.no_grad():
        model.lm_head.weight.zero_()  # every token is as likely: the first one, the end, is taken
    assert lm.generate(model, tokenizer, "list", limit=5) == ("", True)
    processor, model.lm_head.bias = tokenizer.processor, torch.nn.Parameter(torch.zeros(320))
    with torch.no_grad():
        model.lm_head.bias[processor.token_to_id("a")] = 1.0
    assert lm.generate(model, tokenizer, "list", limit=5) == ("aaaaa", False)


def test_lora_is_its_base_at_first_trains_little_and_merges(model):
    ids = torch.arange(24).reshape(2, 12)
    small = lm.with_lora(model, rank=2, alpha=4.0)
    torch.testing.assert_close(small(ids), model(ids))
    trained = [p for p in small.parameters() if p.requires_grad]
    # Two layers of query, key, value and projection (32 + 32) and fc_1, fc_2, proj (32 + 85); the head.
    assert sum(p.numel() for p in trained) == 2 * (2 * (4 * 64 + 3 * 117) + 32 + 320)
    before = {name: value.clone() for name, value in small.state_dict().items()}
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    lm.next_token_loss(small(ids), ids).backward()
    optimizer.step()
    moved = {n for n, value in small.state_dict().items() if not torch.equal(value, before[n])}
    assert moved and all("lora_" in name for name in moved)
    count = sum(p.numel() for p in small.parameters())
    bytes_held = sum(held(small, optimizer).values())
    counters = 4 * len(trained)  # Adam's number of steps, for each tensor
    assert bytes_held == 4 * count + 12 * sum(p.numel() for p in trained) + counters
    wanted = small(ids)
    weights = {name: value.clone() for name, value in small.state_dict().items()}
    plain = lm.merged(small)
    assert all(torch.equal(value, weights[name]) for name, value in small.state_dict().items())
    assert not any(getattr(layer, "merged", False) for layer in small.modules())  # detours stay
    assert type(plain) is litgpt.GPT and plain.config == model.config
    torch.testing.assert_close(plain(ids), wanted, rtol=1e-4, atol=1e-5)


def test_batches_are_padded_as_litgpt_pads_them():
    examples = [([5, 6, 8, 1], [-100, -100, 8, 1]), ([5, 9, 1], [-100, 9, 1])]
    counts = {"raw": 0, "raw_plus_prompt_template": 0}
    rows = [
        {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels), "token_counts": counts}
        for ids, labels in examples
    ]
    theirs = get_sft_collate_fn(pad_id=1)(rows)
    ours = lm.padded(examples, end=1)
    assert all(torch.equal(ours[name], theirs[name]) for name in ("input_ids", "labels"))


def plain_mean(logits, labels):
    """As learners write it: nan where no label counts."""
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@pytest.mark.parametrize("loss", [None, plain_mean])
def test_a_batch_whose_answers_were_all_cut_off_changes_nothing(model, loss):
    trained, loader = lm.LanguageModel(model, 0.01, loss), DataLoader(batches(12), batch_size=None)
    loader.dataset[1]["labels"].fill_(-100)
    Trainer(max_steps=3, limit_val_batches=0, **SILENT).fit(trained, loader)
    assert trained.losses[1] == 0 and all(map(math.isfinite, trained.losses))
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_an_interrupt_of_a_training_is_one(model):
    """Lightning would end the process, or a notebook's cell with its runs, and let no other through."""

    def stopped(logits, labels):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        trained, loader = lm.LanguageModel(model, 0.01, stopped), DataLoader(batches(8), None)
        with pytest.raises(KeyboardInterrupt):
            lm.fit(Trainer(max_steps=2, limit_val_batches=0, **SILENT), trained, loader)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_lightning_trains_is_what_a_plain_loop_trains(model):
    """Adam, the schedule, the order of steps: the same losses as a loop written down here."""
    steps, examples = 6, batches(4 * 6)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    trained = lm.LanguageModel(model, learning_rate=0.01)
    loader = DataLoader(examples, batch_size=None)
    Trainer(max_steps=steps, val_check_interval=3, **SILENT).fit(trained, loader, loader)

    gpt = litgpt.GPT(model.config)
    gpt.load_state_dict(weights)
    optimizer = torch.optim.AdamW(gpt.parameters(), betas=(0.9, 0.95))
    rates = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.01, steps + 1, pct_start=2 / 7, cycle_momentum=False
    )
    losses = []
    for batch in examples:
        loss = lm.next_token_loss(gpt(batch["input_ids"]), batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.step()
        losses.append(float(loss.detach()))
    assert max(abs(a - b) for a, b in zip(trained.losses, losses, strict=True)) < 1e-5
    assert [row["step"] for row in trained.curve] == [0, 3, 6]
    logits = torch.cat([gpt(batch["input_ids"]) for batch in examples])
    labels = torch.cat([batch["labels"] for batch in examples])
    wanted = float(lm.next_token_loss(logits, labels).detach())
    assert math.isclose(trained.curve[-1]["heldout_loss"], wanted, rel_tol=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 9, 10])
def test_a_few_steps_have_a_schedule_too(model, steps):
    trained = lm.LanguageModel(model, learning_rate=0.01)
    loader = DataLoader(batches(40), batch_size=None)
    Trainer(max_steps=steps, limit_val_batches=0, **SILENT).fit(trained, loader)
    assert len(trained.losses) == steps and all(map(math.isfinite, trained.losses))
