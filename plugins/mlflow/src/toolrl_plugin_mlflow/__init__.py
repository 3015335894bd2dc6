"""The plugin `mlflow`: runs of toolrl in MLflow."""
