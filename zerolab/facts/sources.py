"""Where the claims are made: four articles, by the names in `where`."""

MULTIPLE_GPUS = "AI in Multiple GPUs"
BBIOON = "bbioon"
MORTALAPPS = "mortalapps"
N1N = "n1n.ai"

ARTICLES = {
    MULTIPLE_GPUS: "part of a series on training across several GPUs, with code for each stage",
    BBIOON: "a post on scaling training past the memory of one GPU",
    MORTALAPPS: "mortalapps.com, a page on how ZeRO is built",
    N1N: "a post on the n1n.ai blog on training large models",
}
"""What each of them is. Their claims are given in other words here, and none of their code is in this project."""
