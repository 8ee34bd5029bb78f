"""Read the architecture of a decoder from a Hugging Face `config.json`."""

from pathlib import Path
from typing import Any

import msgspec

from advisor.rules.errors import AdvisorError
from advisor.rules.job import Architecture

# The same size under the names that model families give it, the most common first.
NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    "vocab": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len"),
}
NEEDED = ("layers", "hidden", "heads", "vocab")
GATED = (
    "silu",
    "swiglu",
    "swish",
    "geglu",
    "gelu_pytorch_tanh",
)  # with an RMSNorm: families whose MLP has three matrices


def read_config(name: str) -> tuple[Architecture, int | None]:
    """Return the architecture and the longest sequence. Raises AdvisorError that names what is missing."""
    hint = "give the config.json of a decoder such as Llama, Qwen, Mistral or GPT-2; else --layers, --hidden, ..."
    try:
        config: dict[str, Any] = msgspec.json.decode(Path(name).read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise AdvisorError(f"can't read {name}: {error.strerror}", "give --config a file that exists") from error
    except msgspec.MsgspecError as error:
        raise AdvisorError(f"{name} is no JSON object: {error}", hint) from error
    sizes = {size: _first(config, names) for size, names in NAMES.items()}
    missing = [NAMES[size][0] for size in NEEDED if sizes[size] is None]
    if missing:
        raise AdvisorError(f"{name} lacks {', '.join(missing)}", hint)
    if any("expert" in key and isinstance(value, int) and value > 1 for key, value in config.items()):
        raise AdvisorError(f"{name} is a mixture of experts, which is not modelled yet", "give --params and its sizes")
    hidden, heads = sizes["hidden"] or 0, sizes["heads"] or 0
    rmsnorm = any("rms" in key for key in config)
    arch = Architecture(
        layers=sizes["layers"] or 0,
        hidden=hidden,
        heads=heads,
        kv_heads=sizes["kv_heads"] or heads,
        ffn=sizes["ffn"] or 4 * hidden,
        vocab=sizes["vocab"] or 0,
        gated_mlp=rmsnorm and config.get("hidden_act", config.get("hidden_activation", "silu")) in GATED,
        rmsnorm=rmsnorm,
        tied_embeddings=bool(config.get("tie_word_embeddings", not rmsnorm)),
        learned_positions=not rmsnorm and "rope_theta" not in config and sizes["positions"] is not None,
    )
    return arch, sizes["positions"]


def _first(config: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
