"""Where commands print."""

from rich.console import Console

out = Console()
errors = Console(stderr=True)


def say(text: str) -> None:
    """Print a line as it is: no markup, no wrapping."""
    out.print(text, markup=False, highlight=False, soft_wrap=True)
