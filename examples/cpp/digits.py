"""The Python side of the C++ example: trains the network of examples/digits.py and writes it to a file, or computes from it.

python examples/cpp/digits.py train FILE [--epochs N]           on a worker of its own
python examples/cpp/digits.py logits ADDRESS FILE OUT           by the service at ADDRESS, as digits.cpp does
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import gt


def _example() -> Any:
    """The module examples/digits.py, which has the same name as this one."""
    found = importlib.util.spec_from_file_location("digits_example", Path(__file__).parents[1] / "digits.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def train(path: str, epochs: int) -> None:
    """Write weights, and the images and labels that were held out."""
    example = _example()
    (images, labels), (held_images, held_labels) = example.digits()
    gt.manual_seed(0)
    model = example.Classifier()
    optimizer = gt.optim.Adam(model.parameters(), lr=3e-3)
    criterion = gt.nn.CrossEntropyLoss()
    x, y = gt.from_numpy(images), gt.from_numpy(labels)
    for _ in range(epochs):
        for start in range(0, len(images), example.BATCH):
            loss = criterion(model(x[start : start + example.BATCH]), y[start : start + example.BATCH])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    held = {"images": gt.from_numpy(held_images), "labels": gt.from_numpy(held_labels)}
    gt.save({**model.state_dict(), **held}, path)


def logits(address: str, path: str, out: str) -> None:
    """What the network says of the images in a file."""
    gt.connect(address)
    arrays = gt.load(path)
    model = _example().Classifier()
    model.load_state_dict({name: arrays[name] for name in model.state_dict()})
    images = arrays["images"].numpy()
    with gt.no_grad(), gt.signal.context("batch"):
        said = model(gt.from_numpy(images))
    gt.save({"logits": said}, out)
    gt.disconnect()


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("file")
    training.add_argument("--epochs", type=int, default=10)
    computing = commands.add_parser("logits")
    for name in ("address", "file", "out"):
        computing.add_argument(name)
    options = parser.parse_args()
    if options.command == "train":
        train(options.file, options.epochs)
    else:
        logits(options.address, options.file, options.out)


if __name__ == "__main__":
    main()
