"""Create links to the file in the first argument in place of records, so that the grader might read it."""

import os
import sys
import time
from pathlib import Path

secret, records = Path(sys.argv[1]), Path(os.environ["HVDLAB_RUN_DIR"])
(records / "rank-0").mkdir(parents=True)
(records / "rank-0" / "epoch-000.npz").symlink_to(secret)
(records / "rank-0" / "record.jsonl").symlink_to(secret)
os.mkfifo(records / "rank-0" / "epoch-001.npz")
time.sleep(1)
