"""Modules, under the name that PyTorch's own files have for them."""

from __future__ import annotations

from gt.client.nn import *  # noqa: F403  # all of its public names
from gt.client.nn import __all__ as __all__

from . import activation as activation
from . import batchnorm as batchnorm
from . import container as container
from . import conv as conv
from . import dropout as dropout
from . import instancenorm as instancenorm
from . import linear as linear
from . import loss as loss
from . import module as module
from . import normalization as normalization
from . import padding as padding
from . import pixelshuffle as pixelshuffle
from . import pooling as pooling
from . import rnn as rnn
from . import sparse as sparse
from . import transformer as transformer
from . import upsampling as upsampling
from . import utils as utils
