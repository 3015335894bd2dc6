"""Messages to token ids and back: the episode's token buffer and the two chat formats that come with toolrl.

`template` renders with the tokenizer's own chat template, `plain` with role prefixes from the config. Both are handed
a transformers tokenizer; nothing here imports transformers or torch.
"""
