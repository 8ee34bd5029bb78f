"""What people paste beside a matrix: logs of NCCL and of the kernel, interfaces, limits, shared memory, variables."""

import random
import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.probe.load import load_machine
from advisor.probe.merge import merge
from advisor.probe.text.readers import machine_from_text
from advisor.rules.errors import AdvisorError
from advisor.rules.machine import Gpu, Machine, Nic, Pcie

NCCL = """\
step 1 loss 10.9
w3:410:455 [4] NCCL INFO Bootstrap : Using eno2:10.0.0.5<0>
w3:410:455 [4] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
NCCL version 2.21.5+cuda12.4
w3:410:455 [4] NCCL INFO NET/IB : No device found.
w3:410:455 [4] NCCL INFO NET/Socket : Using [0]ens3:10.0.0.4<0> [1]ens4:10.1.0.4<0>
w3:410:455 [4] NCCL INFO Using network Socket
w3:410:455 [4] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
w3:410:455 [4] NCCL INFO Channel 01 : 2[3d000] -> 3[3e000] via direct shared memory
w3:410:455 [4] NCCL INFO Channel 00/0 : 3[3] -> 8[0] [send] via NET/Socket/0
w3:410:455 [4] NCCL INFO Channel 01/0 : 3[3] -> 8[0] [send] via NET/Socket/1
[rank4]: step 2 w3:410:460 [4] misc/socket.cc:28 NCCL WARN Call to connect failed : Connection refused
w4:410:460 [4] misc/socket.cc:28 NCCL WARN Call to connect failed : Connection refused
"""
KERNEL = """\
BOOT_IMAGE=/vmlinuz-5.15.0 root=/dev/sda2 ro quiet intel_iommu=on iommu=pt
[    0.41] DMAR: IOMMU enabled
[   20.00] usb 1-1: new high-speed USB device
[Tue Oct 11 09:30:01 2022] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.
Oct 11 09:30:01 w3 kernel: Out of memory: Killed process 4242 (python)
"""
SHARED = """\
Filesystem      Size  Used Avail Use% Mounted on
/dev/sda1       400G  300G  100G  75% /
shm              64M   60M  4.0M  94% /dev/shm
total 65536
-rw------- 1 root root 33554432 Oct 11 09:30 nccl-onFp46
-rw------- 1 me   me        512 Oct 11 09:30 torch_77_88_0
-rw------- 1 me   me        512 Oct 11 09:30 sem.loky
"""
INTERFACES = """\
1: lo: <LOOPBACK,UP,LOWER_UP> mtu 65536 qdisc noqueue state UNKNOWN group default qlen 1000
    link/loopback 00:00:00:00:00:00 brd 00:00:00:00:00:00
    inet 127.0.0.1/8 scope host lo
2: enp159s0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 9000 qdisc mq state UP group default qlen 1000
    link/ether 00:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff
    inet 10.20.0.6/20 brd 10.20.15.255 scope global enp159s0
    inet6 2001:db8::6/64 scope global
3: docker0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 1500 qdisc noqueue state DOWN group default
    inet 172.17.0.1/16 brd 172.17.255.255 scope global docker0
5: veth12ab@if4: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 state UP
"""
BRIEF = (
    "lo        UNKNOWN  127.0.0.1/8\ndocker0   DOWN     172.17.0.1/16\nenp159s0  UP       10.20.0.6/20 2001:db8::6/64\n"
)
IFCONFIG = """\
eth0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1500
        inet 10.1.0.4  netmask 255.255.240.0  broadcast 10.1.15.255
        inet6 2001:db8::4  prefixlen 64  scopeid 0x0<global>

ib0       Link encap:InfiniBand  HWaddr 80:00:00:00
          inet addr:10.2.0.4  Bcast:10.2.255.255  Mask:255.255.0.0
          UP BROADCAST RUNNING MULTICAST  MTU:2044  Metric:1
"""
IBSTAT = """\
CA 'mlx5_0'
	CA type: MT4123
	Port 1:
		State: Active
		Physical state: LinkUp
		Rate: 200
		Link layer: InfiniBand
CA 'mlx5_1'
	Port 1:
		State: Down
		Physical state: Disabled
		Rate: 10
		Link layer: Ethernet
"""
IBSTATUS = """\
Infiniband device 'mlx5_0' port 1 status:
	default gid:	 fe80:0000:0000:0000
	state:		 4: ACTIVE
	phys state:	 5: LinkUp
	rate:		 200 Gb/sec (4X HDR)
	link_layer:	 InfiniBand
"""
DEVINFO = """\
hca_id:	mlx5_0
	transport:			InfiniBand (0)
		port:	1
			state:			PORT_ACTIVE (4)
			active_width:		4X (2)
			active_speed:		50.0 Gbps (64)
			link_layer:		InfiniBand
"""
LIMITS = """\
core file size              (blocks, -c) 0
max locked memory           (kbytes, -l) 8192
open files                          (-n) 1024
stack size                  (kbytes, -s) unlimited
"""
PROC_LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max stack size            unlimited            unlimited            bytes
Max open files            1024                 524288               files
Max locked memory         8388608              8388608              bytes
"""
VARIABLES = """\
HOME=/root
AWS_SECRET_ACCESS_KEY=abc
NCCL_AUTH_TOKEN=abc
export NCCL_SOCKET_IFNAME="eth0,en"  # ours
declare -x OMP_NUM_THREADS='4'
NCCL_DEBUG=INFO torchrun train.py
SLURM_GPUS_PER_TASK=1
"""
ACS = "3a:00.0 PCI bridge: PLX\n\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+\n"
TABLE = """\
| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4     |
|   0  NVIDIA H100 80GB HBM3          On  | 00000000:3B:00.0 Off |                    0 |
| N/A   32C    P0             118W / 700W |    7829MiB /  81559MiB |     97%      Default |
|                                         |                        |             Disabled |
|   1  NVIDIA A100-SXM...  On   | 00000000:5E:00.0 Off |                    0 |
| N/A   32C    P0    55W / 400W |      0MiB / 40960MiB |      0%   E. Process |
"""
LISTED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-11111111)
  MIG 3g.20gb     Device  0: (UUID: MIG-22222222)
  MIG 1c.3g.20gb  Device  1: (UUID: MIG-33333333)
GPU 1: NVIDIA TITAN X (Pascal) (UUID: GPU-44444444)
"""
CSV = """\
index, name, utilization.gpu [%], memory.used [MiB], compute_mode, power.draw [W]
1, NVIDIA H20, 100 %, 12 MiB, Default, 118.20 W
0, NVIDIA H20, 3 %, [N/A], Prohibited, [N/A]
"""
QUERY = "$ nvidia-smi --query-gpu=utilization.gpu,power.draw --format=csv,noheader\n100 %, 118.2 W\n"
DIALOGUE = """\
me@w3:~$ ulimit -l
8192
me@w3:~$ systemctl is-active nvidia-fabricmanager
inactive
me@w3:~$ systemd-detect-virt
kvm
me@w3:~$ ls /dev/infiniband
ls: cannot access '/dev/infiniband': No such file or directory
me@w3:~$ cat /sys/class/infiniband/mlx5_2/ports/1/counters/link_downed
27
me@w3:~$ echo $CUDA_VISIBLE_DEVICES
0,1
"""
ALL = (NCCL, KERNEL, SHARED, INTERFACES, BRIEF, IFCONFIG, IBSTAT, IBSTATUS, DEVINFO, LIMITS, PROC_LIMITS, VARIABLES)
ALL += (ACS, TABLE, LISTED, CSV, QUERY, DIALOGUE)


def read(text: str) -> Machine:
    return machine_from_text(text, "a paste")


def test_a_log_of_nccl_among_other_output_tells_paths_devices_and_warnings() -> None:
    log = read(NCCL).nccl_log
    assert log is not None
    assert (log.version, log.interface, log.network) == ("2.21.5", "eno2", "Socket")
    assert log.devices == ("ens3", "ens4")
    assert log.transports == {"P2P/CUMEM": 1, "SHM/direct": 1, "NET/Socket": 2}
    assert log.variables == {"NCCL_IB_DISABLE": "1"}
    assert log.warnings == ("Call to connect failed : Connection refused",)
    assert log.hosts == ("w3", "w4")
    assert log.complete is False


@pytest.mark.parametrize(
    ("line", "devices", "provider"),
    [
        ("NET/IB : No device found.", (), None),
        ("NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.4<0>", ("mlx5_0", "mlx5_1"), None),
        ("NET/OFI Selected Provider is tcp (found 1 nics)", None, "tcp"),
        ("NET/OFI Selected provider is efa, fabric is efa (found 4 nics)", None, "efa"),
    ],
)
def test_the_devices_between_hosts_come_from_the_log(line: str, devices: object, provider: str | None) -> None:
    log = read(f"a:1:2 [0] NCCL INFO {line}\n").nccl_log
    assert log is not None
    assert (log.devices, log.provider, log.complete) == (devices, provider, None)


def test_of_the_kernel_the_command_line_and_lines_on_our_subjects_are_kept() -> None:
    machine = read(KERNEL)
    assert machine.host.kernel_command_line == KERNEL.splitlines()[0]
    assert machine.host.iommu == "passthrough"
    assert [line.split("]")[-1].split(" w3 ")[-1].strip()[:14] for line in machine.kernel_log] == [
        "DMAR: IOMMU en",
        "NVRM: Xid (PCI",
        "kernel: Out of",
    ]


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ("intel_iommu=on", "translating"),
        ("intel_iommu=on,sm_on", "translating"),
        ("amd_iommu=on iommu=pt", "passthrough"),
        ("iommu.passthrough=1", "passthrough"),
        ("intel_iommu=off", "off"),
        ("quiet", None),
    ],
)
def test_the_command_line_says_how_the_iommu_works(words: str, mode: str | None) -> None:
    assert read(f"BOOT_IMAGE=/vmlinuz root=/dev/sda2 {words}\n").host.iommu == mode


def test_a_fault_in_the_log_shows_an_iommu_that_translates() -> None:
    assert read("[  912.3] DMAR: [DMA Write] Request device [03:00.0] PTE Write access is not set\n").host.iommu == (
        "translating"
    )


def test_shared_memory_has_a_size_what_is_free_and_files_of_nccl_and_torch() -> None:
    machine = read(SHARED)
    assert (machine.host.shm, machine.host.shm_free) == (64 * 2**20, 4 * 2**20)
    assert [(s.name, s.size, s.open) for s in machine.shared_segments] == [
        ("nccl-onFp46", 33554432, None),
        ("torch_77_88_0", 512, None),
    ]


def test_df_without_units_counts_blocks() -> None:
    machine = read("Filesystem 1K-blocks Used Available Use% Mounted on\nshm 65536 0 65536 0% /dev/shm\n")
    assert machine.host.shm == 64 * 2**20


@pytest.mark.parametrize("text", [INTERFACES, BRIEF])
def test_interfaces_have_kinds_states_and_addresses(text: str) -> None:
    found = {interface.name: interface for interface in read(f"{text}default via 10.20.0.1 dev enp159s0\n").interfaces}
    card = found["enp159s0"]
    assert (card.kind, card.up, card.default_route) == ("ethernet", True, True)
    assert card.addresses == ("10.20.0.6/20", "2001:db8::6/64")
    assert (found["docker0"].kind, found["docker0"].up, found["docker0"].default_route) == ("bridge", False, False)
    assert (found["lo"].kind, found["lo"].up) == ("loopback", True)
    assert "veth12ab" not in found or found["veth12ab"].kind == "virtual"


def test_ifconfig_old_and_new_lists_interfaces() -> None:
    ethernet, infiniband = read(IFCONFIG).interfaces
    assert (ethernet.up, ethernet.addresses) == (True, ("10.1.0.4/20", "2001:db8::4/64"))
    assert (infiniband.kind, infiniband.up, infiniband.addresses) == ("infiniband", True, ("10.2.0.4/16",))


@pytest.mark.parametrize("text", [IBSTAT, IBSTATUS, DEVINFO])
def test_rdma_devices_have_a_kind_a_rate_and_a_state(text: str) -> None:
    first, *rest = read(text).nics
    assert (first.id, first.kind, first.state, first.bandwidth) == ("mlx5_0", "infiniband", "active", 25e9)
    assert [(nic.kind, nic.state, nic.bandwidth) for nic in rest] in ([], [("roce", "down", None)])


def test_rdma_link_tells_the_state() -> None:
    assert read("link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1\n").nics[0].state == "active"


@pytest.mark.parametrize("text", [LIMITS, PROC_LIMITS])
def test_limits_are_bytes_and_minus_one_is_none(text: str) -> None:
    host = read(text).host
    assert (host.memlock, host.open_files, host.stack) == (8 * 2**20, 1024, -1)


def test_variables_that_steer_are_kept_and_secrets_and_commands_are_not() -> None:
    assert read(VARIABLES).environment == {
        "NCCL_SOCKET_IFNAME": "eth0,en",
        "OMP_NUM_THREADS": "4",
        "SLURM_GPUS_PER_TASK": "1",
    }


def test_acs_is_on_where_a_port_redirects_requests() -> None:
    assert read(ACS).host.acs is True
    assert read(ACS.replace("+", "-")).host.acs is False
    assert "sudo" in read("Capabilities: <access denied>\n").unknown[0].why


def test_the_table_of_nvidia_smi_tells_load_memory_and_mode() -> None:
    machine = read(TABLE)
    first, second = machine.gpus
    assert (first.name, first.bus_id) == ("NVIDIA H100 80GB HBM3", "0000:3b:00.0")
    assert (first.memory_used, first.utilization, first.compute_mode, first.power) == (
        7829 * 2**20,
        0.97,
        "Default",
        118,
    )
    assert (second.name, second.utilization, second.compute_mode) == (None, 0.0, "Exclusive_Process")
    assert (machine.software.driver, machine.software.cuda_driver) == ("550.54.15", "12.4")


def test_the_list_of_gpus_has_their_instances() -> None:
    first, second = read(LISTED).gpus
    assert [(part.name, part.memory) for part in first.mig or ()] == [("3g.20gb", 20e9), ("1c.3g.20gb", 20e9)]
    assert (second.name, second.uuid, second.mig) == ("NVIDIA TITAN X (Pascal)", "GPU-44444444", None)


def test_values_by_commas_follow_their_header_or_command() -> None:
    first, second = read(CSV).gpus
    assert (first.utilization, first.memory_used, first.compute_mode, first.power) == (0.03, None, "Prohibited", None)
    assert (second.utilization, second.memory_used, second.power) == (1.0, 12 * 2**20, 118.2)
    assert (read(QUERY).gpus[0].utilization, read(QUERY).gpus[0].power) == (1.0, 118.2)


def test_a_dialogue_gives_each_answer_to_its_command() -> None:
    machine = read(DIALOGUE)
    assert (machine.host.memlock, machine.host.virtual, machine.host.rdma_devices) == (8 * 2**20, True, False)
    assert machine.software.fabric_manager == "inactive"
    assert [(nic.name, nic.link_downed) for nic in machine.nics] == [("mlx5_2", 27)]
    assert machine.environment == {"CUDA_VISIBLE_DEVICES": "0,1"}


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("nvidia-fabricmanager.service - NVIDIA fabric manager\n Active: active (running) since\n", "active"),
        ("nvidia-fabricmanager.service: Control process exited, code=exited, status=1/FAILURE\n", "inactive"),
        ("Unit nvidia-fabricmanager.service could not be found.\n", "absent"),
    ],
)
def test_the_state_of_the_fabric_manager_is_read_without_its_command(text: str, state: str) -> None:
    assert read(text).software.fabric_manager == state


def test_a_text_without_gpus_needs_one_that_has_them(tmp_path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(NCCL)
    with pytest.raises(AdvisorError, match="names no GPU"):
        load_machine(str(log))
    machine = load_machine("4x a40, roce 100", str(log))
    assert machine.nccl_log is not None
    assert len(machine.gpus) == 4


def test_of_two_looks_at_a_gpu_the_one_under_load_tells_its_link() -> None:
    def look(generation: int, load: float) -> Machine:
        gpu = Gpu(id="GPU0", index=0, pcie=Pcie(generation=generation, generation_max=4), utilization=load)
        return Machine(gpus=(gpu,))

    for machines in ([look(1, 0.0), look(4, 0.9)], [look(4, 0.9), look(1, 0.0)]):
        gpu = merge(machines).gpus[0]
        assert (gpu.pcie, gpu.utilization) == (Pcie(generation=4, generation_max=4), 0.9)


def test_a_named_card_is_one_of_those_that_words_give() -> None:
    words = Machine(nics=(Nic(id="NIC0", kind="roce", bandwidth=12.5e9), Nic(id="NIC1", kind="roce", bandwidth=12.5e9)))
    seen = Machine(nics=(Nic(id="mlx5_0", name="mlx5_0", kind="roce", state="active"),))
    assert [(nic.id, nic.name, nic.state) for nic in merge([words, seen]).nics] == [
        ("NIC0", "mlx5_0", "active"),
        ("NIC1", None, None),
    ]


def test_logs_of_two_ranks_are_one() -> None:
    log = merge([read(NCCL), read(NCCL.replace("refused", "reset"))]).nccl_log
    assert log is not None
    assert log.transports["NET/Socket"] == 4
    assert len(log.warnings) == 2


WORDS = sorted({word for text in ALL for word in re.split(r"([ \t\n]+)", text) if word})


def only_ours(text: str) -> None:
    try:
        machine = read(text)
    except AdvisorError as error:
        assert error.hint
    else:
        assert isinstance(machine, Machine)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=80).map("".join))
def test_any_order_of_known_words_is_read_or_refused(text: str) -> None:
    only_ours(text)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_a_damaged_text_is_read_or_refused(chance: random.Random, times: int) -> None:
    text = "".join(chance.sample(ALL, 2))
    for _ in range(times):
        at = chance.randrange(len(text) + 1)
        end = at + chance.randrange(40)
        noise = "".join(chance.choices(string.printable, k=chance.randrange(5)))
        text = text[:at] + noise + (text[end:] if chance.random() < 0.5 else text[at:] + text[at:end])
    only_ours(text)


@pytest.mark.parametrize("unit", [" ", "\n", " \n", "a", "1 ", "$ ", "NCCL ", "A=b ", "1: lo: <UP> "])
def test_a_long_text_of_one_thing_takes_no_time_to_speak_of(unit: str) -> None:
    import time

    marks = "MiB = /dev/shm ACSCtl [ 1.0] hca_id locked NCCL INFO memory. (UUID: nfiniband NVRM kernel: --query-gpu"
    start = time.process_time()
    only_ours(unit * (40_000 // len(unit)) + marks)
    assert time.process_time() - start < 5
