"""Libraries that take whatever keeps the Array API: scikit-learn and SciPy compute on GT's tensors, which stay GT's.

SciPy decides when it is first imported, so a process of its own asks for it. Values are compared with the same calls on NumPy.
"""

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process
PROGRAM = """
import numpy as np
import gt
import gt.array_api as xp

gt.init(workers=2)
draws = np.random.default_rng(0)
X = draws.standard_normal((60, 5))
y = (X[:, 0] + 0.1 * draws.standard_normal(60) > 0).astype(np.int64)
t = X @ np.arange(5.0) + 0.1 * draws.standard_normal(60)


def tensors(*arrays):
    return [xp.asarray(array) for array in arrays]


def same(name, call):
    got, want = call(*tensors(X, y, t)), call(X, y, t)
    if np.ndim(want):
        assert isinstance(got, gt.Tensor), f"{name}: {type(got)}"
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6, atol=1e-8, err_msg=name)
    print("same", name)
"""

SKLEARN = """
from sklearn import config_context
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, mean_squared_error, r2_score
from sklearn.metrics.pairwise import euclidean_distances, rbf_kernel
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import LabelEncoder, MinMaxScaler, PolynomialFeatures, StandardScaler

with config_context(array_api_dispatch=True):
    for scaler in (StandardScaler(), MinMaxScaler(), PolynomialFeatures(2)):
        same(type(scaler).__name__, lambda X, y, t, scaler=scaler: scaler.fit_transform(X))
    same("PCA", lambda X, y, t: PCA(3, svd_solver="full").fit_transform(X))
    same("PCA of a covariance", lambda X, y, t: PCA(3, svd_solver="covariance_eigh").fit(X).explained_variance_)
    same("Ridge", lambda X, y, t: Ridge(solver="svd").fit(X, t).predict(X))
    same("LogisticRegression", lambda X, y, t: LogisticRegression().fit(X, y).coef_)
    same("LDA", lambda X, y, t: LinearDiscriminantAnalysis().fit(X, y).predict_proba(X))
    same("GaussianNB", lambda X, y, t: GaussianNB().fit(X, y).predict_proba(X))
    mixture = GaussianMixture(2, random_state=0, init_params="random")
    same("GaussianMixture", lambda X, y, t: mixture.fit(X).means_)
    same("LabelEncoder", lambda X, y, t: LabelEncoder().fit_transform(y))
    same("accuracy", lambda X, y, t: accuracy_score(y, LogisticRegression().fit(X, y).predict(X)))
    same("mean squares", lambda X, y, t: mean_squared_error(t, X[:, 1]))
    same("r2", lambda X, y, t: r2_score(t, X[:, 1]))
    same("distances", lambda X, y, t: euclidean_distances(X))
    same("kernel", lambda X, y, t: rbf_kernel(X))
    same("split", lambda X, y, t: train_test_split(X, random_state=0)[1])
    same("cross-validation", lambda X, y, t: cross_val_predict(Ridge(solver="svd"), X, t))
"""

SCIPY = """
import scipy.cluster.vq, scipy.differentiate, scipy.fft, scipy.integrate, scipy.ndimage, scipy.optimize.elementwise
import scipy.signal, scipy.special, scipy.stats
from scipy.spatial.transform import Rotation

same("logsumexp", lambda X, y, t: scipy.special.logsumexp(X, axis=1))
same("softmax", lambda X, y, t: scipy.special.softmax(X, axis=1))
same("gammaln", lambda X, y, t: scipy.special.gammaln(X))
same("skew", lambda X, y, t: scipy.stats.skew(X))
same("zscore", lambda X, y, t: scipy.stats.zscore(X))
same("t-test", lambda X, y, t: scipy.stats.ttest_ind(X[:30], X[30:]).pvalue)
same("normality", lambda X, y, t: scipy.stats.normaltest(X).pvalue)
same("ranks", lambda X, y, t: scipy.stats.rankdata(X, axis=0))
same("correlation", lambda X, y, t: scipy.stats.pearsonr(X[:, 1], t).statistic)
same("trapezoid", lambda X, y, t: scipy.integrate.trapezoid(X, axis=0))
same("quadrature", lambda X, y, t: scipy.integrate.tanhsinh(lambda v: v * v, 0 * X, X * X).integral)
same("derivative", lambda X, y, t: scipy.differentiate.derivative(lambda v: v * v, X).df)
same("root", lambda X, y, t: scipy.optimize.elementwise.find_root(lambda v: v**3 - v - 1, (0 * X + 1, 0 * X + 2)).x)
same("rfft", lambda X, y, t: scipy.fft.rfft(X))
same("convolve", lambda X, y, t: scipy.signal.convolve(X, X[:3, :3]))
same("hilbert", lambda X, y, t: scipy.signal.hilbert(t))
same("gaussian", lambda X, y, t: scipy.ndimage.gaussian_filter(X, 1.0))
same("whiten", lambda X, y, t: scipy.cluster.vq.whiten(X))
same("rotation", lambda X, y, t: Rotation.from_rotvec(X[:, :3]).as_matrix())
"""


def test_libraries_compute_on_tensors() -> None:
    """By daemons of their own, with two workers."""
    calls = "".join(
        text for library, text in (("scipy", SCIPY), ("sklearn", SKLEARN)) if importlib.util.find_spec(library)
    )
    if not calls:
        pytest.skip("neither scikit-learn nor SciPy is installed")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + calls],
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("same ") == calls.count("same(") + 2 * (SKLEARN in calls)
