"""Oarlock: train Transformer encoders on variable-length text, without padding."""
