"""GT, a tensor service: programs say what to compute, a YAML file says where.

This is the public face: every name is looked up where it lives, at its first use, so that `import gt` stays light. The
names are PyTorch's wherever PyTorch has one. Nothing is computed here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from . import autograd as autograd
    from . import nn as nn
    from . import optim as optim
    from . import signal as signal
    from .client.arithmetic import (
        abs as abs,
    )  # fmt: skip
    from .client.arithmetic import (
        absolute as absolute,
    )
    from .client.arithmetic import (
        add as add,
    )
    from .client.arithmetic import (
        bitwise_and as bitwise_and,
    )
    from .client.arithmetic import (
        bitwise_not as bitwise_not,
    )
    from .client.arithmetic import (
        bitwise_or as bitwise_or,
    )
    from .client.arithmetic import (
        bitwise_xor as bitwise_xor,
    )
    from .client.arithmetic import (
        cast as cast,
    )
    from .client.arithmetic import (
        ceil as ceil,
    )
    from .client.arithmetic import (
        clamp as clamp,
    )
    from .client.arithmetic import (
        clip as clip,
    )
    from .client.arithmetic import (
        clone as clone,
    )
    from .client.arithmetic import (
        cos as cos,
    )
    from .client.arithmetic import (
        div as div,
    )
    from .client.arithmetic import (
        divide as divide,
    )
    from .client.arithmetic import (
        eq as eq,
    )
    from .client.arithmetic import (
        exp as exp,
    )
    from .client.arithmetic import (
        expm1 as expm1,
    )
    from .client.arithmetic import (
        floor as floor,
    )
    from .client.arithmetic import (
        floor_divide as floor_divide,
    )
    from .client.arithmetic import (
        ge as ge,
    )
    from .client.arithmetic import (
        greater as greater,
    )
    from .client.arithmetic import (
        greater_equal as greater_equal,
    )
    from .client.arithmetic import (
        gt as gt,
    )
    from .client.arithmetic import (
        isclose as isclose,
    )
    from .client.arithmetic import (
        isfinite as isfinite,
    )
    from .client.arithmetic import (
        isinf as isinf,
    )
    from .client.arithmetic import (
        isnan as isnan,
    )
    from .client.arithmetic import (
        le as le,
    )
    from .client.arithmetic import (
        less as less,
    )
    from .client.arithmetic import (
        less_equal as less_equal,
    )
    from .client.arithmetic import (
        log as log,
    )
    from .client.arithmetic import (
        log1p as log1p,
    )
    from .client.arithmetic import (
        log2 as log2,
    )
    from .client.arithmetic import (
        log10 as log10,
    )
    from .client.arithmetic import (
        logical_and as logical_and,
    )
    from .client.arithmetic import (
        logical_not as logical_not,
    )
    from .client.arithmetic import (
        logical_or as logical_or,
    )
    from .client.arithmetic import (
        logical_xor as logical_xor,
    )
    from .client.arithmetic import (
        lt as lt,
    )
    from .client.arithmetic import (
        masked_fill as masked_fill,
    )
    from .client.arithmetic import (
        maximum as maximum,
    )
    from .client.arithmetic import (
        minimum as minimum,
    )
    from .client.arithmetic import (
        mul as mul,
    )
    from .client.arithmetic import (
        multiply as multiply,
    )
    from .client.arithmetic import (
        ne as ne,
    )
    from .client.arithmetic import (
        neg as neg,
    )
    from .client.arithmetic import (
        negative as negative,
    )
    from .client.arithmetic import (
        not_equal as not_equal,
    )
    from .client.arithmetic import (
        positive as positive,
    )
    from .client.arithmetic import (
        pow as pow,
    )
    from .client.arithmetic import (
        reciprocal as reciprocal,
    )
    from .client.arithmetic import (
        relu as relu,
    )
    from .client.arithmetic import (
        remainder as remainder,
    )
    from .client.arithmetic import (
        round as round,
    )
    from .client.arithmetic import (
        rsqrt as rsqrt,
    )
    from .client.arithmetic import (
        rsub as rsub,
    )
    from .client.arithmetic import (
        sigmoid as sigmoid,
    )
    from .client.arithmetic import (
        sign as sign,
    )
    from .client.arithmetic import (
        sin as sin,
    )
    from .client.arithmetic import (
        sqrt as sqrt,
    )
    from .client.arithmetic import (
        square as square,
    )
    from .client.arithmetic import (
        sub as sub,
    )
    from .client.arithmetic import (
        subtract as subtract,
    )
    from .client.arithmetic import (
        tan as tan,
    )
    from .client.arithmetic import (
        tanh as tanh,
    )
    from .client.arithmetic import (
        true_divide as true_divide,
    )
    from .client.arithmetic import (
        trunc as trunc,
    )
    from .client.arithmetic import (
        where as where,
    )
    from .client.creation import (
        arange as arange,
    )
    from .client.creation import (
        as_tensor as as_tensor,
    )
    from .client.creation import (
        empty as empty,
    )
    from .client.creation import (
        empty_like as empty_like,
    )
    from .client.creation import (
        eye as eye,
    )
    from .client.creation import (
        from_numpy as from_numpy,
    )
    from .client.creation import (
        full as full,
    )
    from .client.creation import (
        full_like as full_like,
    )
    from .client.creation import (
        linspace as linspace,
    )
    from .client.creation import (
        ones as ones,
    )
    from .client.creation import (
        ones_like as ones_like,
    )
    from .client.creation import (
        tensor as tensor,
    )  # fmt: skip
    from .client.creation import (
        zeros as zeros,
    )
    from .client.creation import (
        zeros_like as zeros_like,
    )
    from .client.functional import (
        allclose as allclose,
    )  # fmt: skip
    from .client.functional import (
        bmm as bmm,
    )
    from .client.functional import (
        dot as dot,
    )
    from .client.functional import (
        dropout as dropout,
    )
    from .client.functional import (
        equal as equal,
    )
    from .client.functional import (
        gelu as gelu,
    )
    from .client.functional import (
        matmul as matmul,
    )
    from .client.functional import (
        mm as mm,
    )
    from .client.functional import (
        silu as silu,
    )
    from .client.modes import (
        enable_grad as enable_grad,
    )
    from .client.modes import (
        inference_mode as inference_mode,
    )
    from .client.modes import (
        is_grad_enabled as is_grad_enabled,
    )
    from .client.modes import (
        no_grad as no_grad,
    )  # fmt: skip
    from .client.modes import (
        set_grad_enabled as set_grad_enabled,
    )
    from .client.random import (
        initial_seed as initial_seed,
    )
    from .client.random import (
        manual_seed as manual_seed,
    )  # fmt: skip
    from .client.random import (
        rand as rand,
    )
    from .client.random import (
        rand_like as rand_like,
    )
    from .client.random import (
        randint as randint,
    )
    from .client.random import (
        randn as randn,
    )
    from .client.random import (
        randn_like as randn_like,
    )
    from .client.random import (
        randperm as randperm,
    )
    from .client.reductions import (
        all as all,
    )  # fmt: skip
    from .client.reductions import (
        amax as amax,
    )
    from .client.reductions import (
        amin as amin,
    )
    from .client.reductions import (
        any as any,
    )
    from .client.reductions import (
        argmax as argmax,
    )
    from .client.reductions import (
        argmin as argmin,
    )
    from .client.reductions import (
        log_softmax as log_softmax,
    )
    from .client.reductions import (
        logsumexp as logsumexp,
    )
    from .client.reductions import (
        max as max,
    )
    from .client.reductions import (
        mean as mean,
    )
    from .client.reductions import (
        min as min,
    )
    from .client.reductions import (
        prod as prod,
    )
    from .client.reductions import (
        softmax as softmax,
    )
    from .client.reductions import (
        std as std,
    )
    from .client.reductions import (
        sum as sum,
    )
    from .client.reductions import (
        var as var,
    )
    from .client.shaping import (
        broadcast_to as broadcast_to,
    )  # fmt: skip
    from .client.shaping import (
        cat as cat,
    )
    from .client.shaping import (
        chunk as chunk,
    )
    from .client.shaping import (
        concat as concat,
    )
    from .client.shaping import (
        concatenate as concatenate,
    )
    from .client.shaping import (
        expand as expand,
    )
    from .client.shaping import (
        expand_as as expand_as,
    )
    from .client.shaping import (
        flatten as flatten,
    )
    from .client.shaping import (
        gather as gather,
    )
    from .client.shaping import (
        index_select as index_select,
    )
    from .client.shaping import (
        moveaxis as moveaxis,
    )
    from .client.shaping import (
        movedim as movedim,
    )
    from .client.shaping import (
        narrow as narrow,
    )
    from .client.shaping import (
        one_hot as one_hot,
    )
    from .client.shaping import (
        permute as permute,
    )
    from .client.shaping import (
        ravel as ravel,
    )
    from .client.shaping import (
        repeat as repeat,
    )
    from .client.shaping import (
        reshape as reshape,
    )
    from .client.shaping import (
        reshape_as as reshape_as,
    )
    from .client.shaping import (
        scatter_add as scatter_add,
    )
    from .client.shaping import (
        select as select,
    )
    from .client.shaping import (
        split as split,
    )
    from .client.shaping import (
        squeeze as squeeze,
    )
    from .client.shaping import (
        stack as stack,
    )
    from .client.shaping import (
        swapaxes as swapaxes,
    )
    from .client.shaping import (
        swapdims as swapdims,
    )
    from .client.shaping import (
        t as t,
    )
    from .client.shaping import (
        tile as tile,
    )
    from .client.shaping import (
        transpose as transpose,
    )
    from .client.shaping import (
        tril as tril,
    )
    from .client.shaping import (
        triu as triu,
    )
    from .client.shaping import (
        unbind as unbind,
    )
    from .client.shaping import (
        unflatten as unflatten,
    )
    from .client.shaping import (
        unsqueeze as unsqueeze,
    )
    from .client.shaping import (
        view as view,
    )
    from .client.tensor import (
        Tensor as Tensor,
    )  # fmt: skip
    from .config import (
        Config as Config,
    )  # fmt: skip
    from .dtypes import DType as DType
    from .dtypes import as_dtype as as_dtype
    from .dtypes import (
        bool_ as bool_,
    )  # fmt: skip
    from .dtypes import (
        float16 as float16,
    )
    from .dtypes import (
        float32 as float32,
    )
    from .dtypes import (
        float64 as float64,
    )
    from .dtypes import (
        get_default_dtype as get_default_dtype,
    )
    from .dtypes import (
        int8 as int8,
    )
    from .dtypes import (
        int16 as int16,
    )
    from .dtypes import (
        int32 as int32,
    )
    from .dtypes import (
        int64 as int64,
    )
    from .dtypes import (
        promote as promote,
    )
    from .dtypes import (
        set_default_dtype as set_default_dtype,
    )
    from .dtypes import (
        uint8 as uint8,
    )
    from .errors import (
        ConfigError as ConfigError,
    )
    from .errors import (
        ConnectionFailed as ConnectionFailed,
    )
    from .errors import (
        DTypeError as DTypeError,
    )
    from .errors import (
        GTError as GTError,
    )  # fmt: skip
    from .errors import (
        IndexOutOfRange as IndexOutOfRange,
    )
    from .errors import (
        OutOfMemory as OutOfMemory,
    )
    from .errors import (
        ProtocolError as ProtocolError,
    )
    from .errors import (
        SessionError as SessionError,
    )
    from .errors import (
        ShapeError as ShapeError,
    )
    from .errors import (
        WorkerError as WorkerError,
    )
    from .errors import (
        WorkerLost as WorkerLost,
    )
    from .session import (
        connect as connect,
    )  # fmt: skip
    from .session import (
        disconnect as disconnect,
    )
    from .session import (
        flush as flush,
    )
    from .session import (
        init as init,
    )
    from .session import (
        load_config as load_config,
    )
    from .session import (
        stats as stats,
    )
    from .session import (
        synchronize as synchronize,
    )

_HOMES: Final[dict[str, tuple[str, ...]]] = {
    ".dtypes": (
        "DType", "as_dtype", "bool_", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
        "get_default_dtype", "set_default_dtype", "promote",
    ),
    ".errors": (
        "GTError", "ShapeError", "DTypeError", "ConfigError", "ProtocolError", "ConnectionFailed", "SessionError",
        "WorkerError", "WorkerLost", "OutOfMemory", "IndexOutOfRange",
    ),
    ".session": (
        "connect", "init", "disconnect", "load_config", "stats", "synchronize", "flush",
    ),
    ".config": (
        "Config",
    ),
    ".client.tensor": (
        "Tensor",
    ),
    ".client.creation": (
        "tensor", "as_tensor", "from_numpy", "zeros", "ones", "full", "empty", "arange", "linspace", "eye",
        "zeros_like", "ones_like", "full_like", "empty_like",
    ),
    ".client.random": (
        "manual_seed", "initial_seed", "rand", "randn", "randint", "randperm", "rand_like", "randn_like",
    ),
    ".client.modes": (
        "no_grad", "enable_grad", "inference_mode", "is_grad_enabled", "set_grad_enabled",
    ),
    ".client.arithmetic": (
        "abs", "absolute", "add", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "cast", "ceil", "clamp",
        "clip", "clone", "cos", "div", "divide", "eq", "exp", "expm1", "floor", "floor_divide", "ge", "greater",
        "greater_equal", "gt", "isclose", "isfinite", "isinf", "isnan", "le", "less", "less_equal", "log", "log1p",
        "log2", "log10", "logical_and", "logical_not", "logical_or", "logical_xor", "lt", "masked_fill", "maximum",
        "minimum", "mul", "multiply", "ne", "neg", "negative", "not_equal", "positive", "pow", "reciprocal", "relu",
        "remainder", "round", "rsqrt", "rsub", "sigmoid", "sign", "sin", "sqrt", "square", "sub", "subtract", "tan",
        "tanh", "true_divide", "trunc", "where",
    ),
    ".client.reductions": (
        "all", "amax", "amin", "any", "argmax", "argmin", "log_softmax", "logsumexp", "max", "mean", "min", "prod",
        "softmax", "std", "sum", "var",
    ),
    ".client.shaping": (
        "broadcast_to", "cat", "chunk", "concat", "concatenate", "expand", "expand_as", "flatten", "gather",
        "index_select", "moveaxis", "movedim", "narrow", "one_hot", "permute", "ravel", "repeat", "reshape",
        "reshape_as", "scatter_add", "select", "split", "squeeze", "stack", "swapaxes", "swapdims", "t", "tile",
        "transpose", "tril", "triu", "unbind", "unflatten", "unsqueeze", "view",
    ),
    ".client.functional": (
        "allclose", "bmm", "dot", "dropout", "equal", "gelu", "matmul", "mm", "silu",
    ),
}  # fmt: skip
"""Where each name lives."""

_RENAMED: Final = {
    "bool": (".dtypes", "bool_"),
    "half": (".dtypes", "float16"),
    "float": (".dtypes", "float32"),
    "double": (".dtypes", "float64"),
    "short": (".dtypes", "int16"),
    "int": (".dtypes", "int32"),
    "long": (".dtypes", "int64"),
    "dtype": (".dtypes", "DType"),
    "result_type": (".client.arithmetic", "result_type_of"),
    "promote_types": (".dtypes", "promote"),
}
"""Names that are others' where they live: PyTorch's, some of which hide Python's own."""

_SUBMODULES: Final = ("autograd", "nn", "optim", "signal")
_WHERE: Final = {name: (module, name) for module, names in _HOMES.items() for name in names} | _RENAMED

__all__ = [*_SUBMODULES, *_WHERE]  # noqa: PLE0604  # every name is a string: they are keys of the table above


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        module, inner = _WHERE[name]
        value = getattr(importlib.import_module(module, __name__), inner)
    elif name in _SUBMODULES:
        value = importlib.import_module(f".{name}", __name__)
    elif name == "__version__":
        from importlib.metadata import version

        value = version("gt-tensor")
    else:
        raise AttributeError(f"module 'gt' has no attribute {name!r}")
    globals()[name] = value  # the next look-up finds it at once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
