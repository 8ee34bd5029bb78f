"""Architectures from the config.json of models people have."""

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.cli import main
from advisor.commands.hf_config import read_config
from advisor.rules.errors import AdvisorError
from advisor.rules.job import count_params

LLAMA_2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
LLAMA_3_8B = LLAMA_2_7B | {"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}
GPT_2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}


def written(tmp_path: Path, config: Any) -> str:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    return str(file)


@pytest.mark.parametrize(
    ("config", "params"), [(LLAMA_2_7B, 6_738_415_616), (LLAMA_3_8B, 8_030_261_248), (GPT_2, 124_439_808)]
)
def test_the_parameters_of_well_known_models_come_out_exactly(
    config: dict[str, Any], params: int, tmp_path: Path
) -> None:
    arch, longest = read_config(written(tmp_path, config))
    assert longest is not None
    assert count_params(arch, longest) == params


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_size": 8}, "num_hidden_layers"),
        ([1], "no JSON object"),
        (LLAMA_2_7B | {"num_local_experts": 8}, "mixture of experts"),
        (LLAMA_2_7B | {"hidden_size": "wide"}, "hidden_size"),
    ],
)
def test_a_config_that_can_not_be_used_says_why(config: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(AdvisorError, match=words):
        read_config(written(tmp_path, config))


def test_a_missing_file_is_said() -> None:
    with pytest.raises(AdvisorError, match=r"nowhere\.json"):
        read_config("nowhere.json")


def test_recommend_takes_the_config_and_refuses_sizes_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, LLAMA_3_8B)
    machine = ["--machine", "8x h100 nvswitch"]
    assert main(["recommend", "--config", file, *machine, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["params"] == 8_030_261_248
    assert main(["recommend", "--config", file, "--layers", "4", *machine]) == 2
    assert "--layers both give" in capsys.readouterr().err
