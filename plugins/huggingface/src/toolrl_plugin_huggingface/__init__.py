"""The plugin `huggingface`: data sets through the library `datasets`."""
