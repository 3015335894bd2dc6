"""Several processes that train one model: their process group, FSDP2, and each rank's share of the samples."""
