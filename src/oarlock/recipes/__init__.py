"""Whole runs by name: `bert-mini`, `roberta-base`, `modernbert-tiny`, and so on."""

from oarlock.recipes.pretrain import RECIPES, recipe

__all__ = ["RECIPES", "recipe"]
