"""GDPO, MaxRL, GiGPO and DPPO: published objectives of a few lines each."""
