"""Measure one timm model on the bundled digits: clean, under noise, and under attack.

python examples/bench_my_timm_model.py
"""

import timm

import robust_interp  # registers its networks with timm, too

# Any timm model for the channels and classes of the data set will do. This one comes with its weights.
model = timm.create_model("in_resnet20.digits_digits_seed0", pretrained=True)

table = robust_interp.evaluate(
    {"my_model": model},
    "digits",
    n=40,  # the first 40 test images
    eps=(8 / 255, 32 / 255),  # radii in [0, 1] pixels
    attacks="fgsm,pgd(alpha=eps/4,steps=10)",
    corruptions="gaussian_noise",
)

print("accuracy in %, with its 95 % interval over the images")
columns = ["perturbation", "severity", "eps_255", "accuracy", "ci_low", "ci_high", "n"]
print(table[columns].round(1).astype(object).fillna("").to_string(index=False))
