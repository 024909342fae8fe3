# What `make native` compiles `guards.py` with.

from gt.client.tensor.native_calls cimport same_objects
