"""Hooks in PyTorch, Keras and Horovod that write down what a script under `hvdlab check` does."""
