"""Configuration: what may be written (schema), how it is read (load), whether it makes sense together (resolve).

Nothing in this folder imports torch, ray or transformers, so every mistake in a configuration is told in seconds.
"""
