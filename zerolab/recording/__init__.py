"""What happened, as data: a rank is watched from outside, and all ranks are merged into one recording."""
