"""What the loop of every run needs, whoever trains: order of the data, evaluation, metrics, checkpoints, ranks."""
