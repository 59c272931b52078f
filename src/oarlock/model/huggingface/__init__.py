"""Hugging Face folders in and out."""

from oarlock.model.huggingface.export import Exported, export_huggingface
from oarlock.model.huggingface.load import load_huggingface, read_config

__all__ = ["Exported", "export_huggingface", "load_huggingface", "read_config"]
