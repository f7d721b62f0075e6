"""Ranks that live under the kernel: started, run, watched and ended from here."""
