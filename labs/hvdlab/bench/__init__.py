"""Benchmarks: what this machine does, side by side with a peer in the same run.

    hvdlab bench throughput       images/s at 1 and 2 ranks: Horovod with torch and Keras, torch DDP
    hvdlab bench allreduce        by message size: Horovod, MPI, gloo beside memcpy; Horovod's options
    hvdlab bench scaling          strong and weak scaling beside lonely ranks, and what the model foretells
    hvdlab bench optimizers       step time of LARS, LAMB and NovoGrad beside other packages'
    hvdlab bench normalization    ghost batch norm beside the framework's batch norm
    hvdlab bench exchange         what an exchange of gradients costs: Keras 3, legacy Keras, torch

Nothing here is a test: a test never asserts a time.
"""
