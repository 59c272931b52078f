"""What a figure was measured on."""

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

CPU_FACTS = Path("/proc/cpuinfo")


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Processor, threads, GPU where that is the device, and versions, by name."""
    facts = {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "oarlock": version("oarlock"),
    }
    return facts | ({"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {})


def _processor() -> str:
    """Name of the CPU, and whether it has units for matrix products in bf16."""
    text = CPU_FACTS.read_text() if CPU_FACTS.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name} with AMX" if "amx_bf16" in text and "AMX" not in name else name
