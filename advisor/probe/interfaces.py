"""What the name of a network interface tells of its kind, and what runs alike over all ways to list them."""

import re
from typing import Literal

Kind = Literal["ethernet", "infiniband", "loopback", "bridge", "tunnel", "virtual"]

_KINDS: tuple[tuple[str, Kind], ...] = (
    (r"lo\d*", "loopback"),
    (r"docker\d+|br-\w+|br\d+|virbr\d+\S*|cni\d*|lxcbr\d+|lxdbr\d+|podman\d+|cbr\d+|nerdctl\d+|kube-bridge", "bridge"),
    (r"(tun|tap|wg|ppp|gre|gretap|erspan|sit|ipip|tunl|ip6tnl|vxlan|geneve|flannel|tailscale|zt|utun)\S*", "tunnel"),
    (r"(veth|cali|cilium|lxc|dummy|nodelocaldns|kube-ipvs|ifb|vnet|azv|gke)\S*", "virtual"),
    (r"ib[ps]?\d\S*|ibp\S+|ibs\S+", "infiniband"),
    (r"(en|eth|em|bond|team|wl|p\d+p|slave|hsn|roce|rdma|gpu)\S*", "ethernet"),
)


def kind_by_name(name: str) -> Kind | None:
    """Return the kind of an interface that is called so by habit, eno1 or docker0; None where the name tells none."""
    return next((kind for pattern, kind in _KINDS if re.fullmatch(pattern, name)), None)
