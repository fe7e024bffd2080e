"""Write an attack as a plug-in, check that it keeps the rules, and measure it beside FGSM on digits.

python examples/write_an_attack.py
robust-interp bench --plugin examples/write_an_attack.py --attacks fgsm,random_step
"""

import torch
from torch.nn import functional as F

import robust_interp
from robust_interp import plugins
from robust_interp.testing import check_attack


@plugins.attack(random=True)  # its draws are keyed by the attack seed and the image
def random_step(model, images, labels, *, eps, step=plugins.OfEps(1.25)):
    """One step of size `step` from a random start in the ball (Wong, Rice and Kolter, ICLR 2020)."""
    start = (images + torch.empty_like(images).uniform_(-eps, eps)).clamp(0, 1).requires_grad_()
    loss = F.cross_entropy(model(start), labels, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, start)
    delta = (start.detach() + step * gradient.sign() - images).clamp(-eps, eps)
    return (images + delta).clamp(0, 1)


if __name__ == "__main__":
    check_attack(random_step)  # raises an AssertionError that names the broken rule
    print("random_step keeps the rules")
    plugins.load(__file__)  # declaring registers nothing; loading the file does
    table = robust_interp.evaluate(
        "in_resnet20", "digits", seeds=1, attacks="fgsm,random_step", corruptions="none", n=100
    )
    print(table[["perturbation", "eps_255", "accuracy", "ci_low", "ci_high", "n"]].to_string(index=False))
