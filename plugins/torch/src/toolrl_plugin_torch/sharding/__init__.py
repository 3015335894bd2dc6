"""Several processes that train one model: their process group, FSDP2, and who computes what."""
