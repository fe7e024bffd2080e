"""The values of options with a few fixed ones. Imports nothing, so that every room can use them."""

PROTOCOLS = ("final", "worst")
SUBSETS = ("first", "random", "stratified")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")
AVERAGES = ("probabilities", "logits")  # what an ensemble can average; the first is the default
