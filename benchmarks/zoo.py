"""Models that measured rows name, as factories for `--model zoo:NAME`, with random weights."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

# torchvision's compiled operators are not there for torch's build without CUDA; models of images need none of them.
sys.modules.setdefault("torchvision._meta_registrations", ModuleType("torchvision._meta_registrations"))


def __getattr__(name: str) -> Callable[[], Any]:
    """Make the factory of a family at a size, bert_large, t5_base, llama_1b, or of a model of torchvision."""
    family, _, size = name.partition("_")
    if (family, size) in SIZES:
        import transformers

        kind, config, values = SIZES[family, size]
        return lambda: getattr(transformers, kind)(getattr(transformers, config)(**values))
    from torchvision import models

    if name.startswith("__") or name not in models.list_models():
        raise AttributeError(name)
    return lambda: models.get_model(name)


def _bert(hidden: int, layers: int) -> tuple[str, str, dict[str, Any]]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": hidden // 64}
    return "BertForMaskedLM", "BertConfig", {**sizes, "intermediate_size": 4 * hidden}


def _gpt2(hidden: int, layers: int, heads: int) -> tuple[str, str, dict[str, Any]]:
    return "GPT2LMHeadModel", "GPT2Config", {"n_embd": hidden, "n_layer": layers, "n_head": heads}


def _t5(hidden: int, layers: int, ffn: int) -> tuple[str, str, dict[str, Any]]:
    sizes = {"d_model": hidden, "num_layers": layers, "num_heads": hidden // 64, "d_ff": ffn, "vocab_size": 32128}
    return "T5ForConditionalGeneration", "T5Config", {**sizes, "decoder_start_token_id": 0}


LLAMA = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")


def _llama(*sizes: int, words: int) -> tuple[str, str, dict[str, Any]]:
    """sizes: in the order of LLAMA."""
    return "LlamaForCausalLM", "LlamaConfig", {**dict(zip(LLAMA, sizes, strict=True)), "vocab_size": words}


SIZES = {
    ("bert", "base"): _bert(768, 12),
    ("bert", "large"): _bert(1024, 24),
    ("gpt2", ""): _gpt2(768, 12, 12),
    ("gpt2", "medium"): _gpt2(1024, 24, 16),
    ("gpt2", "large"): _gpt2(1280, 36, 20),
    ("gpt2", "xl"): _gpt2(1600, 48, 25),
    ("t5", "small"): _t5(512, 6, 2048),
    ("t5", "base"): _t5(768, 12, 3072),
    ("t5", "large"): _t5(1024, 24, 4096),
    ("llama", ""): _llama(2048, 16, 32, 8, 5632, words=32000),
    ("llama", "1b"): _llama(2048, 16, 32, 8, 8192, words=128256),
    ("llama", "3b"): _llama(3072, 28, 24, 8, 8192, words=128256),
    ("llama", "7b"): _llama(4096, 32, 32, 32, 11008, words=32000),
    ("llama", "8b"): _llama(4096, 32, 32, 8, 14336, words=128256),
    ("tinyllama", ""): _llama(2048, 22, 32, 4, 5632, words=32000),
}
