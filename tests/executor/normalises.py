"""Two ranks, forked, normalise slices by the statistics of whole batches. test_plain_norm runs it.

normalises.py PORT DEVICE: prints "equal NAME" for each case, once on each rank. With "cuda" both take the first GPU.
"""

import os
import sys

import torch
from torch import nn
from torch.nn import functional

from advisor.executor.in_process import plain_norm, plain_share

SHAPES = {
    "vectors": (7, 5),
    "words": (7, 5, 4),
    "images": (7, 5, 3, 4),
    "volumes": (7, 5, 2, 3, 2),
    "one": (1, 5, 3, 4),
}
# In half precision what goes in is rounded before both; the rest is float32.
CLOSE = {torch.float32: (1e-5, 1e-6), torch.float64: (1e-12, 1e-12), torch.bfloat16: (2e-2, 2e-2)}
native = functional.batch_norm


def case(ranks, device, shape, *, dtype=torch.float32, affine=True, running=True, momentum=0.1, last=False, frozen=()):
    """Compare outputs, gradients and running statistics with those of one process."""
    generator = torch.Generator().manual_seed(3)
    whole = torch.randn(shape, generator=generator).mul(3).add(2).to(device, dtype)
    norm = nn.modules.batchnorm._BatchNorm(shape[1], affine=affine, track_running_stats=running, momentum=momentum)
    norm._check_input_dim = lambda input: None
    norm.to(device, torch.float64 if dtype == torch.float64 else torch.float32)
    for number, parameter in enumerate(norm.parameters()):
        nn.init.uniform_(parameter, 0.5, 1.5, generator=torch.Generator(device).manual_seed(number))
        parameter.requires_grad_(number not in frozen)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    weights = torch.randn(shape, generator=generator).to(device, dtype)
    if last:
        whole, weights = (one.to(memory_format=torch.channels_last) for one in (whole, weights))

    def passed(batch_norm, part, scale):
        norm.load_state_dict(before)
        norm.zero_grad()
        functional.batch_norm = batch_norm
        x = whole[part].detach().requires_grad_()
        out = norm(x)
        ((out * weights[part]).float().square().sum() * scale).backward()
        functional.batch_norm = native
        return out, x.grad, [one.grad for one in norm.parameters()], dict(norm.state_dict())

    ranks.share = None
    expected = passed(native, slice(None), 1.0)
    state = {name: value.clone() for name, value in expected[3].items()}
    gradients = [one if one is None else one.clone() for one in expected[2]]
    share = ranks.share = plain_share.split(shape[0], ranks.rank, 2)
    mine = slice(share.start, share.stop)
    out, of_input, found, after = passed(plain_norm.normalised(ranks, native), mine, float(share.counts))
    rtol, atol = CLOSE[dtype]

    def same(one, other):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol * max(1.0, float(other.detach().abs().max())))

    same(out, expected[0][mine])
    same(of_input, expected[1][mine] if share.counts else torch.zeros_like(of_input))
    assert not last or out.is_contiguous(memory_format=torch.channels_last)
    for one, other in zip(found, gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            same(ranks.total(one), other)
    for name, value in after.items():
        same(value.double(), state[name].double())


def twice(ranks, device):
    ranks.share = plain_share.split(4, ranks.rank, 2)
    x = torch.randn(2, 3, device=device, requires_grad=True)
    out = plain_norm.normalised(ranks, native)(x, training=True)
    try:
        torch.autograd.grad(out.sum(), x, create_graph=True)
    except RuntimeError as error:
        assert "create_graph" in str(error)
    else:
        raise SystemExit("not refused")


def main():
    port, device = sys.argv[1:]
    os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    child = os.fork()
    os.environ["RANK"] = "0" if child else "1"
    ranks = plain_share.Ranks(device, {"seed": 0})
    if device == "cpu":
        torch.set_num_threads(1)
    ranks.start()
    cases = {name: (shape, {}) for name, shape in SHAPES.items()}
    images = SHAPES["images"]
    cases |= {
        "half precision": (images, {"dtype": torch.bfloat16}),
        "double precision": (images, {"dtype": torch.float64}),
        "without weights": (images, {"affine": False}),
        "without running statistics": (images, {"running": False}),
        "cumulative averages": (images, {"momentum": None}),
        "channels last": (images, {"last": True}),
        "frozen weight": (images, {"frozen": (0,)}),
        "frozen": (images, {"frozen": (0, 1)}),
    }
    for name, (shape, options) in cases.items():
        case(ranks, device, shape, **options)
        os.write(1, f"equal {name}\n".encode())
    twice(ranks, device)
    torch.distributed.destroy_process_group()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


main()
