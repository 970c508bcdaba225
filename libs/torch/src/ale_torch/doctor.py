"""What `ale doctor` says about torch: its build, and the GPUs that it can use."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ale.cli.doctor import Finding

GIB = 1 << 30


def check() -> Iterator[Finding]:
    """Yield torch's build and each GPU."""
    build = (
        f"CUDA {torch.version.cuda}"
        if torch.version.cuda
        else f"ROCm {torch.version.hip}"
        if torch.version.hip
        else "CPU"
    )
    yield Finding("torch", "ok", f"{torch.__version__}, built for {build}, {torch.get_num_threads()} threads")
    if not torch.cuda.is_available():
        mend = ""
        if build != "CPU":
            mend = "look at `nvidia-smi`: the driver is missing, too old for this build, or hidden from this process"
        yield Finding("GPUs", "missing" if mend else "info", "none that torch can use", mend)
        return
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        free, whole = torch.cuda.mem_get_info(number)
        memory = f"{free / GIB:.1f} of {whole / GIB:.1f} GiB free"
        yield Finding(f"GPU {number}", "ok", f"{about.name}, {memory}, capability {about.major}.{about.minor}")
