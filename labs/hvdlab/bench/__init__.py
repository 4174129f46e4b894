"""Benchmarks of this machine, each one compared with a peer in the same run.

    hvdlab bench throughput       images/s of 1 and 2 ranks: Horovod, PyTorch's DDP, and the limit
    hvdlab bench launch           effect of settings of the launcher, Open MPI and Horovod on a training step
    hvdlab bench exchange         cost of an exchange of gradients by phase: Keras 3, legacy Keras, PyTorch
    hvdlab bench allreduce        by message size: Horovod, MPI, Gloo or NCCL, and memcpy; Horovod's options
    hvdlab bench scaling          strong and weak scaling, the limit, and the prediction of the cost model
    hvdlab bench precision        images/s in float32, TF32 and bfloat16
    hvdlab bench optimizers       step time of LARS, LAMB and NovoGrad, ours and other packages'
    hvdlab bench normalization    ghost batch norm compared with the framework's batch norm

All benchmarks except `exchange` also measure GPUs (`--device gpu`). A table names the device of each figure,
because a framework that finds no GPU computes on the processor.

A benchmark is not a test: no test asserts a time.
"""
