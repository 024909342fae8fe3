"""What the Python Array API standard, version 2024.12, lists: its functions and methods with their arguments.

Facts of the standard alone, as its specification prints them: no test and nothing of GT may be in here.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

FUNCTIONS: Final = """
arange(start, /, stop=None, step=1, *, dtype=None, device=None);
asarray(obj, /, *, dtype=None, device=None, copy=None); empty(shape, *, dtype=None, device=None);
empty_like(x, /, *, dtype=None, device=None); eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None);
from_dlpack(x, /, *, device=None, copy=None); full(shape, fill_value, *, dtype=None, device=None);
full_like(x, /, fill_value, *, dtype=None, device=None);
linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True); meshgrid(*arrays, indexing='xy');
ones(shape, *, dtype=None, device=None); ones_like(x, /, *, dtype=None, device=None); tril(x, /, *, k=0);
triu(x, /, *, k=0); zeros(shape, *, dtype=None, device=None); zeros_like(x, /, *, dtype=None, device=None);
astype(x, dtype, /, *, copy=True, device=None); can_cast(from_, to, /); finfo(type, /); iinfo(type, /);
isdtype(dtype, kind); result_type(*arrays_and_dtypes);
abs(x, /); acos(x, /); acosh(x, /); add(x1, x2, /); asin(x, /); asinh(x, /); atan(x, /); atan2(x1, x2, /);
atanh(x, /); bitwise_and(x1, x2, /); bitwise_left_shift(x1, x2, /); bitwise_invert(x, /); bitwise_or(x1, x2, /);
bitwise_right_shift(x1, x2, /); bitwise_xor(x1, x2, /); ceil(x, /); clip(x, /, min=None, max=None); conj(x, /);
copysign(x1, x2, /); cos(x, /); cosh(x, /); divide(x1, x2, /); equal(x1, x2, /); exp(x, /); expm1(x, /); floor(x, /);
floor_divide(x1, x2, /); greater(x1, x2, /); greater_equal(x1, x2, /); hypot(x1, x2, /); imag(x, /); isfinite(x, /);
isinf(x, /); isnan(x, /); less(x1, x2, /); less_equal(x1, x2, /); log(x, /); log1p(x, /); log2(x, /); log10(x, /);
logaddexp(x1, x2, /); logical_and(x1, x2, /); logical_not(x, /); logical_or(x1, x2, /); logical_xor(x1, x2, /);
maximum(x1, x2, /); minimum(x1, x2, /); multiply(x1, x2, /); negative(x, /); nextafter(x1, x2, /);
not_equal(x1, x2, /); positive(x, /); pow(x1, x2, /); real(x, /); reciprocal(x, /); remainder(x1, x2, /);
round(x, /); sign(x, /); signbit(x, /); sin(x, /); sinh(x, /); square(x, /); sqrt(x, /); subtract(x1, x2, /);
tan(x, /); tanh(x, /); trunc(x, /);
take(x, indices, /, *, axis=None); take_along_axis(x, indices, /, *, axis=-1);
matmul(x1, x2, /); matrix_transpose(x, /); tensordot(x1, x2, /, *, axes=2); vecdot(x1, x2, /, *, axis=-1);
broadcast_arrays(*arrays); broadcast_to(x, /, shape); concat(arrays, /, *, axis=0); expand_dims(x, /, axis);
flip(x, /, *, axis=None); moveaxis(x, source, destination, /); permute_dims(x, /, axes);
repeat(x, repeats, /, *, axis=None); reshape(x, /, shape, *, copy=None); roll(x, /, shift, *, axis=None);
squeeze(x, /, axis); stack(arrays, /, *, axis=0); tile(x, repetitions, /); unstack(x, /, *, axis=0);
argmax(x, /, *, axis=None, keepdims=False); argmin(x, /, *, axis=None, keepdims=False);
count_nonzero(x, /, *, axis=None, keepdims=False); nonzero(x, /);
searchsorted(x1, x2, /, *, side='left', sorter=None); where(condition, x1, x2, /);
unique_all(x, /); unique_counts(x, /); unique_inverse(x, /); unique_values(x, /);
argsort(x, /, *, axis=-1, descending=False, stable=True); sort(x, /, *, axis=-1, descending=False, stable=True);
cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False);
cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False); max(x, /, *, axis=None, keepdims=False);
mean(x, /, *, axis=None, keepdims=False); min(x, /, *, axis=None, keepdims=False);
prod(x, /, *, axis=None, dtype=None, keepdims=False); std(x, /, *, axis=None, correction=0.0, keepdims=False);
sum(x, /, *, axis=None, dtype=None, keepdims=False); var(x, /, *, axis=None, correction=0.0, keepdims=False);
all(x, /, *, axis=None, keepdims=False); any(x, /, *, axis=None, keepdims=False);
diff(x, /, *, axis=-1, n=1, prepend=None, append=None);
"""

LINALG: Final = """
cholesky(x, /, *, upper=False); cross(x1, x2, /, *, axis=-1); det(x, /); diagonal(x, /, *, offset=0); eigh(x, /);
eigvalsh(x, /); inv(x, /); matmul(x1, x2, /); matrix_norm(x, /, *, keepdims=False, ord='fro'); matrix_power(x, n, /);
matrix_rank(x, /, *, rtol=None); matrix_transpose(x, /); outer(x1, x2, /); pinv(x, /, *, rtol=None);
qr(x, /, *, mode='reduced'); slogdet(x, /); solve(x1, x2, /); svd(x, /, *, full_matrices=True); svdvals(x, /);
tensordot(x1, x2, /, *, axes=2); trace(x, /, *, offset=0, dtype=None); vecdot(x1, x2, /, *, axis=-1);
vector_norm(x, /, *, axis=None, keepdims=False, ord=2);
"""

FFT: Final = """
fft(x, /, *, n=None, axis=-1, norm='backward'); ifft(x, /, *, n=None, axis=-1, norm='backward');
fftn(x, /, *, s=None, axes=None, norm='backward'); ifftn(x, /, *, s=None, axes=None, norm='backward');
rfft(x, /, *, n=None, axis=-1, norm='backward'); irfft(x, /, *, n=None, axis=-1, norm='backward');
rfftn(x, /, *, s=None, axes=None, norm='backward'); irfftn(x, /, *, s=None, axes=None, norm='backward');
hfft(x, /, *, n=None, axis=-1, norm='backward'); ihfft(x, /, *, n=None, axis=-1, norm='backward');
fftfreq(n, /, *, d=1.0, dtype=None, device=None); rfftfreq(n, /, *, d=1.0, dtype=None, device=None);
fftshift(x, /, *, axes=None); ifftshift(x, /, *, axes=None);
"""

INFO: Final = """
capabilities(); default_device(); default_dtypes(*, device=None); dtypes(*, device=None, kind=None); devices();
"""

METHODS: Final = """
__abs__(self, /); __add__(self, other, /); __and__(self, other, /);
__array_namespace__(self, /, *, api_version=None); __bool__(self, /); __complex__(self, /);
__dlpack__(self, /, *, stream=None, max_version=None, dl_device=None, copy=None); __dlpack_device__(self, /);
__eq__(self, other, /); __float__(self, /); __floordiv__(self, other, /); __ge__(self, other, /);
__getitem__(self, key, /); __gt__(self, other, /); __index__(self, /); __int__(self, /); __invert__(self, /);
__le__(self, other, /); __lshift__(self, other, /); __lt__(self, other, /); __matmul__(self, other, /);
__mod__(self, other, /); __mul__(self, other, /); __ne__(self, other, /); __neg__(self, /); __or__(self, other, /);
__pos__(self, /); __pow__(self, other, /); __rshift__(self, other, /); __setitem__(self, key, value, /);
__sub__(self, other, /); __truediv__(self, other, /); __xor__(self, other, /);
to_device(self, device, /, *, stream=None);
"""

ATTRIBUTES: Final = ("T", "device", "dtype", "mT", "ndim", "shape", "size")
CONSTANTS: Final = ("e", "inf", "nan", "newaxis", "pi")
DTYPES: Final = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "complex64",
    "complex128",
)  # fmt: skip


def signatures(listed: str) -> dict[str, inspect.Signature]:
    """The signatures in one of the lists above, by name."""
    found: dict[str, Any] = {}
    for each in listed.split(";"):
        if each.strip():
            exec(f"def {each.strip()}: ...", found)
    return {name: inspect.signature(value) for name, value in found.items() if inspect.isfunction(value)}
