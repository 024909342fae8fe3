# What `make native` compiles `output_templates.py` with: the types of what is made anew.

from gt.client.segment.signature cimport Signature
from gt.client.segment.value cimport TensorValue
from gt.client.tensor.native_calls cimport _new
from gt.client.tensor.tape cimport Leaf, TapeNode, Vertex
from gt.client.tensor.tensor cimport TensorState
