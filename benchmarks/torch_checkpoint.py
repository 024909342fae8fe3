"""What loading a sharded checkpoint into a model of PyTorch costs the program: time, and peak memory by kind.

Run as `python benchmarks/torch_checkpoint.py [--megabytes 512] [--workers 4] [--from-pretrained]`: the parts are written to a
temporary folder, and a model of linear layers on meta gets them, fully sharded; or Hugging Face's `from_pretrained` makes a Llama
of them. Memory is private (the program's own), of mapped files (which the system takes back), and shared with the workers, in
which their tensors lie.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import threading
import time
from pathlib import Path

import safetensors.torch
import torch
import transformers
from torch import nn

import gt
import gt.torch

KINDS = {"RssAnon": "private", "RssFile": "of mapped files", "RssShmem": "shared with the workers"}
WIDTH = 2048
"""Of the layers, whose weights take 16 MiB."""
LAYERS_IN_A_FILE = 4


def memory() -> dict[str, float]:
    """Resident memory of this process by kind, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = [line.split(":") for line in lines]
    return {KINDS[name]: int(value.split()[0]) / 1024 for name, value in pairs if name in KINDS}


def model_of(layers: int) -> nn.Module:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)])


def write(folder: Path, layers: int) -> None:
    """Write a checkpoint in parts, with an index."""
    index = {}
    for first in range(0, layers, LAYERS_IN_A_FILE):
        names = [f"{at}.weight" for at in range(first, min(first + LAYERS_IN_A_FILE, layers))]
        file = f"model-{first}.safetensors"
        safetensors.torch.save_file({name: torch.randn(WIDTH, WIDTH) for name in names}, folder / file)
        index.update(dict.fromkeys(names, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def write_llama(folder: Path, megabytes: int) -> None:
    """Write a Llama of about this size as Hugging Face does, in parts: each layer takes 49 MiB, most of it in three weights."""
    config = transformers.LlamaConfig(
        hidden_size=WIDTH // 2, intermediate_size=3 * WIDTH // 2, num_hidden_layers=max(1, megabytes // 52),
        num_attention_heads=8, vocab_size=WIDTH // 2, max_position_embeddings=128,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="64MB")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure loading a sharded checkpoint.")
    parser.add_argument("--megabytes", type=int, default=512, help="the size of the checkpoint (%(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--from-pretrained", action="store_true", help="by Hugging Face's from_pretrained")
    options = parser.parse_args()
    layers = max(1, options.megabytes // 16)
    gt.init(workers=options.workers, config={"sharding_config": {"*": {"strategy": "fully_sharded"}}})
    (gt.ones(3) + 1).numpy()
    done = threading.Event()
    with tempfile.TemporaryDirectory() as name:
        if options.from_pretrained:
            write_llama(Path(name), options.megabytes)
            transformers.LlamaForCausalLM.from_pretrained(name, device_map="gtx")  # else its imports are measured
        else:
            write(Path(name), layers)
            with torch.device("meta"):
                model = model_of(layers)
        gc.collect()
        gt.synchronize()
        before = memory()
        peak = dict(before)

        def watch() -> None:
            while not done.wait(0.005):
                for kind, value in memory().items():
                    peak[kind] = max(peak[kind], value)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        began = time.perf_counter()
        if options.from_pretrained:
            model = transformers.LlamaForCausalLM.from_pretrained(name, device_map="gtx")
        else:
            gt.torch.load_checkpoint(model, name)
        gt.synchronize()
        seconds = time.perf_counter() - began
        done.set()
        watcher.join()
    size = sum(each.nbytes for each in model.parameters()) >> 20
    print(f"{size} MiB on {options.workers} workers in {seconds:.2f} s; at most, beyond what there was before:")
    for kind, value in peak.items():
        print(f"  {kind:24} {value - before[kind]:8.1f} MiB")


if __name__ == "__main__":
    main()
