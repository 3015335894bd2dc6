"""Layers of llama, qwen2 and qwen3 in float32 on a CPU, with gradients written out."""
