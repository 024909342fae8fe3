"""The client: tensors, autograd, modules, optimizers, and the stream of instructions that they emit."""
