"""Table 1 of the ZeRO paper, as it is printed; theory and simulation are held against it, and `make bench` reads it."""

# Rajbhandari et al. 2020, arXiv 1910.02054v3, table 1: GB (1e9 bytes) of model states per device, fp16 with Adam
# (K = 12), by degree of data parallelism. The 7.5B column is rounded, most of 128B and 1T are cut to integers, so a
# cell is compared within one unit of its last printed digit.
DEGREES = (1, 4, 16, 64, 256, 1024)
TABLE_1 = {
    ("zero1", 7.5e9): ("120", "52.5", "35.6", "31.4", "30.4", "30.1"),
    ("zero2", 7.5e9): ("120", "41.3", "21.6", "16.6", "15.4", "15.1"),
    ("zero3", 7.5e9): ("120", "30", "7.5", "1.88", "0.47", "0.12"),
    ("zero1", 128e9): ("2048", "896", "608", "536", "518", "513"),
    ("zero2", 128e9): ("2048", "704", "368", "284", "263", "257"),
    ("zero3", 128e9): ("2048", "512", "128", "32", "8", "2"),
    ("zero1", 1e12): ("16000", "7000", "4750", "4187", "4046", "4011"),
    ("zero2", 1e12): ("16000", "5500", "2875", "2218", "2054", "2013"),
    ("zero3", 1e12): ("16000", "4000", "1000", "250", "62.5", "15.6"),
}
CELLS = [
    (stage, num_params, degree, cell)
    for (stage, num_params), row in TABLE_1.items()
    for degree, cell in zip(DEGREES, row, strict=True)
]
NAMES = {7.5e9: "7.5b", 128e9: "128b", 1e12: "1t"}  # in the catalog


def off_by(nbytes: float, cell: str) -> float:
    """How far bytes are from a printed cell, in units of its last digit: below 1 where they are what was printed."""
    return abs(nbytes / 1e9 - float(cell)) * 10 ** len(cell.partition(".")[2])
