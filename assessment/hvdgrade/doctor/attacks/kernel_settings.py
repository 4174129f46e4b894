"""Open settings of the kernel for writing, without writing anything."""

import os

for name in ("kernel/core_pattern", "kernel/hostname", "vm/drop_caches"):
    try:
        os.close(os.open(f"/proc/sys/{name}", os.O_WRONLY))
        print("opened", name, flush=True)
    except OSError as error:
        print(error)
