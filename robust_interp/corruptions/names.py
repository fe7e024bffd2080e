"""Names of the CIFAR-C corruptions, their groups, and the means that tables show. Plain data."""

from __future__ import annotations

SEVERITIES = (1, 2, 3, 4, 5)
SOURCE = "Hendrycks and Dietterich 2019, arXiv 1903.12261"

COMMON = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
NOISE = ("impulse_noise", "speckle_noise", "gaussian_noise", "shot_noise")  # the paper's four

# Group names for --corruptions. The 15 common ones are the benchmark; the 4 extra ones were for validation.
GROUPS = {"noise": NOISE, "common": COMMON, "extra": EXTRA, "all": COMMON + EXTRA}
# Means by column name. The name contains the number of corruptions, so that means are not confused.
MEANS = {"noise": NOISE, "common15": COMMON, "all19": COMMON + EXTRA}

# MD5 of the released CIFAR-10-C files.
RELEASED_MD5 = {
    "gaussian_noise": "ecaf8b9a2399ffeda7680934c33405fd",
    "shot_noise": "3a7239bb118894f013d9bf1984be7f11",
    "impulse_noise": "2090e01c83519ec51427e65116af6b1a",
    "defocus_blur": "7d1322666342a0702b1957e92f6254bc",
    "glass_blur": "7361fb4019269e02dbf6925f083e8629",
    "motion_blur": "fffa5f852ff7ad299cfe8a7643f090f4",
    "zoom_blur": "6ea8e63f1c5cdee1517533840641641b",
    "snow": "bb238de8555123da9c282dea23bd6e55",
    "frost": "31f6ab3bce1d9934abfb0cc13656f141",
    "fog": "7b397314b5670f825465fbcd1f6e9ccd",
    "brightness": "0a81ef75e0b523c3383219c330a85d48",
    "contrast": "3c8262171c51307f916c30a3308235a8",
    "elastic_transform": "9421657c6cd452429cf6ce96cc412b5f",
    "pixelate": "0f14f7e2db14288304e1de10df16832f",
    "jpeg_compression": "2b9cc4c864e0193bb64db8d7728f8187",
    "speckle_noise": "ef00b87611792b00df09c0b0237a1e30",
    "gaussian_blur": "c33370155bc9b055fb4a89113d3c559d",
    "spatter": "8a5a3903a7f8f65b59501a6093b4311e",
    "saturate": "1cfae0964219c5102abbb883e538cc56",
}
RELEASED_LABELS_MD5 = "c439b113295ed5254878798ffe28fd54"
