"""Benchmarks: what this machine does, side by side with a peer in the same run.

    hvdlab bench throughput       images/s at 1 and 2 ranks: Horovod, torch DDP, and the limit
    hvdlab bench launch           what settings of the launcher, Open MPI and Horovod do for a training step
    hvdlab bench exchange         what an exchange of gradients costs, and where: Keras 3, legacy Keras, torch
    hvdlab bench allreduce        by message size: Horovod, MPI, gloo or NCCL, and memcpy; Horovod's options
    hvdlab bench scaling          strong and weak scaling, the limit, and what the model predicts
    hvdlab bench precision        images/s in float32, TF32 and bfloat16
    hvdlab bench optimizers       step time of LARS, LAMB and NovoGrad, and of other packages'
    hvdlab bench normalization    ghost batch norm compared with the framework's batch norm

All but `exchange` also measure GPUs (`--device gpu`). A table names the device of each figure, because a
framework that sees no GPU computes on the processor.

Nothing here is a test: a test never asserts a time.
"""
