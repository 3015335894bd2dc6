"""Messages to token ids and back: the chat formats `template` and `plain`.

`template` renders with the tokenizer's own chat template, `plain` with role prefixes from the config. Both are handed
a transformers tokenizer; nothing here imports transformers or torch.
"""
