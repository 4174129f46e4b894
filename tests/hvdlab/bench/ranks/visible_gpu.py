"""A rank of `hvdlab.bench`: the GPU that it is shown."""

import os

from hvdlab.bench import ranks

ranks.communicator()
ranks.tell({"visible": os.environ["CUDA_VISIBLE_DEVICES"]})
