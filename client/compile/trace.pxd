# What `make native` compiles `trace.py` with: the types of what a replay reads and writes.

from gt.client.segment.value cimport TensorValue
from gt.client.tensor.tape cimport Leaf
from gt.client.tensor.tensor cimport TensorState
