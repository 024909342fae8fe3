"""Trainers that others wrote, on the device: twenty steps of a tiny random model, with the losses of PyTorch's CPU.

`make torch-trainers` installs them and runs this; where one is not installed its test is skipped.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gt.torch  # noqa: F401  # the device

transformers = pytest.importorskip("transformers", reason="make torch installs transformers")

STEPS = 20
WHY = "make torch-trainers installs it"

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is looked up anywhere."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers.logging.set_verbosity_error()


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Accelerate, which keeps in global state which device it chose, and in the environment which it is to choose."""
    found = pytest.importorskip("accelerate", reason=WHY)
    monkeypatch.delenv("ACCELERATE_TORCH_DEVICE", raising=False)
    found.state.AcceleratorState._reset_state(True)
    yield found
    found.state.AcceleratorState._reset_state(True)


def model() -> Any:
    """GPT-2 of 6 thousand parameters, always the same."""
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 23, "n_positions": 8}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, **dropout, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM")
    )


def examples() -> list[dict[str, Any]]:
    """As many as the steps take, four at a time: counting up from anywhere, so that there is something to learn."""
    counts = [(torch.arange(8) + 7 * number) % 23 for number in range(4 * STEPS)]
    return [{"input_ids": each, "labels": each} for each in counts]


def loader() -> Any:
    return torch.utils.data.DataLoader(examples(), batch_size=4)  # type: ignore[arg-type]


def assert_same(found: list[float], expected: list[float]) -> None:
    assert len(found) == len(expected) == STEPS
    assert expected[-1] < expected[0]
    assert found == pytest.approx(expected, rel=1e-4)


def with_trainer(place: str, folder: Path) -> list[float]:
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=STEPS, learning_rate=1e-2, per_device_train_batch_size=4, logging_steps=1, report_to=[],
        use_cpu=place == "cpu", save_steps=STEPS // 2, disable_tqdm=True, seed=0,
    )  # fmt: skip
    trainer = transformers.Trainer(model(), arguments, train_dataset=examples(), eval_dataset=examples()[:8])
    trainer.train()
    assert trainer.model.device.type == place
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    again = transformers.Trainer(model(), arguments, train_dataset=examples(), eval_dataset=examples()[:8])
    again.train(resume_from_checkpoint=str(folder / f"checkpoint-{STEPS // 2}"))
    resumed = [each["loss"] for each in again.state.log_history if "loss" in each]
    assert resumed == pytest.approx(losses, rel=1e-5)
    assert again.evaluate()["eval_loss"] == pytest.approx(trainer.evaluate()["eval_loss"], rel=1e-5)
    return losses


def test_trainer_of_transformers(accelerate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Trainer` with its fused AdamW, checkpoints from which it goes on, and evaluation. Nothing is computed on the CPU."""
    expected = with_trainer("cpu", tmp_path / "cpu")
    accelerate.state.AcceleratorState._reset_state(True)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "gtx")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="gtx has no")
        assert_same(with_trainer("gtx", tmp_path / "gtx"), expected)


def with_accelerate(accelerate: Any, place: str, folder: Path) -> list[float]:
    accelerator = accelerate.Accelerator(cpu=place == "cpu", gradient_accumulation_steps=2)
    mine = model()
    optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    mine, optimizer, batches, schedule = accelerator.prepare(mine, optimizer, loader(), schedule)
    assert accelerator.device.type == mine.device.type == place
    losses = []
    for batch in batches:
        with accelerator.accumulate(mine):
            loss = mine(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(mine.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    accelerator.save_state(str(folder))
    before = [each.detach().cpu().clone() for each in mine.parameters()]
    with torch.no_grad():
        for each in mine.parameters():
            each.zero_()
    accelerator.load_state(str(folder))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(mine.parameters(), before, strict=True))
    return losses


def test_accelerate(accelerate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accumulated and clipped gradients, a schedule, and its state in files and back."""
    expected = with_accelerate(accelerate, "cpu", tmp_path / "cpu")
    accelerate.state.AcceleratorState._reset_state(True)
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "gtx")
    assert_same(with_accelerate(accelerate, "gtx", tmp_path / "gtx"), expected)


def with_lora(peft: Any, place: str, folder: Path) -> list[float]:
    torch.manual_seed(1)
    mine = peft.get_peft_model(model(), peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)).to(place)
    optimizer = torch.optim.AdamW([each for each in mine.parameters() if each.requires_grad], lr=1e-2)
    losses = []
    for batch in loader():
        moved = {name: each.to(place) for name, each in batch.items()}
        loss = mine(**moved).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    mine.save_pretrained(folder)
    again = peft.PeftModel.from_pretrained(model().to(place), folder)
    with torch.no_grad():
        expected = mine(**moved).loss.item()
        assert again(**moved).loss.item() == expected
        assert mine.merge_and_unload()(**moved).loss.item() == pytest.approx(expected, rel=1e-5)
    return losses


def test_lora_of_peft(tmp_path: Path) -> None:
    """Adapters train, go to a file and into another model, and merge into the weights."""
    peft = pytest.importorskip("peft", reason=WHY)
    expected = with_lora(peft, "cpu", tmp_path / "cpu")
    assert_same(with_lora(peft, "gtx", tmp_path / "gtx"), expected)


def test_torchmetrics() -> None:
    """Metrics of classes and of numbers, updated by twenty batches."""
    metrics = pytest.importorskip("torchmetrics", reason=WHY)
    classes = {"task": "multiclass", "num_classes": 5}
    kinds = [
        metrics.Accuracy(**classes), metrics.F1Score(**classes, average="macro"), metrics.ConfusionMatrix(**classes),
        metrics.AUROC(**classes), metrics.MeanSquaredError(), metrics.R2Score(), metrics.PearsonCorrCoef(), metrics.MeanMetric(),
    ]  # fmt: skip
    for here in kinds:
        there = here.clone().to("gtx")
        drawn = torch.Generator().manual_seed(0)
        for _ in range(STEPS):
            numbers = torch.randn(16, generator=drawn), torch.randn(16, generator=drawn)
            scores = torch.randn(16, 5, generator=drawn).softmax(-1), torch.randint(0, 5, (16,), generator=drawn)
            batch = scores if hasattr(here, "num_classes") else numbers[: 1 if type(here) is metrics.MeanMetric else 2]
            here.update(*batch)
            there.update(*[each.to("gtx") for each in batch])
        found = there.compute()
        assert found.device.type == "gtx"
        torch.testing.assert_close(found.cpu(), here.compute(), rtol=1e-4, atol=1e-6)


def test_lightning(tmp_path: Path) -> None:
    """Training, validation, a schedule, clipped gradients, and a checkpoint from which another trainer goes on."""
    pl = pytest.importorskip("lightning.pytorch", reason=WHY)
    from gt.torch.lightning import GTStrategy

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]  # found at run time
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.losses = model(), []

        def training_step(self, batch: Any, number: int) -> Any:
            loss = self.inner(**batch).loss
            self.losses.append(loss.item())
            return loss

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("val", self.inner(**batch).loss)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 5)]

    def trainer(steps: int, folder: Path, options: dict[str, Any]) -> Any:
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        return pl.Trainer(
            max_steps=steps, default_root_dir=folder, gradient_clip_val=1.0, num_sanity_val_steps=0, **quiet, **options
        )

    def run(folder: Path, options: dict[str, Any]) -> tuple[list[float], list[float], float]:
        module = Module()
        first = trainer(STEPS, folder, options)
        first.fit(module, loader(), loader())
        first.save_checkpoint(folder / "x.ckpt")
        value = first.validate(module, loader(), verbose=False)[0]["val"]
        again = Module()
        trainer(STEPS + 2, folder, options).fit(again, loader(), ckpt_path=folder / "x.ckpt", weights_only=False)
        return module.losses, again.losses, value

    here = run(tmp_path / "cpu", {"accelerator": "cpu"})
    there = run(tmp_path / "gtx", {"strategy": GTStrategy()})
    assert_same(there[0], here[0])
    assert there[1] == pytest.approx(here[1], rel=1e-4)
    assert there[2] == pytest.approx(here[2], rel=1e-4)
