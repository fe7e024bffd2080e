"""A step of an attack does not wait for its device."""

import pytest
import torch
from support.attacked import attack, predict, tiny, tiny_batch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

ASK = {"item", "cpu", "numpy", "tolist", "__bool__", "__float__", "__int__", "__index__", "nonzero"}


class Asked(TorchFunctionMode):
    """Counts what a user's code asks of a tensor that a device would have to finish its work for."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += getattr(func, "__name__", "") in ASK
        return func(*args, **(kwargs or {}))


class Waited(TorchDispatchMode):
    """The same of what torch asks itself, such as where a mask is an index."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero)
        if func.overloadpacket is torch.ops.aten.index:
            self.count += any(index is not None and index.dtype == torch.bool for index in args[1])
        return func(*args, **(kwargs or {}))


def waits(spec):
    images, _ = tiny_batch(4)
    labels = predict(tiny(), images)
    with Asked() as asked, Waited() as waited:
        attack(tiny(), spec, images, labels)
    return asked.count, waited.count


@pytest.mark.parametrize("name", ["ifgsm", "pgd", "mifgsm", "pgd_l2(eps=1,", "pgd(restarts=2,"])
def test_no_step_waits(name):
    few, many = (waits(f"{name}{'' if '(' in name else '('}steps={steps})") for steps in (2, 9))
    assert few == many
    assert sum(few) > 0  # what is checked afterwards: it does count


def test_the_stand_in_sees_a_step_that_waits():
    few, many = (waits(f"pgd(eps=1e-6,alpha=1e-7,steps={steps},stop=broken)") for steps in (2, 9))
    assert few < many  # on a CPU it looks at every step which samples are done
