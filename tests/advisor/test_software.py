import sys
from pathlib import Path

import pytest

from advisor.probe.live.environment import read_environment, read_hidden
from advisor.probe.live.software import read_software

VERSION_PY = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda}
hip: Optional[str] = None
"""


def install_torch(site: Path, version: str, cuda: str) -> None:
    (site / "torch").mkdir(parents=True)
    (site / "torch/version.py").write_text(VERSION_PY.format(version=version, cuda=cuda))


def test_a_cuda_build_tells_its_cuda_and_the_nccl_wheel_beside_it(tmp_path: Path) -> None:
    install_torch(tmp_path, "2.13.0+cu130", "'13.0'")
    (tmp_path / "nvidia_nccl_cu13-2.29.7.dist-info").mkdir()
    software, unknown = read_software([str(tmp_path)], tmp_path)
    assert (software.torch, software.torch_cuda, software.nccl) == ("2.13.0+cu130", "13.0", "2.29.7")
    assert software.python == ".".join(map(str, sys.version_info[:3]))
    assert unknown == ()


def test_torch_of_the_first_folder_counts_as_for_an_import(tmp_path: Path) -> None:
    install_torch(tmp_path / "user", "2.12.0+cu130", "'13.0'")
    install_torch(tmp_path / "system", "2.11.0+cpu", "None")
    places = [str(tmp_path / name) for name in ("missing", "user", "system")]
    assert read_software(places, tmp_path)[0].torch == "2.12.0+cu130"


def test_a_cpu_build_says_why_there_is_no_cuda(tmp_path: Path) -> None:
    install_torch(tmp_path, "2.13.0+cpu", "None")
    software, unknown = read_software([str(tmp_path)], tmp_path)
    assert (software.torch, software.torch_cuda, software.nccl) == ("2.13.0+cpu", None, None)
    assert [u.what for u in unknown] == ["software.torch_cuda", "software.nccl"]


def test_the_system_library_tells_nccl_where_there_is_no_wheel(tmp_path: Path) -> None:
    install_torch(tmp_path, "2.9.0a0+145a3a7.nv25.10", "'13.0'")
    library = tmp_path / "usr/lib/aarch64-linux-gnu/libnccl.so.2.27.7"
    library.parent.mkdir(parents=True)
    library.touch()
    software, unknown = read_software([str(tmp_path)], tmp_path)
    assert (software.nccl, unknown) == ("2.27.7", ())


def test_an_nccl_that_lies_nowhere_is_unknown(tmp_path: Path) -> None:
    install_torch(tmp_path, "2.13.0", "'13.0'")
    software, unknown = read_software([str(tmp_path)], tmp_path)
    assert software.nccl is None
    assert [u.what for u in unknown] == ["software.nccl"]


def test_a_python_without_torch_says_how_to_get_it(tmp_path: Path) -> None:
    software, unknown = read_software([str(tmp_path)], tmp_path)
    assert software.torch is None
    assert {u.what for u in unknown} == {"software.torch", "software.torch_cuda", "software.nccl"}
    assert "pip install torch" in unknown[0].why


def test_this_environment_is_read_without_importing_torch() -> None:
    from importlib.metadata import version

    assert read_software()[0].torch == version("torch")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_only_variables_that_steer_training_are_kept(home: Path, tmp_path: Path) -> None:
    given = {
        "NCCL_DEBUG": "WARN",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "OMP_NUM_THREADS": "8",
        "SLURM_CPUS_PER_TASK": "16",
        "NCCL_VERSION": "secret",  # of images: what they were built with
        "SLURM_JOB_ACCOUNT": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "PATH": "/usr/bin",
    }
    values, files = read_environment(given, home, tmp_path)
    assert values == {name: value for name, value in given.items() if value not in ("secret", "/usr/bin")}
    assert files == {}


def test_the_process_wins_over_the_users_file_and_that_over_the_systems(home: Path, tmp_path: Path) -> None:
    (home / ".nccl.conf").write_text("NCCL_DEBUG=INFO\nNCCL_IB_HCA=mlx5_0\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text("NCCL_IB_HCA=mlx5_9\nNCCL_CROSS_NIC=1\n")
    values, files = read_environment({"NCCL_DEBUG": ""}, home, tmp_path)
    assert values == {"NCCL_DEBUG": "", "NCCL_IB_HCA": "mlx5_0", "NCCL_CROSS_NIC": "1"}
    assert files == {"NCCL_IB_HCA": "~/.nccl.conf", "NCCL_CROSS_NIC": "/etc/nccl.conf"}


def test_a_file_whose_value_is_not_in_effect_is_named(home: Path, tmp_path: Path) -> None:
    (home / ".nccl.conf").write_text("NCCL_DEBUG=INFO\nNCCL_IB_HCA=mlx5_0\nNCCL_IB_TC=1\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text("NCCL_IB_HCA=mlx5_9\nNCCL_DEBUG=WARN\nNCCL_IB_TC=1\n")
    given = {"NCCL_DEBUG": "WARN"}
    values, _ = read_environment(given, home, tmp_path)
    hidden = read_hidden(values, given, home, tmp_path)
    assert hidden == {"NCCL_DEBUG": "~/.nccl.conf", "NCCL_IB_HCA": "/etc/nccl.conf"}


def test_a_named_file_replaces_the_one_in_the_home_folder(home: Path, tmp_path: Path) -> None:
    (home / ".nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    named = tmp_path / "site.conf"
    named.write_text("NCCL_ALGO=Ring\n")
    values, files = read_environment({"NCCL_CONF_FILE": str(named)}, home, tmp_path)
    assert values == {"NCCL_CONF_FILE": str(named), "NCCL_ALGO": "Ring"}
    assert files == {"NCCL_ALGO": str(named)}


def test_lines_of_a_file_are_read_as_nccl_does(home: Path, tmp_path: Path) -> None:
    lines = ["#NCCL_DEBUG=INFO", " NCCL_ALGO=Tree", "NCCL_SOCKET_IFNAME==ens1f0 ", "nonsense", 'NCCL_PROTO="LL"']
    (home / ".nccl.conf").write_text("\n".join(lines))
    values, _ = read_environment({}, home, tmp_path)
    assert values == {"NCCL_SOCKET_IFNAME": "=ens1f0 ", "NCCL_PROTO": '"LL"'}


def test_a_file_of_nccl_cannot_hide_gpus(home: Path, tmp_path: Path) -> None:
    (home / ".nccl.conf").write_text("CUDA_VISIBLE_DEVICES=0\n")  # read only after CUDA has started
    assert read_environment({}, home, tmp_path) == ({}, {})
