"""A rank of `hvdlab.bench`: report the GPU that it can see."""

import os

from hvdlab.bench import ranks

ranks.communicator()
ranks.tell({"visible": os.environ["CUDA_VISIBLE_DEVICES"]})
